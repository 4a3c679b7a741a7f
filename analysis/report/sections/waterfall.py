"""Section of the waterfall: from the ideal step to the actual one, by phase, as table and figure."""

from __future__ import annotations

from functools import partial

from analysis.draw.bars import Row, Segment, bars
from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES, Axis
from analysis.report import common
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.compute_loss import compute_causes
from analysis.results.cost import mean_watts
from analysis.results.curves import Curve, Point
from analysis.results.phases import PERSISTENT, TRANSIENT
from analysis.results.waterfall import (
    NAMED,
    SHOWN,
    SizeWaterfall,
    from_peak,
    largest_loss,
    leading,
    scales,
    waterfalls,
)
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import cell, percent, scale, seconds, text

ORDER = 60

STEPS = 1000
"""Steps that device-hours, money and joules count."""
NAMES = PHASE_NAMES | {PERSISTENT: "persistent waiting", TRANSIENT: "transient waiting"}
_COLOURS = PHASE_COLOURS | dict.fromkeys((PERSISTENT, TRANSIENT), PHASE_COLOURS["comm_wait_s"])


def build(study: Study) -> Section | None:
    """None without a size beside the base, or without measured phases."""
    sizes = waterfalls(study)
    if not sizes:
        return None
    shown = leading(sizes)
    allowed = not study.forbidden("headline", shown.curve)
    largest = largest_loss(shown)
    conclusion = common.sentence([loss_sentence(study, shown), compute_cause(study, shown)])
    return Section(
        "waterfall",
        "From the ideal to the actual step",
        conclusion if allowed else "",
        key=f"{NAMES[largest.name]} {percent(largest.share.value)}" if largest and allowed else "",
        tables=[_table(study, sizes), *_peak_table(study, sizes)],
        figures=[_figure(study, shown)],
    )


def loss_sentence(study: Study, shown: SizeWaterfall) -> str:
    """Name the largest loss whose interval excludes zero, and the gains beside it; empty without any."""
    part, base = largest_loss(shown), shown.curve.base
    if part is None or base is None:
        return ""
    gains = sorted((each.share.value, each.name) for each in shown.whole.parts if each.share.value <= -NAMED)
    return say(
        "largest_loss",
        place=common.point_name(study, shown.curve, shown.point),
        base=shown.curve.name(base),
        phase=NAMES[part.name],
        part=part,
        gains=[NAMES[name] for _, name in gains],
        saved=-sum(share for share, _ in gains),
        efficiency=shown.point.efficiency,
    )


def compute_cause(study: Study, shown: SizeWaterfall) -> str:
    """Causes of lost compute time, if compute loses at least `NAMED` of the step; empty otherwise."""
    share = next((part.share.value for part in shown.whole.parts if part.name == "compute_s"), 0.0)
    if share < NAMED:
        return ""
    return say("compute_causes", compute_causes(study, shown.curve, shown.point))


def _table(study: Study, sizes: list[SizeWaterfall]) -> Table:
    columns = [
        Column("part", "part"),
        Column("seconds", "per step", "s", "waterfall"),
        Column("share", "of the step", "points", "waterfall"),
        Column("throughput", "throughput lost", "samples/s", "waterfall"),
        Column("device_hours", f"device-hours / {STEPS:,} steps", "h", "waterfall"),
        Column("money", f"{study.prices.currency or 'money'} / {STEPS:,} steps", "currency", "waterfall"),
        Column("energy", f"energy / {STEPS:,} steps", "J", "waterfall"),
    ]
    rows: list[tuple[Curve, Point, list[Value]]] = []
    for each in sizes:
        metrics = each.point.metrics
        factors = scales(each, STEPS, study.prices.price_of(metrics[0].device), mean_watts(metrics))
        lost_s = each.whole.actual_s - each.whole.ideal_s
        lines: list[tuple[str, Value, Value, float]] = [
            (NAMES[part.name], part.seconds, part.share, part.seconds.value) for part in each.parts.shown
        ]
        lines.append(("sum: actual - ideal step", lost_s, 1 - each.whole.efficiency, lost_s))
        for *values, value_s in lines:
            scaled = [factors.get(column.name) for column in columns[3:]]
            units = [None if factor is None else factor * value_s for factor in scaled]
            rows.append((each.curve, each.point, [*values, *units]))
    caption = "Time of each phase beyond the prediction of the base."
    return common.size_table(study, "waterfall", caption, columns, rows)


