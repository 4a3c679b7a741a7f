"""What a run leaves behind: one model per file of the run directory.

JSON schemas in `docs/schemas/` are generated from these. A field's name carries its unit; a field that
may be absent is null, never zero. Imports without torch.
"""

from __future__ import annotations

from typing import Any, Literal

from disttrain.record import SCHEMA_VERSION as SCHEMA_VERSION
from disttrain.record import Record as Record
from disttrain.samples import GpuSample, GpuUsage, HostSample, NodeGpus, ProcessUsage

CLASSES = (
    "compute_s",
    "input_s",
    "comm_wait_s",
    "comm_transfer_s",
    "optimizer_s",
    "checkpoint_s",
    "other_s",
)
"""The parts every step is divided into, without gap or overlap; they sum to `step_s`."""

Cause = Literal[
    "finished",  # trained to the last step
    "refused",  # bad config or wrong world size, found at start: retrying cannot help
    "crashed",  # a rank raised
    "out_of_memory",
    "killed",  # a process ended by a signal that nobody here sent
    "timeout",  # job.time_limit_min was reached
    "cancelled",  # the user asked, and it was ended at once
    "stopped",  # the user asked by a STOP file: it saved and left
    "deadline",  # its time was nearly up: it saved and left
    "preempted",  # a signal asked it to leave: it saved and left
    "lost",  # the agent vanished without a word (machine restarted, kill -9)
    "launch_failed",  # torchrun or the rendezvous did not come up
]
"""Why an attempt ended."""

Next = Literal["requeue"] | None

StopCause = Literal["preempted", "deadline", "stopped"]
"""The causes for which ranks agree to leave in good order, the one that wins last."""


class Code(Record):
    """The code a run was planned with."""

    hash: str
    """Hash of the sources of `disttrain/` and `jobs/`: 12 hex digits."""
    git_commit: str | None = None
    git_dirty: bool | None = None
    git_diff: str | None = None
    """Uncommitted changes to tracked files, as `git diff` prints them (at most 256 KiB)."""
    snapshot: Literal["git", "files"] | None = None
    """What the copy of the code that jobs run was made of: the files that git tracks, or those of the
    installed packages. Null for a trainer started without a job: it runs the code as it is."""
    path: str | None = None
    """That copy, below the runs folder."""
    source: str | None = None
    """What it is a copy of; modules that it does not hold are looked for there last."""
    taken: Literal["submission", "start"] | None = None
    """When: at `start` (`sbatch jobs/train.sbatch`) changes made while the job waited are in it."""
    not_covered: list[str] = []
    """Modules that the config names and that are not in the copy: a change to them changes the run."""


class Provenance(Record):
    """Where and with what a run was planned."""

    created: str
    """UTC, ISO 8601."""
    host: str
    user: str | None = None
    python: str
    packages: dict[str, str]
    """Versions of the packages that matter, by name."""
    code: Code
    argv: list[str]
    """The command that planned it, secrets masked."""


class RunRecord(Record):
    """`run.json`: everything needed to start this run; written before submission.

    A retry leaves it as it is unless what it says changes, provenance aside (other code or another copy of
    it, another cluster, a raised limit); the former one is then kept as `attempts/NNN/run.json` of the last
    attempt made with it.
    """

    name: str
    sweep: str
    run_key: str
    """Hash of what the run computes and the code it does it with: config, shape, repeat, code."""
    config_key: str
    """The same without the code."""
    repeat: int
    config: dict[str, Any]
    """The full resolved config; both batch sizes are given in it."""
    axes: dict[str, Any]
    """The swept keys and this run's value of each."""
    cluster: Literal["local", "slurm"]
    profile: dict[str, Any] | None = None
    """The site profile it is submitted with, in full (`docs/schemas/site-profile.json`); null where there is
    none, as on the local cluster."""
    provenance: Provenance


class EnvVariable(Record):
    """One environment variable added to the ranks."""

    value: str
    reason: str
    source: Literal["derived", "config", "site"]


class EnvRecord(Record):
    """`env.json`: the environment added to the job. Values of secret-looking names are masked."""

    variables: dict[str, EnvVariable]


class SweepRecord(Record):
    """`sweep.json`, in the sweep's folder: the base that every run of this sweep shares."""

    name: str
    base: dict[str, Any]
    """The config before axes are laid over it, with `scaling`."""
    created: str


