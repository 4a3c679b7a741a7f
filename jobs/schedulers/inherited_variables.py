"""Variables that a batch system or a launcher leaves in a shell, and that no job or query must inherit.

Pure functions, standard library only. All schedulers use them: a local run may be started within a Slurm job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from jobs.core.environment import is_launcher_variable

_SLURM = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SACCTMGR|SCANCEL|SCONTROL|SINFO)_.*")
_SLURM_INPUT = re.compile(r"(SBATCH|SRUN|SALLOC)_.*")
_SLURM_KEPT = re.compile(
    r"SLURM_(CONF|CONF_SERVER|CLUSTERS|JWT|SACK_.*|TIME_FORMAT|DEBUG_FLAGS)|SBATCH_CLUSTERS"
)
"""Choice of the cluster, authentication, and the format of times."""
_DEVICES = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"}


def is_set_by_launcher(name: str) -> bool:
    """Whether a launcher or a batch system sets this variable."""
    return is_launcher_variable(name) or _SLURM.fullmatch(name) is not None


def without_batch_system(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment less the variables of a job or launcher, and less options of Slurm's commands."""
    return {name: value for name, value in inherited.items() if not _is_foreign(name)}


def outside_job(inherited: Mapping[str, str]) -> dict[str, str]:
    """`without_batch_system`, and less the devices that a job around this shell was given."""
    kept = without_batch_system(inherited)
    if "SLURM_JOB_ID" in inherited:
        kept = {name: value for name, value in kept.items() if name not in _DEVICES}
    return kept


def command_inputs(inherited: Mapping[str, str]) -> list[str]:
    """Variables of `inherited` that are options of sbatch, srun and salloc."""
    return [name for name in inherited if _SLURM_INPUT.fullmatch(name) and not _SLURM_KEPT.fullmatch(name)]


def _is_foreign(name: str) -> bool:
    if is_launcher_variable(name):
        return True
    return _SLURM.fullmatch(name) is not None and not _SLURM_KEPT.fullmatch(name)
