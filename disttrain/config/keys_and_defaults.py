"""Configuration of one run: typed sections, the same for the trainer, a sweep and a job.

Imports without torch, because the login node checks a config before a job runs. Options of a model or a
data source belong to the file that builds it. `disttrain.config.builder_options` reads them from its
signature, so a new option needs no change here.
A field marked `NOT_IN_KEY` changes how a run is carried out or observed, but neither its results nor its
speed. Such a field is excluded from the run key.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from pydantic.fields import FieldInfo

from disttrain.config.dotted_keys import ABSENT, get_key, pop_key, set_default
from disttrain.config.renamed_keys import RENAMED

_Decay = Annotated[float, Field(ge=0, lt=1)]
NOT_IN_KEY: dict[str, Any] = {"not_in_key": True}
"""Marks a field that is excluded from the run key."""


class Section(BaseModel):
    """Base of every section: immutable; refuses unknown keys; the docstring under a field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class ModelConfig(Section):
    """The model. Keys other than `kind` are keyword arguments of its `build`."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    kind: str = "gpt"
    """A module of `disttrain.models` (gpt, mlp, resnet, emulated, huggingface), or
    `package.module:callable`."""
    transforms: tuple[Annotated[str, Field(pattern=r"^[\w.]+:\w+$")], ...] = ()
    """Functions from module to module, applied in this order before the strategy:
    `package.module:callable`."""


class DataConfig(Section):
    """The data source. Keys not listed here are keyword arguments of its `build`."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    kind: str = "text"
    """A module of `disttrain.data` (text, tokens, digits, synthetic), or `package.module:callable`."""
    workers: NonNegativeInt = 0
    """Loader processes per rank; 0 loads in the rank itself."""
    prefetch: PositiveInt = 2
    """Batches prefetched by each loader process; used when `workers` > 0."""


class TrainConfig(Section):
    """Length of training, batch sizes, and intervals of validation and logging."""

    steps: PositiveInt | None = None
    """Optimizer steps. Give either this or `epochs`."""
    epochs: PositiveFloat | None = None
    """Passes over the training samples, rounded up to whole steps."""
    local_batch_size: PositiveInt | None = None
    """Samples per rank and micro-step. Give this, `global_batch_size`, or both."""
    global_batch_size: PositiveInt | None = None
    """Samples per optimizer step over all ranks; sets the accumulation if `local_batch_size` is given too."""
    seed: NonNegativeInt = 0
    """Seed of the weights, the order of samples and dropout."""
    eval_every: NonNegativeInt = 0
    """Steps between validations; 0 validates once, at the end."""
    eval_samples: NonNegativeInt = 0
    """Validation samples used each time; 0 uses all of them."""
    log_every: Annotated[PositiveInt, Field(json_schema_extra=NOT_IN_KEY)] = 10
    """Steps between all-reduces of the loss for the global loss curve."""


class OptimConfig(Section):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or SGD with momentum."""
    lr: PositiveFloat = 1e-3
    """Peak learning rate, before `lr_scaling`."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of matrices and kernels; biases and norms have none."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.95)
    """Exponential decay rates of AdamW."""
    momentum: NonNegativeFloat = 0.9
    """Momentum of SGD."""
    fused: bool | None = None
    """Fused optimizer kernels; null uses them where the device supports them."""
    grad_clip: PositiveFloat | None = None
    """Global gradient norm above which gradients are clipped; null does not clip."""
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    """Learning-rate schedule after the warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up before the schedule starts."""
    final_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Final learning rate of `cosine` and `linear`, as a fraction of the peak."""
    step_every: PositiveInt | None = None
    """Steps between drops of the `step` schedule; required by that schedule and refused with any other."""
    step_factor: PositiveFloat = 0.1
    """Factor of the learning rate at each drop of the `step` schedule."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Scale `lr` by (global batch / `lr_base_batch`), or by its square root."""
    lr_base_batch: PositiveInt | None = None
    """Global batch size that `lr` was tuned for; required when `lr_scaling` is not `none`."""