class AttemptRecord(Record):
    """`attempts/NNN/attempt.json`: one start of the run and how it ended."""

    attempt: int
    submission: int
    """The submission (see `jobs.ledger`) that this attempt claimed."""
    cluster: Literal["local", "slurm"]
    job_id: str | None
    nodes: list[str]
    host: str
    """Where node 0's agent (or the local supervisor) runs."""
    pid: int
    pid_started: float
    """Start time of that process since the epoch, so that a recycled pid is not mistaken for it."""
    restart: int = 0
    """How often its Slurm job had been started before: one job id goes through all requeues."""
    checkpoint_before: int | None = None
    """Step of the newest checkpoint when it started; null if there was none."""
    checkpoint_after: int | None = None
    """Step of the newest checkpoint when it ended."""
    code_hash: str
    cpu_count: int
    """Processors this attempt's ranks could use, on the first node."""
    submitted: str | None = None
    started: str
    ended: str | None = None
    cause: Cause | None = None
    message: str | None = None
    """One line: what went wrong, with the rank it began on."""
    exit_codes: dict[str, int] = {}
    """Exit code of each node's torchrun, by node rank."""
    next: Next = None


class Interface(Record):
    """A network interface that is up, loopback aside."""

    name: str
    speed_mbit: int | None = None
    """Null where the driver does not say, as of most virtual ones."""
    driver: str | None = None


class Fabric(Record):
    """A device for remote memory access: InfiniBand, RoCE, EFA."""

    name: str
    port: int
    link_layer: str | None = None
    """`InfiniBand` or `Ethernet`."""
    state: str | None = None
    rate: str | None = None
    """As the driver prints it."""
    firmware: str | None = None
    driver: str | None = None


class Gpu(Record):
    name: str
    memory_bytes: int
    pci_id: str
    uuid: str


class NodeRecord(Record):
    """`attempts/NNN/node-NN.json`: what a node was made of when an attempt started on it. What could not be
    found out is null or empty."""

    node: int
    """Its rank in the job."""
    host: str
    taken: str
    kernel: str | None = None
    processor: str | None = None
    """Its model, as the kernel names it."""
    processors_usable: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """Of the job's control group; null where there is none."""
    interfaces: list[Interface] = []
    fabrics: list[Fabric] = []
    driver: str | None = None
    """NVIDIA driver; null without one."""
    gpus: list[Gpu] = []
    """Those that this job may use."""
    packages: dict[str, str] = {}
    """Versions of torch and what it brings for the GPU, as installed: NCCL, CUDA, cuDNN."""
    slurm: dict[str, str] = {}
    """The variables by which Slurm describes the job, secrets masked."""
    scontrol: str | None = None
    """`scontrol show job -d`, masked; on node 0 of a Slurm job."""


class Outcome(Record):
    """`DONE` or `FAILED`: how the run ended."""

    cause: Cause
    attempt: int
    message: str | None = None
    ended: str
    retryable: bool
    """Whether the same command, given again, may start it again."""
    next: Next = None
    """`requeue`: its job was to be started again by itself, so this is not the end."""


class UsedStart(Record):
    """One start of a run's job, and the wait before it."""

    job_id: str | None
    submitted: str | None
    """UTC, ISO 8601: submission, or requeue: the end of the start before."""
    started: str
    ended: str
    """Of a start that nobody ended: the last sign of life."""
    elapsed_s: float
    devices: int
    """GPUs it held, or where it had none, ranks."""


class Usage(Record):
    """`usage.json`: what a run used according to Slurm's accounting, once it is over. Without this file the
    attempts' own times tell."""

    source: Literal["sacct", "timestamps"]
    unit: Literal["GPU-hours", "CPU rank-hours"]
    hours: float
    """Of all starts together."""
    queue_wait_s: float | None
    """Before all starts together; null where no submission is known."""
    attempts: int
    """Attempts that had been made when this was counted."""
    starts: list[UsedStart]


class RankError(Record):
    """`error-RRRRR.json`: what a rank raised."""

    rank: int
    time: float
    """Seconds since the epoch; the earliest one is taken for the cause."""
    kind: str
    message: str
    cause: Cause
    traceback: str


class Progress(Record):
    """`progress.json`: live state, rewritten by rank 0 every few seconds."""

    attempt: int
    step: int
    steps: int
    emulated: bool = False
    """As `Metrics.emulated`."""
    samples_per_s: float | None
    loss: float | None
    eta_s: float | None
    gpu_utilization: float | None = None
    """Share of the time in which a kernel ran, mean over the GPUs of rank 0's node (the next two as well);
    null where NVML does not tell."""
    gpu_memory_used_bytes: float | None = None
    gpu_power_w: float | None = None
    cpu_percent: float | None = None
    """Processors busy with a rank, in percent of one: mean over the ranks of rank 0's node."""
    rss_bytes: float | None = None
    """Resident memory of a rank, likewise."""
    updated: float
    """Seconds since the epoch."""


