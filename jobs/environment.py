"""The environment of the ranks: what is added to it, why, and what must not leak into it.

Pure functions, standard library only. `env.json` records each added variable with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from disttrain.masking import MASK, is_secret

_LAUNCHER = re.compile(
    r"(GROUP_|LOCAL_|ROLE_|NODE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|(TORCHELASTIC|PET|OMPI|PMI|PMIX|PALS|SUBMITIT)_.*"
)
_SLURM = re.compile(r"(SLURM|SBATCH|SRUN)_.*")
_SLURM_KEPT = {"SLURM_CONF"}


class MissingSecret(RuntimeError):
    """A secret of `job.env` is not in the environment; the message is one line."""


@dataclass(frozen=True)
class Variable:
    """One variable given to the ranks (`records.EnvVariable`)."""

    value: str
    reason: str
    source: str
    """`derived`, `config` or `site`."""


def derive(
    config: Mapping[str, Any], cluster: str, inherited: Mapping[str, str], *, interface: str | None = None
) -> dict[str, Variable]:
    """The variables to add for a run with this config; `job.env` wins over all of them.

    `interface` is the network interface by which this node reaches the others, where that is known.
    A secret in `job.env` is kept as a mask in `run.json`; its value comes from the `inherited`
    environment, through which the submitter passed it. Raises `MissingSecret` if it is not there.
    """
    threads = config["resources"]["threads_per_rank"]
    added = {
        "OMP_NUM_THREADS": Variable(
            str(threads), "the same number of threads per rank at every node count", "derived"
        ),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": Variable(
            "600", "ranks that torchrun was asked to end may finish their step and save", "derived"
        ),
        "PYTHONUNBUFFERED": Variable("1", "a killed rank's last words still reach its log", "derived"),
    }
    if cluster == "local":
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            added[name] = Variable("lo", "all nodes are this machine: meet on loopback", "derived")
    elif interface is not None and "GLOO_SOCKET_IFNAME" not in inherited:
        # By itself gloo takes the address of the host's own name, which may be loopback's (127.0.1.1).
        added["GLOO_SOCKET_IFNAME"] = Variable(
            interface, "the interface by which this node reaches the others by name", "derived"
        )
    root = str(Path(__file__).resolve().parent.parent)
    paths = [path for path in inherited.get("PYTHONPATH", "").split(":") if path and path != root]
    added["PYTHONPATH"] = Variable(":".join([root, *paths]), "ranks run this copy of the code", "derived")
    for name, value in config["job"]["env"].items():
        if value == MASK:
            if name not in inherited:
                raise MissingSecret(
                    f"job.env.{name} is a secret, which run.json does not keep; set {name} in the environment"
                )
            value = inherited[name]
        added[name] = Variable(value, "job.env", "config")
    return added


def deadline(end: float) -> Variable:
    """What tells the ranks when the time of their attempt is up, in seconds since the epoch."""
    return Variable(f"{end:.0f}", "when this attempt's time is up: ranks stop and save before it", "derived")


def compose(inherited: Mapping[str, str], added: Mapping[str, Variable], cluster: str) -> dict[str, str]:
    """The ranks' whole environment: inherited, less what another launcher left in it, plus what is added."""
    kept = {name: value for name, value in inherited.items() if not _leaks(name, cluster)}
    return kept | {name: variable.value for name, variable in added.items()}


def _leaks(name: str, cluster: str) -> bool:
    if _LAUNCHER.fullmatch(name):
        return True
    return cluster == "local" and _SLURM.fullmatch(name) is not None and name not in _SLURM_KEPT


def as_record(added: Mapping[str, Variable]) -> dict[str, Any]:
    """Content of `env.json`, secrets masked (`records.EnvRecord`)."""
    variables = {name: asdict(variable) for name, variable in sorted(added.items())}
    for name in filter(is_secret, variables):
        variables[name]["value"] = MASK
    return {"schema_version": 1, "variables": variables}
