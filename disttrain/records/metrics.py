"""The summary of a run, and what it is made of."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from disttrain.records.base import Record
from disttrain.records.causes import StopCause
from disttrain.records.communication import CommSummary
from disttrain.records.dataset import DatasetRecord
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
    samples: int
    elapsed_s: float


class RatioPoint(Record):
    step: int
    ratio: float | None


FORMER_FIELDS = frozenset({"comm_check", "calibration_passes"})
"""Fields that earlier versions wrote; readers drop them."""


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
    dataset: DatasetRecord
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
    """`samples_per_s` / ranks, also where several ranks share a GPU."""
    tokens_per_s: float | None
    """Null where samples are no token sequences."""
    model_flops_per_s_per_rank: float | None
    """Achieved: `model_flops_per_sample` x `samples_per_s_per_rank`."""
    step_time: StepTime | None
    composition: dict[str, float | None]
    """Mean seconds per measured step in each class of `PHASES`, over ranks and steps."""
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
    """Peak dense FLOP/s of one device on this model's mix of dtypes, from `disttrain.flops.peaks`."""
    peak_source: str | None = None
    """Where that figure is from."""
    mfu: float | None = None
    """Model FLOPs utilisation: model FLOP/s of all ranks / (`peak_flops` x devices)."""

    samples_per_second_per_gpu: float | None = None
    """`samples_per_s` / GPUs, each counted once however many ranks share it; a CPU rank counts as one."""
    throughput_images_per_sec: float | None = None
    """`samples_per_s` where a sample is an image (channels, height, width) to classify."""
    tokens_per_s_per_rank: float | None = None
    """`tokens_per_s` / ranks."""
    tokens_per_s_per_gpu: float | None = None
    """`tokens_per_s` / GPUs, counted as for `samples_per_second_per_gpu`."""
    gpu_memory_utilization: float | None = None
    """Share of a device's memory that torch held at its peak: `max_memory_reserved` of all ranks on it /
    total, the largest over devices."""
    training_time: float | None = None
    """Seconds in the training loop, validation included: `seconds_total` by another name."""
    gpu: GpuSummary | None = None
    """What NVML told."""
    processes: ProcessSummary | None = None
    """What the operating system told of the ranks' processes."""
    null_reasons: dict[str, str] = {}
    """Why a figure is null, by its name (`gpu.energy_j` is `energy_j` of `gpu`). Without a reason only facts
    are null, where there is no such thing: `stop_cause`, `backend`, `nccl`, `resumed_step`, `checkpoint_step`
    and what is in `dataset`."""

    loss_history: list[LossPoint]
    """Thinned evenly to at most 1,000 points; the first and last are always there."""
    eval_history: list[EvalPoint]

    @model_validator(mode="before")
    @classmethod
    def _without_former_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name not in FORMER_FIELDS}