class DDPConfig(Section):
    """Options of DistributedDataParallel."""

    bucket_mb: PositiveFloat | None = None
    """Gradient bucket size in MiB; null leaves PyTorch's own, 25 MiB after a first bucket of 1 MiB."""
    gradient_as_bucket_view: bool = True
    """Let gradients live inside the buckets, which saves one copy of them."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""
    find_unused_parameters: bool = False
    """Look for parameters without a gradient (costs a walk over the graph in each step)."""


class ParallelConfig(Section):
    """How the ranks work together."""

    strategy: Literal["auto", "single", "ddp"] = "auto"
    """`auto` is single on one rank and ddp on more, and says why in the log."""
    ddp: DDPConfig = DDPConfig()
    """Options of `strategy` ddp."""


class ResourcesConfig(Section):
    """Nodes, ranks and devices of the job. The world size is `nodes * gpus_per_node`."""

    nodes: PositiveInt = 1
    """Number of nodes; on the local cluster each node is a process group on this machine."""
    gpus_per_node: PositiveInt = 1
    """Ranks per node: one per GPU, or one process each on the CPU."""
    device: Literal["auto", "cpu", "cuda", "shared"] = "auto"
    """`auto`: cuda where every local rank has its own GPU, else cpu. A start ends at once if its nodes
    differ, or if a node has GPUs that CUDA does not find. `shared`: all ranks of a node use its first GPU and
    communicate through gloo; the Slurm job requests no GPU."""
    threads_per_rank: PositiveInt = 1
    """Intra-op threads per rank (`torch.set_num_threads`)."""


class JobConfig(Section):
    """Limits, retries and environment of the job."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # `OMP_PROC_BIND: 1` means the text "1"

    time_limit_min: Annotated[PositiveFloat, Field(json_schema_extra=NOT_IN_KEY)] = 60.0
    """Wall-clock limit of one attempt, in minutes."""
    max_attempts: Annotated[PositiveInt, Field(json_schema_extra=NOT_IN_KEY)] = 3
    """Failed attempts in a row without a newer checkpoint, the first included, after which a failure becomes
    final. A pre-emption and a stop by the user do not count."""
    max_requeues: Annotated[NonNegativeInt, Field(json_schema_extra=NOT_IN_KEY)] = 100
    """Largest number of automatic requeues of one Slurm job, for any cause."""
    rendezvous_timeout_s: Annotated[PositiveFloat, Field(json_schema_extra=NOT_IN_KEY)] = 120.0
    """Seconds that nodes wait for each other at the rendezvous."""
    stop_lead_s: Annotated[NonNegativeFloat, Field(json_schema_extra=NOT_IN_KEY)] = 60.0
    """Seconds before the job's time limit at which ranks stop and save. If less time than this is left when
    the ranks start, they train for three quarters of it."""
    stop_check_s: Annotated[NonNegativeFloat, Field(json_schema_extra=NOT_IN_KEY)] = 1.0
    """Seconds between the checks at which ranks agree on stop requests; 0: at every step."""
    setup_timeout_s: Annotated[PositiveFloat, Field(json_schema_extra=NOT_IN_KEY)] = 600.0
    """Seconds until the ranks train, in the first step, and after the last step, after which a rank counts as
    hung. The agent of its node ends a hung attempt."""
    step_timeout_s: Annotated[PositiveFloat, Field(json_schema_extra=NOT_IN_KEY)] = 60.0
    """Seconds in one later step after which a rank counts as hung; at least three times the 99th percentile
    of the newest thousand steps."""
    checkpoint_timeout_s: Annotated[PositiveFloat, Field(json_schema_extra=NOT_IN_KEY)] = 600.0
    """Seconds without progress, while training waits for a checkpoint, after which a rank counts as hung; at
    least three times the longest wait so far. Each tensor that the rank writes, and the flush of its file to
    disk, are progress."""
    evaluation_timeout_s: Annotated[PositiveFloat, Field(json_schema_extra=NOT_IN_KEY)] = 600.0
    """Seconds in one batch of a validation after which a rank counts as hung; at least three times the
    longest batch so far."""
    collective_timeout_s: Annotated[PositiveFloat, Field(json_schema_extra=NOT_IN_KEY)] = 900.0
    """Timeout of one collective in gloo and NCCL. Where an agent watches the ranks, the shorter timeouts
    above end a hang first."""
    stop_signal: Annotated[
        Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"], Field(json_schema_extra=NOT_IN_KEY)
    ] = "SIGTERM"
    """Signal that asks each process of a `command` to save and exit with code 0: `stop_lead_s` seconds before
    the time limit, at a pre-emption, and at `submit.py cancel --graceful`."""
    env: dict[str, str] = {}
    """Environment variables of every rank; they override derived ones."""
    on_end: Annotated[str | None, Field(min_length=1, json_schema_extra=NOT_IN_KEY)] = None
    """Shell command that is called at the end of the sweep, and after a run has failed. URLs are refused,
    because `run.json` records the command: put them into environment variables."""


