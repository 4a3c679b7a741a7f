"""Options of sbatch and srun, each with whether it takes a value. Data only.

Site profiles are checked against these tables. Source: the commands of version 22.05, and the manual pages of
newer ones.
"""

from __future__ import annotations

from typing import Literal

Value = Literal["none", "optional", "required"]


def _table(required: str, optional: str, none: str) -> dict[str, Value]:
    return {
        **dict.fromkeys(required.split(), "required"),
        **dict.fromkeys(optional.split(), "optional"),
        **dict.fromkeys(none.split(), "none"),
    }


_JOB = """
    account acctg-freq bb bbf begin chdir cluster-constraint clusters comment constraint container
    container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
    dependency distribution error exclude export extra extra-node-info gid gpu-bind gpu-freq gpus
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name licenses mail-type
    mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition prefer
    priority profile qos reservation resources segment signal sockets-per-node switches thread-spec
    threads-per-core time time-min tmp tres-bind tres-per-task uid wckey
"""
_JOB_WITH_OPTIONAL_VALUE = "exclusive nice no-kill oom-kill-step propagate resv-ports"
_JOB_WITHOUT_VALUE = """
    consolidate-segments contiguous help hold overcommit oversubscribe quiet reboot spread-job
    spread-segments stepmgr test-only usage use-min-nodes verbose version
"""

SBATCH_OPTIONS = _table(
    f"{_JOB} array batch export-file kill-on-invalid-dep mem-update wait-all-nodes wrap",
    f"{_JOB_WITH_OPTIONAL_VALUE} get-user-env parsable requeue",
    f"{_JOB_WITHOUT_VALUE} external ignore-pbs no-requeue wait",
)
"""Long options of sbatch."""
SRUN_OPTIONS = _table(
    f"""{_JOB} accel-bind bcast-exclude cluster cpu-bind epilog het-group jobid mpi msg-timeout
    ntasks-per-tres pack-group power prolog relative slurmd-debug task-epilog task-prolog tasks-per-node
    threads treewidth wait""",
    f"{_JOB_WITH_OPTIONAL_VALUE} bcast compress immediate kill-on-bad-exit overlap send-libs x11",
    f"""{_JOB_WITHOUT_VALUE} debugger-test disable-status exact external-launcher interactive label
    multi-prog no-allocate preserve-env pty quit-on-interrupt unbuffered wait-for-children whole""",
)
"""Long options of srun."""
PYXIS_OPTIONS = _table(
    """container-env container-image container-mounts container-name container-save container-workdir""",
    "",
    """container-entrypoint container-entrypoint-log container-mount-home container-readonly
    container-remap-root container-writable no-container-entrypoint no-container-mount-home
    no-container-remap-root""",
)
"""Long options of the plugin pyxis."""
