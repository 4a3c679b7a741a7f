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
    """Nodes, ranks and devices of the job. The world size is `nodes * gpus_per_node`; for strategy dp,
    `nodes`."""

    nodes: PositiveInt = 1
    """Number of nodes; without Slurm each node is one agent process on this machine."""
    gpus_per_node: PositiveInt = 1
    """Ranks per node: one per GPU, or one process each on the CPU. With `parallel.strategy=dp`: GPUs of the
    only rank."""
    device: Literal["auto", "cpu", "cuda", "shared"] = "auto"
    """`auto`: cuda where every local rank has its own GPU, else cpu. A start ends at once if its nodes
    differ, or if a node has GPUs that CUDA does not find. `shared`: all ranks of a node use its first GPU and
    communicate through gloo; the Slurm job requests no GPU."""
    threads_per_rank: PositiveInt = 1
    """Intra-op threads per rank (`torch.set_num_threads`)."""


class JobConfig(Section):
    """Limits, retries and environment of the job."""

    time_limit_min: NotInKey[PositiveFloat] = 60.0
    """Wall-clock limit of one attempt, in minutes."""
    max_attempts: NotInKey[PositiveInt] = 3
    """Failed attempts in a row without a newer checkpoint, the first included, after which a failure becomes
    final. A pre-emption and a stop by the user do not count."""
    max_requeues: NotInKey[NonNegativeInt] = 100
    """Largest number of automatic requeues of one Slurm job, for any cause."""
    rendezvous_timeout_s: NotInKey[PositiveFloat] = 120.0
    """Seconds that nodes wait for each other at the rendezvous."""
    stop_lead_s: NotInKey[NonNegativeFloat] = 60.0
    """Seconds before the job's time limit at which ranks stop and save. If less time than this is left when
    the ranks start, they train for three quarters of it."""
    stop_check_s: NotInKey[NonNegativeFloat] = 1.0
    """Seconds between the checks at which ranks agree on stop requests; 0: at every step. A long run reads
    the file `STOP` more rarely: within 20 s, or at each check where checks are further apart; with 0, at
    every check."""
    preflight: NotInKey[Literal["auto", "basic", "full", "off"]] = "auto"
    """Checks of the nodes before the ranks start, see [preflight.md](preflight.md). `basic`: agreement of the
    nodes, GPUs, clocks, shared folder, free space. `full`: also rates of storage, links and an all-reduce, in
    less than a minute. `auto`: full for a Slurm job of several nodes with NVIDIA GPUs, else basic. `off`:
    none."""
    setup_timeout_s: NotInKey[PositiveFloat] = 600.0
    """Seconds until the ranks train, in the first step, and after the last step, after which a rank counts as
    hung. The agent of its node ends a hung attempt."""
    step_timeout_s: NotInKey[PositiveFloat] = 60.0
    """Seconds in one later step after which a rank counts as hung; at least three times the 99th percentile
    of the newest thousand steps."""
    checkpoint_timeout_s: NotInKey[PositiveFloat] = 600.0
    """Seconds without progress, while training waits for a checkpoint, after which a rank counts as hung; at
    least three times the longest wait so far. Each tensor that the rank writes, and the flush of its file to
    disk, are progress."""
    evaluation_timeout_s: NotInKey[PositiveFloat] = 600.0
    """Seconds in one batch of a validation after which a rank counts as hung; at least three times the
    longest batch so far."""
    collective_timeout_s: NotInKey[PositiveFloat] = 900.0
    """Timeout of one collective in gloo and NCCL. Where an agent watches the ranks, the shorter timeouts
    above end a hang first."""
    script_step_timeout_s: NotInKey[PositiveFloat | None] = None
    """Seconds between the ends of two steps after which a rank of a `command` that uses `Trainer` or
    `LoopTelemetry` counts as hung; at least three times the 99th percentile of the newest thousand. It must
    exceed the longest validation, save or other pause of the script. Null: such ranks are not watched."""
    idle_timeout_min: NotInKey[NonNegativeFloat | None] = None
    """Minutes without output, progress and work on GPU or processor, after which a rank of a `command` counts
    as hung, see [own-script.md](own-script.md#hangs). 0: ranks are not watched. Null: as the site profile
    says, else not."""
    stop_signal: NotInKey[Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"]] = "SIGTERM"
    """Signal that asks each process of a `command` to save and exit with code 0: `stop_lead_s` seconds before
    the time limit, at a pre-emption, and at `submit.py cancel --graceful`."""
    python: Annotated[str, Field(min_length=1), AfterValidator(_quoted)] | None = None
    """Python of the ranks, see [own-script.md](own-script.md#environments): an interpreter, the folder of a
    virtual or conda environment, or `uv run`, `pixi run` and the like. Null: that of the job."""
    launcher: Literal["torchrun", "node", "rank"] = "torchrun"
    """Program that starts a `command`, see [own-script.md](own-script.md#launchers). `torchrun`: one Python
    process for each rank. `node`: one process on each node, such as the launcher of another framework or a
    shell script. `rank`: one process for each rank. With `node` and `rank`, it may be any executable."""
    resume_args: NotInKey[Words] = ()
    """Words at the end of a `command`, such as `--init_from=resume`, in each start that finds a checkpoint in
    the folder of its checkpoints. `{checkpoint}` is the newest file or folder there."""
    workdir: Literal["submit", "run", "checkpoints", "code"] = "submit"
    """Working directory of a `command`. `submit`: that of the submission. `run`: the run directory.
    `checkpoints`: the folder of its checkpoints. `code`: the root of the copy of the code, which runs with
    the same code share."""
    env: dict[str, Annotated[str, BeforeValidator(_text)]] = {}  # noqa: RUF012 -- pydantic copies it
    """Environment variables of every rank; they override derived ones. Values may have placeholders, such as
    `{run_dir}`, see [own-script.md](own-script.md#sweeps). The value of a secret stands in no name, record or
    command, see [submitting.md](submitting.md#secrets)."""
    secrets: NotInKey[tuple[str, ...]] = ()
    """Names of variables that are secrets, in addition to those that look like one (`HF_TOKEN`,
    `WANDB_API_KEY`). A value comes from `job.env`, else from the environment of the job."""
    binding: Literal["auto", "none"] = "auto"
    """Binding of ranks to processors in a Slurm job with several ranks on a node. `auto`: torchrun binds each
    rank to the NUMA node of its GPU, where `numactl` is installed. `none`: ranks may use all processors."""
    on_end: NotInKey[Annotated[str, Field(min_length=1), AfterValidator(_without_url)] | None] = None
    """Shell command that is called at the end of the sweep, and after a run has failed. URLs are refused,
    because `run.json` records the command: put them into environment variables."""
    on_checkpoint: NotInKey[Words] = ()
    """A script or module with arguments, which runs as a run of its own for each committed checkpoint, on one
    node: `evaluate.py {checkpoint}`. See [submitting.md](submitting.md#runs-that-follow-a-run)."""
    on_done: NotInKey[Words] = ()
    """The same, once, when the run is done: `convert.py {checkpoint_dir}`."""
    follow_up_gpus: NotInKey[PositiveInt] = 1
    """Ranks of such a run, each with a GPU where the run has one for each rank."""
    follow_up_limit_min: NotInKey[PositiveFloat] = 60.0
    """Time limit of such a run, in minutes."""