class TelemetryConfig(Section):
    """What is measured and where it goes."""

    warmup_steps: NonNegativeInt = 10
    """Steps left out of every throughput and latency figure (they are recorded all the same)."""
    profiled_steps: Annotated[NonNegativeInt, Field(json_schema_extra=NOT_IN_KEY)] = 8
    """Steps taken under PyTorch's profiler to time each collective: evenly spread over the run, at most one
    in 20. The figures leave them out. 0: none."""
    layer_passes: NonNegativeInt = 0
    """Passes after the last step in which each layer is timed, for `submit.py emulate`; they belong to no
    step and to no figure. 0: none."""
    full_records: Annotated[NonNegativeInt, Field(json_schema_extra=NOT_IN_KEY)] = 100_000
    """Steps of a run, the first ones, that get a line of their own in the step records; after them, a hundred
    steps share one, which keeps sums, extremes and the distribution."""
    flush_every_s: Annotated[PositiveFloat, Field(json_schema_extra=NOT_IN_KEY)] = 5.0
    """Seconds between writes of step records and of `metrics.json`."""
    gpu_every_s: Annotated[NonNegativeFloat, Field(json_schema_extra=NOT_IN_KEY)] = 1.0
    """Seconds between samples of the GPUs, and of the ranks' processes; 0 takes none."""
    sinks: Annotated[tuple[str, ...], Field(json_schema_extra=NOT_IN_KEY)] = ("tensorboard",)
    """Extra sinks: modules of `disttrain.telemetry.sinks`, or `package.module:Class`."""


class ProfileConfig(Section):
    """A trace of some steps by PyTorch's profiler, and what is in it beside our own figures."""

    steps: Annotated[tuple[PositiveInt, PositiveInt] | None, Field(json_schema_extra=NOT_IN_KEY)] = None
    """First and last step of the trace. They are left out of all figures."""
    ranks: Annotated[tuple[NonNegativeInt, ...], Field(json_schema_extra=NOT_IN_KEY)] = (0,)
    """Ranks that are traced."""


class CheckpointConfig(Section):
    """Intervals, location and retention of checkpoints.

    A run saves a checkpoint on every stop request, also without an interval.
    """

    every_steps: PositiveInt | None = None
    """Steps between checkpoints."""
    every_s: PositiveFloat | None = None
    """Seconds between checkpoints; with `every_steps`, the earlier of both."""
    best: bool = True
    """With an interval: also save after each validation with the lowest loss so far."""
    keep: Annotated[PositiveInt, Field(json_schema_extra=NOT_IN_KEY)] = 2
    """Number of newest checkpoints kept; the one with the lowest validation loss is kept in addition."""
    dir: Annotated[str | None, Field(json_schema_extra=NOT_IN_KEY)] = None
    """Folder of checkpoints, with a subfolder `<sweep>/<run>` for each run; null: `checkpoints` of the run
    directory."""
    asynchronous: bool = True
    """Write files while training continues; training waits only for the copy to host memory."""
    start_from: str | None = None
    """Path of a checkpoint folder that a new run starts from."""
    start_with: Literal["all", "model"] = "all"
    """`all`: continue from that step with model, optimizer and random state. `model`: load the model alone
    and begin at step 1."""

    @property
    def regular(self) -> bool:
        """Whether checkpoints are taken at intervals."""
        return self.every_steps is not None or self.every_s is not None


