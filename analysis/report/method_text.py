"""Sentences on how the numbers of these runs were measured."""

from __future__ import annotations

import pandas as pd

from analysis.stats.estimates import CONFIDENCE
from analysis.units import percent, plural

_COMM_METHODS = {
    "ddp_backward_tail": "the time from the end of a rank's own backward pass until the last gradients have "
    "arrived. It includes waiting for slower peers and transfer, but not communication hidden under compute",
    "fsdp_custom_collectives": "the time of each collective of a sharded model. It "
    "includes waiting for slower peers and transfer",
    "pipeline_schedule": "the time of the schedule in which a stage runs no pass of its own: the bubble as "
    "the pipeline fills and drains, waiting for slower stages and transfer between stages, all counted as "
    "waiting; then the all-reduce of gradients over the replicas of a stage",
    "fsdp_stream_waits": "the time that the compute stream waits for the collectives of a sharded model. It "
    "includes waiting for slower peers and transfer, but not communication hidden under compute",
}
"""Meaning of each `Metrics.comm_method`."""


def method(table: pd.DataFrame) -> list[str]:
    """Definitions of the numbers in the report."""
    included = table[table["included"]]
    warmups = ", ".join(str(value) for value in sorted(included["warmup_steps"].dropna().unique()))
    lines = [
        "Throughput of a run is the samples of its measured steps divided by their summed duration "
        f"(a ratio of sums). The warm-up, the first {warmups} steps{_truncated(included)}, does not "
        f"count{_profiled(included)}; all other steps do.",
        "Over repeats: geometric mean. Speed-up S(N) = X(N) / X(N0) and efficiency E(N) = S(N) N0 / N, "
        "with X the throughput, N the ranks and N0 the base's: one formula for weak and strong scaling.",
        f"Intervals have {percent(CONFIDENCE, 0)} nominal coverage. Their unit is "
        "the run: Student's t on logarithms over repeats, for ratios with Welch's degrees of freedom. One "
        "repeat, and a size with a run that is not stationary, have none.",
        "The phases of a step are compute, input, exposed communication (waiting for peers, data transfer), "
        "optimizer, checkpoint and other. They have no gap and no overlap. Their shares of the step "
        "are ratios of sums over ranks, measured steps and repeats; each bar is as long as the table's step.",
        "Efficiency counts samples per second. A larger global batch may need more samples for the same loss"
        + ("." if included["emulated"].all() else "; the losses above show what these runs reached."),
    ]
    methods = sorted(included["comm_method"].dropna().unique())
    lines += [f"Exposed communication: {_COMM_METHODS.get(name, name)}." for name in methods]
    unmeasured = included[(included["world_size"] > 1) & included["comm_transfer_s"].isna()]
    if not unmeasured.empty:
        runs = plural(len(unmeasured), "run")
        lines.append(f"Exposed communication was not measured in {runs}; other phases include it there.")
    return lines


def _truncated(included: pd.DataFrame) -> str:
    """The further warm-up that does not count."""
    most = included["truncated_steps"].max()
    return "" if pd.isna(most) or not most else f" and up to {int(most)} more by MSER-5"


def _profiled(included: pd.DataFrame) -> str:
    """The profiled steps that do not count."""
    most = included["sampled_steps"].max()
    return "" if pd.isna(most) or not most else f", nor do up to {plural(int(most), 'profiled step')} a run"
