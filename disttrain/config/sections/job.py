"""Sections `resources` and `job`: nodes, ranks and devices; limits, retries and environment."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from pydantic_core import PydanticCustomError

from disttrain.config.sections.base import WITHOUT_VALUE, NotInKey, Section


def _text(value: Any) -> Any:
    """`OMP_PROC_BIND: 1` means the text "1"."""
    return value if isinstance(value, bool) or not isinstance(value, int | float) else str(value)


def _words(value: Any) -> Any:
    """The words of a command that is given as one line."""
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if isinstance(value, list | tuple):
        return tuple(str(word) if isinstance(word, int | float) else word for word in value)
    return value


OF_A_FOLLOW_UP = ("run", "run_dir", "checkpoint_dir", "checkpoint", "step")
"""Placeholders of `job.on_checkpoint`, values of the run it follows. `job.on_done` has the first three."""
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
"""A script or module and its arguments."""


def _without_url(command: str) -> str:
    if "://" in command:
        raise PydanticCustomError(
            WITHOUT_VALUE,
            "holds a URL, which run.json would record and which may be a secret: put the URL into an "
            'environment variable, and write "$NAME" here',
        )
    return command


def _quoted(words: str) -> str:
    shlex.split(words)  # raises ValueError for a quotation without end
    return words


class ResourcesConfig(Section):
    """Nodes, ranks and devices. The world size is `nodes * gpus_per_node`; for strategy dp, `nodes`."""

    nodes: PositiveInt = 1
    """Nodes; without Slurm, each is an agent process on this machine."""
    gpus_per_node: PositiveInt = 1
    """Ranks of a node, one per GPU or CPU process; for dp, GPUs of the only rank."""
    device: Literal["auto", "cpu", "cuda", "shared"] = "auto"
    """`auto`: cuda where every rank of a node has a GPU, else cpu. `shared`: all ranks of a node use its
    first GPU, with gloo, and a Slurm job requests none."""
    threads_per_rank: PositiveInt = 1
    """Intra-op threads of a rank (`torch.set_num_threads`)."""
    runs_per_node: PositiveInt = 1
    """Runs of one node side by side in one Slurm job, each with its own GPUs and processors."""
    share_gpus: bool = False
    """Whether these runs use the same GPUs: the job requests those of one run."""


class JobConfig(Section):
    """Limits, retries and environment of the job."""

    time_limit_min: NotInKey[PositiveFloat] = 60.0
    """Time limit of one attempt in minutes."""
    max_attempts: NotInKey[PositiveInt] = 3
    """Failed attempts in a row without a newer checkpoint after which the run has failed; pre-emptions do not
    count."""
    max_requeues: NotInKey[NonNegativeInt] = 100
    """Automatic requeues of one Slurm job."""
    rendezvous_timeout_s: NotInKey[PositiveFloat] = 120.0
    """Seconds that nodes wait for each other."""
    stop_lead_s: NotInKey[NonNegativeFloat] = 60.0
    """Seconds before the time limit at which ranks save and stop."""
    stop_check_s: NotInKey[NonNegativeFloat] = 1.0
    """Seconds between agreements of the ranks on stop requests; 0: every step."""
    preflight: NotInKey[Literal["auto", "basic", "full", "off"]] = "auto"
    """Checks before the ranks start: `basic`, or `full` with rates of storage, links and an all-reduce.
    `auto`: full for Slurm jobs of several nodes with NVIDIA GPUs."""
    setup_timeout_s: NotInKey[PositiveFloat] = 600.0
    """Seconds after which a rank counts as hung before and in its first step, and after the last one."""
    step_timeout_s: NotInKey[PositiveFloat] = 60.0
    """Seconds in a later step after which a rank counts as hung; at least three times the 99th percentile."""
    checkpoint_timeout_s: NotInKey[PositiveFloat] = 600.0
    """Seconds without progress of a checkpoint after which a waiting rank counts as hung; at least three
    times the longest wait."""
    evaluation_timeout_s: NotInKey[PositiveFloat] = 600.0
    """Seconds in a validation batch after which a rank counts as hung; at least three times the longest."""
    collective_timeout_s: NotInKey[PositiveFloat] = 900.0
    """Timeout of one collective in gloo and NCCL."""
    script_step_timeout_s: NotInKey[PositiveFloat | None] = None
    """As `step_timeout_s`, for a `command` with `Trainer` or `LoopTelemetry`; longer than each of its pauses.
    Null: no limit."""
    idle_timeout_min: NotInKey[NonNegativeFloat | None] = None
    """Minutes without output, progress and load after which a rank of a `command` counts as hung; 0: no
    limit; null: as the site profile says."""
    stop_signal: NotInKey[Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"]] = "SIGTERM"
    """Signal that asks each process of a `command` to save and exit with code 0."""
    python: Annotated[str, Field(min_length=1), AfterValidator(_quoted)] | None = None
    """Python of the ranks: an interpreter, an environment's folder, or `uv run`, `pixi run`; null: that of
    the job."""
    launcher: Literal["torchrun", "node", "rank"] = "torchrun"
    """Start of a `command`. `torchrun`: Python on each rank. `node`, `rank`: any executable, once on each."""
    resume_args: NotInKey[Words] = ()
    """Arguments added to a `command` that has a checkpoint: `--resume {checkpoint}`, its newest file or
    folder."""
    workdir: Literal["submit", "run", "checkpoints", "code"] = "submit"
    """Working directory of a `command`: that of the submission, the run directory, the folder of its
    checkpoints, or the copy of the code."""
    env: dict[str, Annotated[str, BeforeValidator(_text)]] = {}  # noqa: RUF012 -- pydantic copies it
    """Variables of every rank, which override derived ones; placeholders such as `{run_dir}` are filled
    in."""
    secrets: NotInKey[tuple[str, ...]] = ()
    """Names of variables whose values are not recorded, besides those like `HF_TOKEN`."""
    binding: Literal["auto", "none"] = "auto"
    """`auto`: `numactl` binds each rank of a Slurm job to the NUMA node of its GPU."""
    on_end: NotInKey[Annotated[str, Field(min_length=1), AfterValidator(_without_url)] | None] = None
    """Shell command called at the end of the sweep and after a run has failed, with URLs in variables."""
    on_checkpoint: NotInKey[Words] = ()
    """Script that runs for each committed checkpoint: `evaluate.py {checkpoint}`."""
    on_done: NotInKey[Words] = ()
    """Script that runs when the run is done: `convert.py {checkpoint_dir}`."""
    follow_up_gpus: NotInKey[PositiveInt] = 1
    """Ranks of `on_checkpoint` and `on_done`."""
    follow_up_limit_min: NotInKey[PositiveFloat] = 60.0
    """Time limit of `on_checkpoint` and `on_done` in minutes."""
