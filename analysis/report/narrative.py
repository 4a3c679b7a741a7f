"""Sentences of a report: headline, notices, method. Pure functions of the table and its curves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from analysis.efficiency import Curve, Point
from analysis.report import overlap_text
from analysis.report.model import Notice, RunCost, RunOverlap, TrainingQuality
from analysis.stats.estimates import CONFIDENCE, Estimate
from analysis.style import PHASE_NAMES
from analysis.units import interval, number, percent, plural, rate, seconds, span, times

FEW_STEPS = 30
"""Runs with fewer measured steps draw a warning."""

LATE_SHARE = 0.01
"""Emulated passes draw a warning if they end later than planned by more than this share of the step."""

NAMED_RECORDS = 5
"""Unreadable records that a warning names."""

WIDE = 1.5
"""Intervals whose bounds differ by more than this factor leave the headline unsettled."""

EMULATED = (
    "Emulated: ranks waited in place of compute or data loading. These numbers show how the software "
    "overlaps and communicates, not how hardware performs."
)

_SAME = {
    "code_hash": "code",
    "device": "device",
    "torch": "version of torch",
    "warmup_steps": "warm-up length",
    "dataset_sha256": "data",
    "cpu_count": "number of processors",
}
"""Columns that should be equal in all compared runs, and their names in a sentence."""


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


def headline(curve: Curve, curves: int = 1) -> str:
    """Speed-up and efficiency of the largest size against the base, as one sentence."""
    name = f"{curve.label}: " if curves > 1 else ""
    base, point = curve.base, _headline_point(curve)
    if base is None:
        return f"{name}no run of the requested base size, so no speed-up; {_rates(curve.points[-1], curve)}"
    if point is None or point.speedup is None or point.efficiency is None:
        one = f"{plural(base.size, curve.unit)}: {rate(base.samples_per_s.value)}"
        return f"{name}{one}; no other size to compare with"
    verb = "runs" if point.size == 1 else "run"
    speedup = (
        f"{plural(point.size, curve.unit)} {verb} {times(point.speedup.value, 1)} as fast as {base.size}"
    )
    return f"{name}{speedup}: {percent(point.efficiency.value, 0)} efficiency"


def precision(curve: Curve) -> str:
    """Interval of the headline's efficiency, and its difference from 100 % by phase if settled."""
    base, point = curve.base, _headline_point(curve)
    if base is None or point is None or point.efficiency is None:
        return ""
    if point.efficiency.low is None:
        return f"One repeat ({interval(point.efficiency)})."
    counts = list(dict.fromkeys([len(base.runs), len(point.runs)]))
    each = f"{counts[0]} repeats each" if len(counts) == 1 else f"{counts[0]} and {counts[1]} repeats"
    sentence = f"{percent(CONFIDENCE, 0)} interval {interval(point.efficiency, 100, 0)} % from {each}."
    if _unsettled(point.efficiency):
        return f"Not settled: {sentence} More repeats, or a quieter machine, would narrow the interval."
    return f"{sentence} {_net_by_phase(point)}".rstrip()


def _net_by_phase(point: Point) -> str:
    """Net loss or gain and its phases, in percentage points of the step; empty if its sign is not settled.

    Phases below one percentage point are left out.
    """
    efficiency = point.efficiency
    if efficiency is None or efficiency.low is None or efficiency.high is None or not point.loss_by_phase:
        return ""
    if efficiency.low <= 1 <= efficiency.high:
        return ""
    shares = sorted(((100 * share, name) for name, share in point.loss_by_phase.items()), reverse=True)
    parts = [f"{PHASE_NAMES[name]} costs {share:.0f}" for share, name in shares if share >= 1]
    parts += [f"{PHASE_NAMES[name]} saves {-share:.0f}" for share, name in reversed(shares) if share <= -1]
    net = 100 * (1 - efficiency.value)
    if abs(net) < 1 or not parts:
        return ""
    kind = "loss" if net > 0 else "gain"
    return f"Net {kind} of {abs(net):.0f} percentage points: {', '.join(parts)}."


def base_line(curve: Curve) -> str:
    """The base with its absolute numbers; the report prints no efficiency without the base."""
    base = curve.base
    if base is None:
        return "No base: this curve has no finished run of the requested base size."
    return f"Base: {_rates(base, curve)}."


