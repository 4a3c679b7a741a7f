"""The sentences of a report: headline, notices, method. Pure functions from the table and its curves."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.efficiency import Curve, Point
from analysis.report.model import Learned, Notice, Used
from analysis.stats import CONFIDENCE, Estimate
from analysis.style import CLASS_NAMES
from analysis.units import interval, number, percent, plural, rate, seconds, span, times

FEW_STEPS = 30
"""Fewer measured steps than this are called short."""

LATE_SHARE = 0.01
"""Emulated passes that end later than the table says by more than this share of the step are warned of."""

WIDE = 1.5
"""An interval whose bounds differ by more than this factor settles nothing."""

EMULATED = (
    "Emulated: compute or the loading of data was waited for, not done. These numbers show how the software "
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
"""What runs that are compared should have in common, and what to call it."""


_COMM_METHODS = {
    "ddp_backward_tail": "from the end of a rank's own backward pass until the last gradients have arrived. "
    "It holds waiting for slower peers and transfer together; what is hidden under compute is not in it",
    "fsdp_custom_collectives": "the time of each all-gather and reduce-scatter of a sharded model. It holds "
    "waiting for slower peers and transfer together",
}
"""What `Metrics.comm_method` stands for."""


def headline(curve: Curve, curves: int = 1) -> str:
    """The answer in one sentence: how much faster the largest size is than the base, and its efficiency."""
    name = f"{curve.label}: " if curves > 1 else ""
    base, point = curve.base, _compared(curve)
    if base is None:
        return f"{name}no base of the size asked for, so no speed-up; {_rates(curve.points[-1], curve)}"
    if point is None or point.speedup is None or point.efficiency is None:
        one = f"{plural(base.size, curve.unit)}: {rate(base.samples_per_s.value)}"
        return f"{name}{one}; one size, so nothing to compare it with"
    verb = "runs" if point.size == 1 else "run"
    speedup = (
        f"{plural(point.size, curve.unit)} {verb} {times(point.speedup.value, 1)} as fast as {base.size}"
    )
    return f"{name}{speedup}: {percent(point.efficiency.value, 0)} efficiency"


def precision(curve: Curve) -> str:
    """How sure the headline is, and where the rest went."""
    base, point = curve.base, _compared(curve)
    if base is None or point is None or point.efficiency is None:
        return ""
    if point.efficiency.low is None:
        sentence = f"Launched once ({interval(point.efficiency)})."
    else:
        counts = list(dict.fromkeys([len(base.runs), len(point.runs)]))
        each = f"{counts[0]} launches each" if len(counts) == 1 else f"{counts[0]} and {counts[1]} launches"
        sentence = f"{percent(CONFIDENCE, 0)} interval {interval(point.efficiency, 100, 0)} % from {each}."
        if _unsettled(point.efficiency):
            sentence = f"Not settled: {sentence} More repeats, or a quieter machine, would narrow it."
    if point.lost:
        worst = max(point.lost, key=point.lost.__getitem__)
        share = 100 * point.lost[worst]
        if share >= 1:
            sentence += f" The largest loss is {CLASS_NAMES[worst]}: {share:.0f} percentage points."
    return sentence


def base_line(curve: Curve) -> str:
    """The base with its absolute numbers: no efficiency is printed without it."""
    base = curve.base
    if base is None:
        return "No base: this curve has no finished run of the size asked for."
    return f"Base: {_rates(base, curve)}."


def scaling_line(curve: Curve) -> str:
    """Weak or strong, and what is held."""
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


def notices(table: pd.DataFrame, curves: Sequence[Curve]) -> list[Notice]:
    """What could mislead a reader of these numbers, gravest first."""
    used = table[table["included"]]
    if used.empty:
        return []
    warnings = [*_shared_processors(used), *_differences(used, curves), *_short_runs(used)]
    notes = []
    if any(len(point.runs) == 1 for curve in curves for point in curve.points):
        notes.append(
            "Some sizes were launched once: no interval can be given for them. "
            "Launch each at least 3 times (--repeats 3)."
        )
    if (used["device"] == "cpu").all() and not used["emulated"].any():
        backends = " and ".join(sorted(used["backend"].dropna().unique()))
        through = f", communicating through {backends}" if backends else ""
        notes.append(
            f"Measured on CPU{through}: a real run of the real software, "
            "but no forecast for GPUs or a fast network."
        )
    warnings += _late_emulation(used)
    found = []
    if used["emulated"].any():
        some = int(used["emulated"].sum())
        which = (
            "" if some == len(used) else f" This is so in {some} of {len(used)} runs, and not in the others."
        )
        found = [Notice(kind="emulated", text=EMULATED + which)]
    found += [Notice(kind="warning", text=text) for text in warnings]
    return found + [Notice(kind="note", text=text) for text in notes]


def _shared_processors(used: pd.DataFrame) -> list[str]:
    shared = used[used["oversubscribed"]]
    if shared.empty:
        return []
    which = "all runs" if len(shared) == len(used) else f"{len(shared)} of {len(used)} runs"
    most = shared.loc[shared["world_size"].idxmax()]
    ranks, processors = plural(int(most["world_size"]), "rank"), plural(int(most["cpu_count"]), "processor")
    what = f"processors in {which}: up to {ranks} on {processors}"
    if most["device"] != "cpu":
        what = f"a GPU in {which}: up to {ranks} on one {most['device']}"
    return [f"Ranks shared {what}. The curve tells about this host, not about scaling over machines."]


def _late_emulation(used: pd.DataFrame) -> list[str]:
    late = used[used["emulation_late_s"] > LATE_SHARE * used["step_s"]]
    if late.empty:
        return []
    share = float((late["emulation_late_s"] / late["step_s"]).max())
    return [
        f"Emulated layers ended late in {len(late)} of {len(used)} runs, by up to {percent(share)} of the "
        "step: this machine was too busy for so many ranks, and the step times are too long by about as much."
    ]


def _short_runs(used: pd.DataFrame) -> list[str]:
    few = used[used["measured_steps"] < FEW_STEPS]
    if few.empty:
        return []
    shortest = plural(int(few["measured_steps"].min()), "measured step")
    which = "All runs are" if len(few) == len(used) else f"{len(few)} of {len(used)} runs are"
    return [f"{which} short: fewer than {FEW_STEPS} measured steps (the shortest has {shortest})."]


def _differences(used: pd.DataFrame, curves: Sequence[Curve]) -> list[str]:
    """What else differs between runs that are compared with each other."""
    texts = []
    for column, noun in _SAME.items():
        found: dict[str, list[str]] = {}
        for curve in curves:
            names = [run for point in curve.points for run in point.runs]
            runs = used[(used["sweep"] == curve.sweep) & used["run"].isin(names)]
            values = sorted({str(value) for value in runs[column].dropna()})
            if len(values) > 1:
                found[curve.label] = values
        if found:
            values = sorted(set().union(*found.values()))
            where = f" (in {'; '.join(found)})" if len(curves) > 1 else ""
            texts.append(
                f"Runs that differ in {noun} are compared with each other{where}: {', '.join(values)}."
            )
    return texts


def _unsettled(estimate: Estimate) -> bool:
    """Whether the interval leaves open what the estimate seems to say."""
    return estimate.low is not None and estimate.high is not None and estimate.high > WIDE * estimate.low


def learning(rows: Sequence[Learned]) -> str:
    """Whether text models got below what byte frequencies alone would give; empty for other tasks."""
    gains = [
        row.unigram_entropy_bits - row.bits_per_byte
        for row in rows
        if row.unigram_entropy_bits is not None and row.bits_per_byte is not None
    ]
    if not gains:
        return ""
    entropy = "the unigram entropy of the corpus, which knowing only how often each byte occurs would reach"
    if min(gains) <= 0:
        return f"Not everything learned: some runs end {number(-min(gains))} bits per byte above {entropy}."
    return f"All end at least {number(min(gains))} bits per byte below {entropy}."


def used(rows: Sequence[Used], sweeps: int = 1) -> list[str]:
    """What the runs of each sweep used together, beside what they might have by their time limits: a line for
    each, which names it where the report is of several `sweeps`."""
    lines = []
    for sweep in dict.fromkeys(row.sweep for row in rows):
        line = _used([row for row in rows if row.sweep == sweep])
        lines.append(f"{sweep}: {line}" if sweeps > 1 else line)
    return lines


def _used(rows: Sequence[Used]) -> str:
    sums = []
    for unit in sorted({row.unit for row in rows}):
        own = [row for row in rows if row.unit == unit]
        bounds = [row.hours_bound for row in own]
        bound = sum(value for value in bounds if value is not None)
        limit = (
            "" if None in bounds else f", of {number(bound)} if each run started once and took its time limit"
        )
        sums.append(f"{number(sum(row.hours for row in own))} {unit}{limit}")
    starts = f"{plural(sum(row.attempts for row in rows), 'attempt')} of {plural(len(rows), 'run')}"
    waits = [row.queue_wait_s for row in rows if row.queue_wait_s is not None]
    queue = f", {span(sum(waits))} in queues" if waits else ""
    by = {"sacct": "Slurm's accounting", "timestamps": "the attempts' own times"}
    sources = " and ".join(by[name] for name in sorted({row.source for row in rows}))
    return f"{'; '.join(sums)}. {starts}{queue}; by {sources}."


def method(table: pd.DataFrame) -> list[str]:
    """How the numbers were made."""
    used = table[table["included"]]
    warmups = ", ".join(str(value) for value in sorted(used["warmup_steps"].dropna().unique()))
    lines = [
        "Throughput of a launch is the samples of its measured steps divided by their summed duration "
        f"(a ratio of sums). Warm-up, the first {warmups} steps, is left out{_sampled(used)}; "
        "nothing else is.",
        "Over launches: geometric mean. Speed-up S(N) = X(N) / X(N0) and efficiency E(N) = S(N) N0 / N, "
        "with X the throughput, N the ranks and N0 the base's: one formula for weak and strong scaling.",
        f"Intervals have {percent(CONFIDENCE, 0)} nominal coverage and the launch as their unit: Student's t "
        "on logarithms, for ratios with Welch's degrees of freedom. One launch gives no interval.",
        "Step time is divided without gap or overlap into compute, input, exposed communication (waiting "
        "for peers, data transfer), optimizer, checkpoint and other; bars are means over ranks, measured "
        "steps and launches.",
        "Efficiency counts samples per second. Whether a larger global batch needs more samples to learn as "
        "much is a separate question; the losses show what these runs reached.",
    ]
    methods = sorted(used["comm_method"].dropna().unique())
    lines += [f"Exposed communication: {_COMM_METHODS.get(name, name)}." for name in methods]
    unmeasured = used[(used["world_size"] > 1) & used["comm_transfer_s"].isna()]
    if not unmeasured.empty:
        runs = plural(len(unmeasured), "run")
        lines.append(f"Exposed communication was not measured in {runs}; other classes hold it there.")
    return lines


def _sampled(used: pd.DataFrame) -> str:
    """What is left out because it was taken under the profiler."""
    most = used["sampled_steps"].max()
    return "" if pd.isna(most) or not most else f", and up to {plural(int(most), 'profiled step')} a launch"


def _compared(curve: Curve) -> Point | None:
    """The point the headline is about: the largest, or where that is the base, the smallest."""
    others = [point for point in curve.points if curve.base is not None and point.size != curve.base_size]
    largest = curve.points[-1]
    return largest if largest in others else others[0] if others else None


def _rates(point: Point, curve: Curve) -> str:
    size = plural(point.size, curve.unit)
    ranks = plural(point.world_size, "rank")
    shape = f"{size} ({ranks})" if curve.unit == "node" else size
    tokens = f" ({rate(point.tokens_per_s, 'tokens/s')})" if point.tokens_per_s else ""
    return f"{shape}, {seconds(point.step_s.value)} a step, {rate(point.samples_per_s.value)}{tokens}"