class Step(Record):
    """One line of `steps-RRRRR.jsonl`: one optimizer step on one rank. Seconds unless named otherwise."""

    step: int
    """1 is the first."""
    start_s: float
    """Since this rank's loop began, monotonic."""
    step_s: float
    compute_s: float
    input_s: float
    comm_wait_s: float | None
    """Of the communication that compute waited for: until the last rank had come to it. Null where it is not
    measured (see `Metrics.comm_method`), or where the run ended before the ranks had compared."""
    comm_transfer_s: float | None
    """The rest of it: bytes on their way while all ranks waited. Null as `comm_wait_s` is."""
    comm_exposed_s: float | None
    """Both together, as this rank alone measures it."""
    optimizer_s: float
    checkpoint_s: float
    other_s: float
    samples: int
    """Samples this rank trained on in this step."""
    loss: float | None
    """Mean loss over this rank's own samples; null if it was not finite."""
    lr: float


class StepWindow(Record):
    """One line of `steps-RRRRR.jsonl` of a long run: consecutive steps on one rank put together.

    After `telemetry.full_records` steps of an attempt, its lines are of this kind, but for sampled steps.
    """

    first: int
    last: int
    steps: int
    """How many are in it: all from the first to the last but sampled ones."""
    start_s: float
    """When the first of them began, since this rank's loop began."""
    step_s: float
    """Sum, as the classes below are."""
    compute_s: float
    input_s: float
    comm_wait_s: float | None
    comm_transfer_s: float | None
    comm_exposed_s: float | None
    optimizer_s: float
    checkpoint_s: float
    other_s: float
    shortest_s: float
    shortest_step: int
    longest_s: float
    longest_step: int
    bins: list[tuple[int, int]]
    """Distribution of the steps' durations: (i, count) for those in [1.01^i, 1.01^(i+1)) seconds."""
    samples: int
    loss: float | None
    """Mean over the steps."""
    lr: float
    """Of the last step."""


class Histogram(Record):
    """Counts between consecutive edges; `edges_s` has one entry more than `counts`."""

    edges_s: list[float]
    counts: list[int]


class StepTime(Record):
    """Distribution of the optimizer step's duration over measured steps of rank 0."""

    mean_s: float
    std_s: float
    min_s: float
    max_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    histogram: Histogram


class LossPoint(Record):
    step: int
    loss: float | None
    """Mean over the global batch (train) or over the validation samples (eval)."""


class EvalPoint(LossPoint):
    metrics: dict[str, float | None]
    """By task: `bits_per_byte`; or `accuracy`, a share between 0 and 1."""
    samples: int
    elapsed_s: float


class Dataset(Record):
    """What was trained on, by version and content, never by path."""

    name: str
    version: str | None
    sha256: str | None
    train_samples: int
    valid_samples: int
    bytes: int | None = None
    unigram_entropy_bits: float | None = None
    """Text: entropy of the training split's bytes taken one by one, in bits per byte."""


class SampledCollective(Record):
    """One collective operation of a sampled step, as one rank saw it."""

    kind: str
    """`all_reduce`, `all_gather`, ..."""
    bucket: int
    """Number among those of its kind in this step, by their begin."""
    bytes: int | None
    """Of the larger of input and output on one rank; null where the profiler does not tell."""
    start_s: float
    """Since the step began."""
    duration_s: float
    """Queueing and waiting for peers included."""
    hidden_s: float
    """While this rank computed."""
    exposed_s: float


class CommSample(Record):
    """One line of `comm-RRRRR.jsonl`: one rank's communication in one sampled step.

    Collectives may run at the same time: totals are of merged intervals, never sums of durations.
    """

    step: int
    step_s: float
    compute_s: float
    total_s: float
    """While any collective was on its way."""
    hidden_s: float
    """While one was on its way and this rank computed."""
    exposed_s: float
    """`total_s` - `hidden_s`."""
    collectives: list[SampledCollective]


class CollectiveSummary(Record):
    """One collective of a step: means over sampled steps and ranks."""

    kind: str
    bucket: int
    bytes: int | None
    total_s: float
    hidden_s: float
    exposed_s: float
    transfer_s: float
    """The least over ranks, mean over steps: the rank that came last waited for nobody."""
    algorithm_bytes_per_s: float | None
    """`bytes` / `transfer_s`."""
    bus_bytes_per_s: float | None
    """Comparable with a link's rate: algorithm bandwidth x 2(N-1)/N for an all-reduce over N ranks,
    x (N-1)/N for all-gather and reduce-scatter, as nccl-tests defines it."""


