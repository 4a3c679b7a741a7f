"""Summary of a run (`metrics.json`) and its parts."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record
from disttrain.records.checkpoint import BatchFit
from disttrain.records.communication import CommSummary
from disttrain.records.dataset import DatasetRecord
from disttrain.records.exit_causes import StopCause
from disttrain.records.hardware import GpuSummary, ProcessSummary


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
    samples: int | None = None
    """Null: unknown, of a training loop of the user."""
    elapsed_s: float


class GradNormPoint(Record):
    step: int
    grad_norm: float | None
    """L2 norm of the gradients of the global batch, before clipping; null if not finite."""


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
    """`stopped`: the run saved a checkpoint and exited before its last step."""
    stop_cause: StopCause | None = None
    """Cause of the stop; null unless `status` is `stopped`."""
    emulated: bool = False
    """Whether compute or data loading was replaced by waits."""
    emulation_late_s: float | None = None
    """Timing error of the emulation: mean seconds per step by which emulated passes ended late, on the worst
    rank. Null where it is unknown."""
    updated: str

    nodes: int
    ranks_per_node: int
    world_size: int
    device: str
    """Name of the device, or `cpu`."""
    backend: str | None
    """Process-group backend; null for a single process."""
    torch: str
    nccl: str | None
    cpu_count: int | None
    """Null for ingested runs."""
    oversubscribed: bool
    """More busy threads than processors on one host, or several computing ranks on one GPU: timings then do
    not measure scaling."""
    strategy: str | None
    strategy_reason: str
    precision: str | None = None
    """Precision of the compute: `fp32`, `tf32`, `bf16` or `fp16`; null for a training loop of the user."""
    precision_reason: str | None = None
    """Reason for `precision`."""
    model: str
    parameters: int | None
    """Null for ingested runs."""
    dataset: DatasetRecord | None
    """Null for a training loop of the user, whose data is unknown."""
    model_flops_per_sample: int | None
    """FLOPs of training on one sample; null where they could not be counted."""
    flops_method: str | None
    """Counting method of `model_flops_per_sample`."""

    steps: int
    """Completed optimizer steps."""
    steps_total: int
    """Planned steps, or steps that a training loop of the user announced; such a loop may make fewer or
    more."""
    local_batch_size: int
    accumulation: int
    global_batch_size: int
    batch_fit: BatchFit | None = None
    """The search of `train.local_batch_size: auto`; null for a given size."""
    seconds_total: float
    """Wall time of the training loop on rank 0 in seconds, validation included. Of earlier attempts it covers
    the steps that were kept."""
    gap_s: float | None = None
    """The part of `seconds_total` between the steps, outside of every step: profiling, validation, waiting
    for a checkpoint. No figure of throughput contains it. Null for an ingested run."""
    resumed_step: int | None = None
    """Step of the checkpoint that this attempt resumed from; null for a start at step 1."""
    checkpoint_step: int | None = None
    """Step of the newest checkpoint committed by this attempt."""
    checkpoints_failed: int = 0
    """Failed checkpoints of this attempt; training continued."""

    warmup_steps: int
    """Steps after each start that the figures below exclude."""
    sampled_steps: int = 0
    """Excluded steps that ran under the profiler."""
    left_out: list[tuple[int, int]] = []
    """First and last step of each range of excluded steps."""
    measured_steps: int
    measured_s: float | None
    """Sum of the measured steps, mean over ranks."""
    samples_per_s: float | None
    """Global samples of the measured steps / `measured_s`."""
    samples_per_s_per_rank: float | None
    """`samples_per_s` / ranks."""
    tokens_per_s: float | None
    """Tokens of all ranks; null where samples are not token sequences."""
    model_flops_per_s_per_rank: float | None
    """`model_flops_per_sample` x `samples_per_s_per_rank`."""
    step_time: StepTime | None
    composition: dict[str, float | None]
    """Mean seconds of a measured step by phase."""
    comm_method: str | None
    """Method that measured exposed communication; null without communication."""
    comm_split: str | None = None
    """Method that divided it into wait and transfer."""
    comm: CommSummary | None = None
    """Collectives of profiled steps; null without any."""
    communication_time_per_step: float | None = None
    """`comm.total_s`: seconds of a step with a collective in progress."""
    communication_overhead_percent: float | None = None
    """100 x exposed communication / step time, mean over ranks."""
    communication_computation_ratio: float | None = None
    """Exposed communication / compute, mean over ranks."""
    communication_computation_history: list[RatioPoint] = []
    """That ratio for steps of rank 0, at most 1,000."""
    peak_memory_bytes: int | None
    """Allocated on the device, or resident set of a CPU rank: maximum over ranks."""

    peak_reserved_memory_bytes: int | None = None
    """Reserved by torch's allocator: maximum over ranks; null on CPU."""
    compute_dtypes: dict[str, str] | None = None
    """Dtype of matrix products and convolutions, or `tf32`."""
    peak_flops: float | None = None
    """Dense peak of one device for these dtypes."""
    peak_source: str | None = None
    """Source of `peak_flops`."""
    mfu: float | None = None
    """Model FLOP/s of all ranks / (`peak_flops` x devices)."""

    samples_per_second_per_gpu: float | None = None
    """`samples_per_s` / GPUs; a shared GPU counts once, a CPU rank as one."""
    throughput_images_per_sec: float | None = None
    """`samples_per_s` of images to classify."""
    tokens_per_s_per_rank: float | None = None
    """`tokens_per_s` / ranks."""
    tokens_per_s_per_gpu: float | None = None
    """`tokens_per_s` / GPUs."""
    gpu_memory_utilization: float | None = None
    """Largest share of a device's memory reserved by torch."""
    training_time: float | None = None
    """Another name of `seconds_total`."""
    gpu: GpuSummary | None = None
    """Summary of the GPU samples."""
    processes: ProcessSummary | None = None
    """Summary of the process samples."""
    null_reasons: dict[str, str] = {}
    """Reasons for null figures, by name (`gpu.energy_j`: of `gpu`)."""

    skipped_steps: int = 0
    """Steps whose update was skipped, because the gradient norm was not finite."""
    grad_norm_history: list[GradNormPoint] = []
    """Gradient norm, at most 1,000 points."""
    loss_history: list[LossPoint]
    """Training loss, at most 1,000 points with the first and the last."""
    eval_history: list[EvalPoint]