def _words(value: Any) -> Any:
    """The words of a command that is given as one line."""
    if isinstance(value, str):
        return shlex.split(value)
    if isinstance(value, list | tuple):
        return [str(word) if isinstance(word, int | float) else word for word in value]
    return value


OF_A_COMMAND = ("command", "resources", "job")
"""Keys and sections that a run with a `command` has; the others configure this project's trainer."""


class Config(Section):
    """Full configuration of one run."""

    command: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    """A script of your own and its arguments, in place of this project's trainer, as one line or as a list:
    `train.py --lr 3e-4`, or `-m package.train --lr 3e-4`. See [own-script.md](own-script.md)."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    parallel: ParallelConfig = ParallelConfig()
    resources: ResourcesConfig = ResourcesConfig()
    job: JobConfig = JobConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    profile: ProfileConfig = ProfileConfig()

    @property
    def world_size(self) -> int:
        return self.resources.nodes * self.resources.gpus_per_node

    @property
    def emulated(self) -> bool:
        """Whether compute or data loading is replaced by waits."""
        return is_emulated(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """The config as plain JSON types: the sections of a `command`, or those of the trainer."""
        plain = self.model_dump(mode="json")
        if self.command:
            return {name: plain[name] for name in OF_A_COMMAND}
        del plain["command"]
        return plain


def is_emulated(config: dict[str, Any]) -> bool:
    """`Config.emulated` for a config as plain data."""
    model, data = config.get("model") or {}, config.get("data") or {}
    return model.get("kind") == "emulated" or bool(data.get("delay_s"))


def asks_for_gpus(device: str) -> bool:
    """Whether `resources.device` means a GPU for each rank, where a job gets what it asks for."""
    return device not in ("cpu", "shared")


def model_waits(config: Config) -> bool:
    """Whether emulated compute sleeps instead of occupying a processor."""
    model = config.model
    return model.kind == "emulated" and (model.model_extra or {}).get("work", "wait") == "wait"


def is_excluded_from_key(field: FieldInfo) -> bool:
    """Whether the field is marked `NOT_IN_KEY`."""
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("not_in_key"))


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds; None for a plain value."""
    held = field.annotation
    return held if isinstance(held, type) and issubclass(held, Section) else None


def config_fields(section: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted key and field of every value in the config tree, nested sections included.

    Options of models and data sources are not among them.
    """
    for name, field in section.model_fields.items():
        nested = section_of(field)
        if nested is None:
            yield f"{prefix}{name}", field
        else:
            yield from config_fields(nested, f"{prefix}{name}.")


def keyed_values(config: Config) -> dict[str, Any]:
    """The config as plain data without the fields that are excluded from the run key."""
    plain = config.as_dict()
    for key in _excluded_keys():
        if key.partition(".")[0] in plain:
            pop_key(plain, key)
    return plain


@functools.cache
def _excluded_keys() -> tuple[str, ...]:
    return tuple(key for key, field in config_fields() if is_excluded_from_key(field))


def under_first_names(values: dict[str, Any]) -> dict[str, Any]:
    """Keyed values as they were before keys were renamed or added, so that the key of a config stays the
    same."""
    for old, new in RENAMED.items():
        if get_key(values, new, ABSENT) is not ABSENT:
            set_default(values, old, pop_key(values, new))
    if "parallel" not in values:  # a `command`
        return values
    if not values["parallel"]["ddp"]:
        del values["parallel"]["ddp"]
    if not values["model"]["transforms"]:
        del values["model"]["transforms"]
    return values


def config_key(config: Config, repeat: int = 0) -> str:
    """`hash_values` of the keyed values: equal for runs that compute the same."""
    return hash_values(under_first_names(keyed_values(config)), repeat)


def hash_values(values: dict[str, Any], repeat: int = 0) -> str:
    """SHA-256 over plain data and the repeat: 12 hex digits."""
    text = json.dumps([values, repeat], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