class CommSummary(Record):
    """Communication of a step: means over sampled steps and ranks."""

    method: str
    sampled_steps: int
    count: int
    """Collectives in a step."""
    bytes: int | None
    """Moved by them on one rank, each counted as in `CollectiveSummary.bytes`."""
    total_s: float
    hidden_s: float
    exposed_s: float
    compute_s: float
    bus_bytes_per_s: float | None
    """All bus bytes of a step over the least time, over ranks, that any collective was on its way."""
    collectives: list[CollectiveSummary]


class Breakdown(Record):
    """Seconds of one step; null where that instrument cannot see it."""

    step_s: float | None
    compute_s: float | None
    comm_s: float | None
    """While any collective was on its way."""
    hidden_s: float | None
    """While one was on its way and this rank computed."""
    exposed_s: float | None
    """While this rank waited for one."""


class ProfiledStep(Record):
    step: int
    profiler: Breakdown
    clock: Breakdown | None
    """Null where the run broke off before the step was recorded."""
    difference: Breakdown | None
    """Clock less profiler."""


class ProfileRecord(Record):
    """`profile-RRRRR.json`: traced steps of one rank as the profiler saw them and as the step clock did."""

    rank: int
    steps: list[ProfiledStep]


class RatioPoint(Record):
    step: int
    ratio: float | None


class Metrics(Record):
    """`metrics.json`: the summary that analysis reads; rewritten at intervals, final at the end."""

    name: str
    sweep: str
    run_key: str
    attempt: int
    status: Literal["running", "completed", "stopped", "failed"]
    """`stopped`: asked to leave before the end, it saved its state first."""
    stop_cause: StopCause | None = None
    """Why it stopped; null unless it did."""
    emulated: bool = False
    """Something in it was waited for instead of done: compute, or the loading of data."""
    emulation_late_s: float | None = None
    """Mean seconds per step by which emulated passes ended later than their table says, on the worst rank:
    the error of the emulation. Null where it is not known."""
    updated: str

    nodes: int
    ranks_per_node: int
    world_size: int
    device: str
    """As the device names itself, or `cpu`."""
    backend: str | None
    """Process-group backend; null for a single process."""
    torch: str
    nccl: str | None
    cpu_count: int
    oversubscribed: bool
    """More busy threads than processors on one host, or several computing ranks on one GPU: timings tell
    about the host, not about scaling."""
    strategy: str
    strategy_reason: str
    model: str
    parameters: int
    dataset: Dataset
    model_flops_per_sample: int | None
    """FLOPs that the model needs to train on one sample; null where they could not be counted."""
    flops_method: str | None
    """How they were counted."""

    steps: int
    """Steps done."""
    steps_total: int
    local_batch_size: int
    accumulation: int
    global_batch_size: int
    seconds_total: float
    """Wall time of the training loop so far on rank 0, validation included; of earlier attempts, that of the
    steps that were kept."""
    resumed_step: int | None = None
    """Step of the checkpoint that this attempt went on from; null if it began at the beginning."""
    checkpoint_step: int | None = None
    """Step of the newest checkpoint that this attempt finished."""
    checkpoints_failed: int = 0
    """Checkpoints of this attempt that could not be written; training went on."""

    warmup_steps: int
    """Steps left out of the figures below: the first ones after each start."""
    sampled_steps: int = 0
    """Steps left out because they were taken under the profiler."""
    left_out: list[tuple[int, int]] = []
    """First and last step of each stretch of steps that were left out."""
    measured_steps: int
    measured_s: float | None
    """Sum of the measured steps' durations, mean over ranks."""
    samples_per_s: float | None
    """Global samples of the measured steps / `measured_s`: a ratio of sums."""
    samples_per_s_per_rank: float | None
    tokens_per_s: float | None
    """Null where samples are no token sequences."""
    model_flops_per_s_per_rank: float | None
    """Achieved: `model_flops_per_sample` x `samples_per_s_per_rank`."""
    step_time: StepTime | None
    composition: dict[str, float | None]
    """Mean seconds per measured step in each class of `CLASSES`, over ranks and steps."""
    comm_method: str | None
    """How exposed communication was measured; null when there is none to measure."""
    comm_split: str | None = None
    """How it was divided into wait and transfer."""
    comm: CommSummary | None = None
    """Collectives, hidden ones too, from sampled steps; null without communication or samples."""
    communication_time_per_step: float | None = None
    """`comm.total_s`: seconds a step in which any collective was on its way, hidden ones included."""
    communication_overhead_percent: float | None = None
    """100 x exposed communication / step time, over the measured steps, mean over ranks."""
    communication_computation_ratio: float | None = None
    """Exposed communication / compute, over the measured steps, mean over ranks."""
    communication_computation_history: list[RatioPoint] = []
    """The same of each measured step of rank 0, thinned evenly to at most 1,000 points."""
    peak_memory_bytes: int | None
    """Largest over ranks: allocated on the device, or resident set of a CPU rank."""

    peak_reserved_memory_bytes: int | None = None
    """Largest over ranks: what torch's allocator held of the device, unused parts included; null on CPU."""
    compute_dtypes: dict[str, str] | None = None
    """What matmuls and convolutions are computed in: the weights' dtype, or `tf32` where torch may use it
    for float32."""
    peak_flops: float | None = None
    """Dense FLOP/s that one device reaches at most on this model's mix of work, from `disttrain.peaks`."""
    peak_source: str | None = None
    """Where that figure is from."""
    mfu: float | None = None
    """Model FLOPs utilisation: model FLOP/s of all ranks / (`peak_flops` x devices)."""

    samples_per_second_per_gpu: float | None = None
    """`samples_per_s` / devices; a CPU rank counts as one."""
    throughput_images_per_sec: float | None = None
    """`samples_per_s` where a sample is an image (channels, height, width) to classify."""
    tokens_per_s_per_rank: float | None = None
    gpu_memory_utilization: float | None = None
    """Share of the device's memory that torch held at its peak: `max_memory_reserved` / total, the largest
    over ranks."""
    training_time: float | None = None
    """Seconds in the training loop, validation included: `seconds_total` by another name."""
    gpu: GpuUsage | None = None
    """What NVML told."""
    processes: ProcessUsage | None = None
    """What the operating system told of the ranks' processes."""
    null_reasons: dict[str, str] = {}
    """Why a figure above is null, by its name (`gpu.energy_j` is `energy_j` of `gpu`)."""

    loss_history: list[LossPoint]
    """Thinned evenly to at most 1,000 points; the first and last are always there."""
    eval_history: list[EvalPoint]