def scaling_line(curve: Curve) -> str:
    """Weak or strong scaling, and the batch size that stays the same."""
    point = curve.points[0]
    per_rank = plural(point.global_batch_size // point.world_size, "sample")
    in_all = plural(point.global_batch_size, "sample")
    return {
        "weak": f"Weak scaling: {per_rank} per rank and step, so the global batch grows with the ranks.",
        "strong": f"Strong scaling: {in_all} per step over all ranks, at every size.",
        "mixed": "Neither weak nor strong: samples per rank and global batch both change with the size; "
        "efficiency compares throughput per rank.",
        "one size": f"One size: {in_all} per step over all ranks.",
    }[curve.scaling]


def notices(
    table: pd.DataFrame,
    curves: Sequence[Curve],
    unreadable: Sequence[str] = (),
    overlaps: Sequence[RunOverlap] = (),
) -> list[Notice]:
    """Reasons for which these numbers could mislead, most serious first.

    `unreadable`: messages on step records that cannot be read.
    """
    included = table[table["included"]]
    if included.empty:
        return []
    warnings = [*_shared_processors(included), *overlap_text.warning(overlaps, table["sweep"].nunique())]
    warnings += [*_differences(included, curves), *_short_runs(included)]
    notes = [f"{row['sweep']}/{row['run']} {row['note']}." for row in _with_a_note(included)]
    if any(len(point.runs) == 1 for curve in curves for point in curve.points):
        notes.append(
            "Some sizes have one repeat and therefore no interval. "
            "Run each size at least 3 times (--repeats 3)."
        )
    if (included["device"] == "cpu").all() and not included["emulated"].any():
        backends = " and ".join(sorted(included["backend"].dropna().unique()))
        through = f", communicating through {backends}" if backends else ""
        notes.append(f"Measured on CPU{through}. These numbers do not predict GPUs or a fast network.")
    warnings += [*_late_emulation(included), *_unreadable_records(unreadable)]
    found = []
    if included["emulated"].any():
        some = int(included["emulated"].sum())
        which = (
            ""
            if some == len(included)
            else f" This holds for {some} of {len(included)} runs, not for the others."
        )
        found = [Notice(kind="emulated", text=EMULATED + which)]
    found += [Notice(kind="warning", text=text) for text in warnings]
    return found + [Notice(kind="note", text=text) for text in notes]


def _with_a_note(included: pd.DataFrame) -> list[dict[Hashable, Any]]:
    return included[included["note"].fillna("") != ""].to_dict("records")


def _shared_processors(included: pd.DataFrame) -> list[str]:
    shared = included[included["oversubscribed"]]
    if shared.empty:
        return []
    which = "all runs" if len(shared) == len(included) else f"{len(shared)} of {len(included)} runs"
    most = shared.loc[shared["world_size"].idxmax()]
    ranks, processors = plural(int(most["world_size"]), "rank"), plural(int(most["cpu_count"]), "processor")
    what = f"processors in {which}: up to {ranks} on {processors}"
    if most["device"] != "cpu":
        what = f"a GPU in {which}: up to {ranks} on one {most['device']}"
    return [f"Ranks shared {what}. The curve describes this host, not scaling over machines."]


def _unreadable_records(messages: Sequence[str]) -> list[str]:
    if not messages:
        return []
    named = "; ".join(messages[:NAMED_RECORDS])
    more = f"; and {len(messages) - NAMED_RECORDS} more" if len(messages) > NAMED_RECORDS else ""
    return [f"Unreadable step records are left out of the figures: {named}{more}."]


def _late_emulation(included: pd.DataFrame) -> list[str]:
    late = included[included["emulation_late_s"] > LATE_SHARE * included["step_s"]]
    if late.empty:
        return []
    share = float((late["emulation_late_s"] / late["step_s"]).max())
    return [
        f"Emulated layers ended late in {len(late)} of {len(included)} runs, by up to {percent(share)} of "
        "the step. The machine was too busy for this number of ranks, so step times are too long by about "
        "as much."
    ]


def _short_runs(included: pd.DataFrame) -> list[str]:
    few = included[included["measured_steps"] < FEW_STEPS]
    if few.empty:
        return []
    shortest = plural(int(few["measured_steps"].min()), "measured step")
    which = "All runs are" if len(few) == len(included) else f"{len(few)} of {len(included)} runs are"
    return [f"{which} short: fewer than {FEW_STEPS} measured steps (the shortest has {shortest})."]


def _differences(included: pd.DataFrame, curves: Sequence[Curve]) -> list[str]:
    """One sentence for each column of `_SAME` that differs between compared runs."""
    texts = []
    for column, noun in _SAME.items():
        found: dict[str, list[str]] = {}
        for curve in curves:
            names = [run for point in curve.points for run in point.runs]
            runs = included[(included["sweep"] == curve.sweep) & included["run"].isin(names)]
            values = sorted({str(value) for value in runs[column].dropna()})
            if len(values) > 1:
                found[curve.label] = values
        if found:
            values = sorted(set().union(*found.values()))
            where = f" (in {'; '.join(found)})" if len(curves) > 1 else ""
            texts.append(f"Compared runs differ in {noun}{where}: {', '.join(values)}.")
    return texts


def _unsettled(estimate: Estimate) -> bool:
    """Whether the interval is too wide to support the estimate."""
    return estimate.low is not None and estimate.high is not None and estimate.high > WIDE * estimate.low


def quality_line(rows: Sequence[TrainingQuality]) -> str:
    """Distance of text models from the unigram entropy of their corpus; empty for other tasks."""
    gains = [
        row.unigram_entropy_bits - row.bits_per_byte
        for row in rows
        if row.unigram_entropy_bits is not None and row.bits_per_byte is not None
    ]
    if not gains:
        return ""
    entropy = "the unigram entropy of the corpus, the loss of a model of byte frequencies alone"
    if min(gains) <= 0:
        return f"Some runs did not learn: they end {number(-min(gains))} bits per byte above {entropy}."
    return f"All runs end at least {number(min(gains))} bits per byte below {entropy}."


def cost_lines(rows: Sequence[RunCost], sweeps: int = 1) -> list[str]:
    """GPU-hours and queue time of each sweep, and the hours that its time limits allow; one line a sweep.

    Each line names its sweep if the report covers several `sweeps`.
    """
    lines = []
    for sweep in dict.fromkeys(row.sweep for row in rows):
        line = _cost_line([row for row in rows if row.sweep == sweep])
        lines.append(f"{sweep}: {line}" if sweeps > 1 else line)
    return lines


def _cost_line(rows: Sequence[RunCost]) -> str:
    sums = []
    for unit in sorted({row.unit for row in rows}):
        own = [row for row in rows if row.unit == unit]
        bounds = [row.hours_bound for row in own]
        bound = sum(value for value in bounds if value is not None)
        limit = (
            ""
            if None in bounds
            else f", of {number(bound)} allowed by one start of each run to its time limit"
        )
        sums.append(f"{number(sum(row.hours for row in own))} {unit}{limit}")
    starts = f"{plural(sum(row.attempts for row in rows), 'attempt')} of {plural(len(rows), 'run')}"
    waits = [row.queue_wait_s for row in rows if row.queue_wait_s is not None]
    queue = f", {span(sum(waits))} in queues" if waits else ""
    by = {"sacct": "Slurm's accounting", "timestamps": "the attempts' own times"}
    sources = " and ".join(by[name] for name in sorted({row.source for row in rows}))
    return f"{'; '.join(sums)}. {starts}{queue}; by {sources}."


def method(table: pd.DataFrame) -> list[str]:
    """Definitions of the numbers in the report."""
    included = table[table["included"]]
    warmups = ", ".join(str(value) for value in sorted(included["warmup_steps"].dropna().unique()))
    lines = [
        "Throughput of a run is the samples of its measured steps divided by their summed duration "
        f"(a ratio of sums). The warm-up, the first {warmups} steps, does not count{_profiled(included)}; "
        "all other steps do.",
        "Over repeats: geometric mean. Speed-up S(N) = X(N) / X(N0) and efficiency E(N) = S(N) N0 / N, "
        "with X the throughput, N the ranks and N0 the base's: one formula for weak and strong scaling.",
        f"Intervals have {percent(CONFIDENCE, 0)} nominal coverage and the run as their unit: Student's t "
        "on logarithms, for ratios with Welch's degrees of freedom. One repeat gives no interval.",
        "The phases of a step are compute, input, exposed communication (waiting for peers, data transfer), "
        "optimizer, checkpoint and other. They have no gap and no overlap. Their shares of the step "
        "are ratios of sums over ranks, measured steps and repeats; each bar is as long as the table's step.",
        "Efficiency counts samples per second. A larger global batch may need more samples for the same "
        "loss; the losses above show what these runs reached.",
    ]
    methods = sorted(included["comm_method"].dropna().unique())
    lines += [f"Exposed communication: {_COMM_METHODS.get(name, name)}." for name in methods]
    unmeasured = included[(included["world_size"] > 1) & included["comm_transfer_s"].isna()]
    if not unmeasured.empty:
        runs = plural(len(unmeasured), "run")
        lines.append(f"Exposed communication was not measured in {runs}; other phases include it there.")
    return lines


def _profiled(included: pd.DataFrame) -> str:
    """The profiled steps that do not count."""
    most = included["sampled_steps"].max()
    return "" if pd.isna(most) or not most else f", nor do up to {plural(int(most), 'profiled step')} a run"


def _headline_point(curve: Curve) -> Point | None:
    """The largest point, or the smallest if the largest is the base; None without both."""
    others = [point for point in curve.points if curve.base is not None and point.size != curve.base_size]
    largest = curve.points[-1]
    return largest if largest in others else others[0] if others else None


def _rates(point: Point, curve: Curve) -> str:
    size = plural(point.size, curve.unit)
    ranks = plural(point.world_size, "rank")
    shape = f"{size} ({ranks})" if curve.unit == "node" else size
    tokens = f" ({rate(point.tokens_per_s, 'tokens/s')})" if point.tokens_per_s else ""
    return f"{shape}, {seconds(point.step_s.value)} a step, {rate(point.samples_per_s.value)}{tokens}"