def _peak_table(study: Study, sizes: list[SizeWaterfall]) -> list[Table]:
    """Parts from peak FLOP/s, where the FLOPs of the model and the peak of the device are known."""
    rows: list[tuple[Curve, Point, list[Value]]] = []
    for each in sizes:
        point, first = each.point, each.point.metrics[0]
        if not first.model_flops_per_sample or not first.peak_flops:
            continue
        peak_s = first.model_flops_per_sample * point.global_batch_size / (point.size * first.peak_flops)
        parts: list[list[Value]] = [
            [_peak_name(name), length_s, length_s / each.whole.actual_s]
            for name, length_s in from_peak(each.parts, peak_s).items()
            if abs(length_s) >= SHOWN * each.whole.actual_s
        ]
        rows += [(each.curve, point, part) for part in parts]
    columns = [
        Column("part", "part"),
        Column("seconds", "per step", "s"),
        Column("share", "of the step", "share", "mfu"),
    ]
    caption = "The same step from the peak FLOP/s of the device, whose share is the MFU."
    return [common.size_table(study, "waterfall_from_peak", caption, columns, rows)] if rows else []


def _peak_name(name: str) -> str:
    if name == "peak":
        return "model FLOPs at the device's peak"
    if name == "kernels":
        return "compute beyond the peak, at the base"
    if name.startswith("base."):
        return f"{NAMES[name.removeprefix('base.')]}, at the base"
    return f"{NAMES[name]}, by scaling"


def _figure(study: Study, shown: SizeWaterfall) -> Figure:
    found, place = shown.parts, common.point_name(study, shown.curve, shown.point)
    size, unit = scale("s", max(found.actual_s, found.ideal_s))
    factor = 1 / size
    ideal = Segment(0.0, found.ideal_s * factor, "faint", "ideal step")
    rows = [Row("ideal step", [ideal], seconds(found.ideal_s))]
    at_s, highest_s = found.ideal_s, max(found.ideal_s, found.actual_s)
    for part in found.shown:
        end_s = at_s + part.seconds.value
        colour = _COLOURS.get(part.name, _COLOURS["other_s"])
        title = f"{NAMES[part.name]} {cell(part.share, 'share').in_text}"
        interval = _moved(part.seconds, at_s, factor)
        segment = Segment(at_s * factor, end_s * factor, colour, title, interval)
        rows.append(Row(NAMES[part.name], [segment], text(part.share.value, "points")))
        highest_s = max(highest_s, end_s, (interval.high or 0.0) / factor)
        at_s = end_s
    actual = Segment(0.0, found.actual_s * factor, "faint", "actual step")
    rows.append(Row("actual step", [actual], seconds(found.actual_s)))
    lost = [f"{NAMES[part.name]} {seconds(part.seconds.value)}" for part in found.shown]
    description = (
        f"Waterfall at {place}: ideal step {seconds(found.ideal_s)}, {', '.join(lost)}, "
        f"actual step {seconds(found.actual_s)}"
    )
    x = Axis(f"time of a step at {place} ({unit.strip()})", 0.0, highest_s * factor)
    drawing = partial(bars, rows, x, emulated=study.emulated)
    return Figure("waterfall", "From the ideal to the actual step", drawing, description, data="waterfall")


def _moved(part_s: Estimate, at_s: float, factor: float) -> Estimate:
    """The estimate of the end of a bar that starts at `at_s`."""
    return part_s.mapped(lambda seconds: (at_s + seconds) * factor)