class LayerTime(Record):
    """One module that has parameters of its own."""

    name: str
    bytes: int
    """Of its parameters that are trained."""
    forward_s: float
    """From the end of the layer before, or of what began the pass, to its own."""
    backward_s: float
    """From the last gradient of the layer before to its own last gradient."""


class Layers(Record):
    """`layers.json`: what each layer took on rank 0, means over passes that were made after the last step.

    Each pass is cut where a layer ends, so the layers' seconds sum to it: what has no parameters counts to
    the layer that ends next, the loss to the last one.
    """

    attempt: int
    device: str
    emulated: bool
    passes: int
    samples: int
    """In each pass."""
    dtype_bytes: int
    """Of one parameter."""
    layers: list[LayerTime]
    """In the reverse of the order in which their gradients were ready."""


class CheckpointFile(Record):
    bytes: int
    sha256: str


class Checkpoint(Record):
    """`checkpoints/step-NNNNNNNN/manifest.json`: what a checkpoint is of, and what its files must hold."""

    step: int
    """Optimizer steps done."""
    attempt: int
    """The attempt that wrote it."""
    config_key: str
    """Of the run (see `RunRecord.config_key`)."""
    code_hash: str | None = None
    """Of the code that wrote it (see `Code.hash`)."""
    world_size: int
    global_batch_size: int
    seed: int
    dataset_sha256: str | None
    dataset: str
    valid_loss: float | None
    """If it was validated at this very step."""
    created: str
    torch: str
    files: dict[str, CheckpointFile]
    """By name, all but this one."""


FILES: dict[str, type[Record]] = {
    "run": RunRecord,
    "env": EnvRecord,
    "sweep": SweepRecord,
    "attempt": AttemptRecord,
    "node": NodeRecord,
    "outcome": Outcome,
    "usage": Usage,
    "rank-error": RankError,
    "progress": Progress,
    "step": Step,
    "step-window": StepWindow,
    "gpu-devices": NodeGpus,
    "gpu-sample": GpuSample,
    "host-sample": HostSample,
    "comm-sample": CommSample,
    "profile": ProfileRecord,
    "metrics": Metrics,
    "layers": Layers,
    "checkpoint": Checkpoint,
}
"""Schema name to record: what `docs/schemas/` holds."""
