"""Record of an A/B comparison of environment variables."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from disttrain.records.base import Record


class AbComparison(BaseModel):
    """Blocks of steps with some variables against blocks without, in pairs of random order."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

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


class FabricAb(Record):
    """`fabric-ab.json`: effect of environment variables on the step, by `submit.py fabric ab`."""

    device: str
    """Name of the GPU as its driver reports it, or `cpu`."""
    backend: str
    """Backend of the process group."""
    nodes: int
    ranks_per_node: int
    torch: str
    nccl: str | None
    step: str
    """The measured step, in words."""
    steps_per_block: int
    """Timed steps of a block; one untimed step comes before them."""
    margin: float
    """Ratios between 1 / (1 + margin) and 1 + margin are equivalent."""
    level: float
    """Probability of any wrong verdict among the comparisons of single variables."""
    seed: int | None = None
    """Seed of the order of the blocks within the pairs; null in older records, where it was 0."""
    removed: list[str]
    """Variables of the run's environment that the baseline lacks, because they are under test."""
    alone: list[AbComparison]
    """Each variable against the baseline."""
    together: AbComparison | None
    """All variables that gained, in new processes of both sides; null if none gained."""
    complete: bool
    """Whether the experiment has ended."""
