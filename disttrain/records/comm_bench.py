"""Record of the communication benchmark."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from disttrain.records.base import Record


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Timing(_Part):
    """A duration over repeats after the warm-up, in seconds."""

    median_s: float
    low_s: float | None
    """Lower end of the 95 % interval of the median, from order statistics; null below 6 repeats."""
    high_s: float | None
    repeats: int


class CollectiveTiming(_Part):
    """One collective at one size."""

    kind: str
    """`all_reduce`, `all_gather` or `reduce_scatter`."""
    bytes: int
    """Whole buffer on one rank: the output of an all-gather, the input of a reduce-scatter."""
    time: Timing
    """Of the last rank to arrive, which did not wait: the minimum over ranks of each repeat."""
    algorithm_bytes_per_s: float
    """`bytes` / median."""
    bus_bytes_per_s: float
    """`algorithm_bytes_per_s` x 2(N-1)/N for an all-reduce over N ranks, x (N-1)/N for the others, as
    nccl-tests defines it: comparable with the rate of a link."""


class StepTiming(_Part):
    """The DDP step under one form of gradient communication."""

    name: str
    options: str
    """Keys of the config that differ from the baseline."""
    reason: str | None = None
    """Reason why it was not measured; all values are then null."""
    step: Timing | None = None
    """Of the slowest rank in each repeat."""
    exposed_s: float | None = None
    """Median over rounds of the step less that without communication; below 0 only by noise."""
    exposed_low_s: float | None = None
    """Lower end of its 95 % interval, from order statistics; null below 6 rounds and in older records."""
    exposed_high_s: float | None = None
    bytes: int | None = None
    """Bytes that rank 0 hands to collectives in a step; of `hierarchical`, to those between nodes."""
    speed_up: float | None = None
    """Median over rounds of baseline / step: the forms take turns within a round."""
    speed_up_low: float | None = None
    """Lower end of its 95 % interval, from order statistics."""
    speed_up_high: float | None = None


class CommBench(Record):
    """`comm-bench.json`: collectives and DDP steps of one shape, by `python -m disttrain.comm_bench`."""

    device: str
    """Name of the GPU as its driver reports it, or `cpu`."""
    backend: str
    nodes: int
    ranks_per_node: int
    one_machine: bool
    """Whether all nodes are one machine: processes or network namespaces in place of hosts."""
    cpu_count: int
    torch: str
    nccl: str | None
    width: int
    layers: int
    """The model of the steps: linear layers of `width` x `width` without bias, in float32."""
    rows: int
    """Samples of a rank in a step."""
    gradient_bytes: int
    compute: Timing
    """The step without communication."""
    collectives: list[CollectiveTiming]
    steps: list[StepTiming]
