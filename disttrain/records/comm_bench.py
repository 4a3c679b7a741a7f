"""Records of experiments: the communication benchmark, and A/B comparisons of environment variables."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Part, Record


class Timing(Part):
    """A duration over repeats after the warm-up, in seconds."""

    median_s: float
    low_s: float | None
    """Lower end of the 95 % interval of the median, from order statistics; null below 6 repeats."""
    high_s: float | None
    repeats: int


class CollectiveTiming(Part):
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


class StepTiming(Part):
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
    """Lower end of its 95 % interval, from order statistics; null below 6 rounds."""
    exposed_high_s: float | None = None
    bytes: int | None = None
    """Bytes that rank 0 hands to collectives in a step; of `hierarchical`, to those between nodes."""
    speed_up: float | None = None
    """Median over rounds of baseline / step: the forms take turns within a round."""
    speed_up_low: float | None = None
    """Lower end of its 95 % interval, from order statistics."""
    speed_up_high: float | None = None


class _Experiment(Record):
    """The machine of an experiment."""

    device: str
    """Name of the GPU as its driver reports it, or `cpu`."""
    backend: str
    """Backend of the process group."""
    nodes: int
    ranks_per_node: int
    torch: str
    nccl: str | None


class CommBench(_Experiment):
    """`comm-bench.json`: collectives and DDP steps of one shape, by `python -m disttrain.comm_bench`."""

    one_machine: bool
    """Whether all nodes are one machine: processes or network namespaces in place of hosts."""
    cpu_count: int
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


class AbComparison(Part):
    """Blocks of steps with some variables against blocks without, in pairs of random order."""

    variables: dict[str, str]
    """The variables under test; several in the comparison of all that gained."""
    verdict: Literal["gain", "loss", "equivalent", "undecided", "failed"]
    """`gain`, `loss`, `equivalent`: the interval lies above, below or within the margin. `undecided`: it did
    not before a cap. `failed`: the ranks with these variables did not start, or died."""
    reason: str | None
    """The cap of an undecided comparison, or the error of a failed one."""
    ratio: float | None
    """Median over pairs of seconds without / with the variables; above 1, they make the step faster."""
    low: float | None
    """Ends of the confidence sequence of the ratio, valid at every stopping time; null for too few pairs."""
    high: float | None
    pairs: int
    alpha: float
    """Probability of a wrong verdict in this comparison: the level divided by the number of comparisons."""
    duration_s: float
    """Seconds of the comparison, with the start of its ranks."""
    without_s: list[float]
    """Seconds per step of the block without the variables, of each pair."""
    with_s: list[float]


class FabricAb(_Experiment):
    """`fabric-ab.json`: effect of environment variables on the step, by `disttrain fabric ab`."""

    step: str
    """The measured step, in words."""
    steps_per_block: int
    """Timed steps of a block; one untimed step comes before them."""
    margin: float
    """Ratios between 1 / (1 + margin) and 1 + margin are equivalent."""
    level: float
    """Probability of any wrong verdict among the comparisons of single variables."""
    seed: int | None = None
    """Seed of the order of the blocks within the pairs."""
    removed: list[str]
    """Variables of the run's environment that the baseline lacks, because they are under test."""
    alone: list[AbComparison]
    """Each variable against the baseline."""
    together: AbComparison | None
    """All variables that gained, in new processes of both sides; null if none gained."""
    complete: bool
    """Whether the experiment has ended."""
