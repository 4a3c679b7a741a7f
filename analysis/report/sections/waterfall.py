"""Section of the waterfall: from the ideal step to the actual one, by phase, as table and figure."""

from __future__ import annotations

from functools import partial

from analysis.draw.bars import Row, Segment, bars
from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES, Axis
from analysis.report.common import kept, point_name, point_table
from analysis.report.section import Column, Figure, Section, Table
from analysis.report.sentences import say
from analysis.results.compute_loss import compute_causes
from analysis.results.cost import mean_watts
from analysis.results.phases import Part
from analysis.results.waterfall import (
    NAMED,
    PERSISTENT,
    SHOWN,
    TRANSIENT,
    Waterfall,
    largest_loss,
    waterfalls,
)
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import percent, scale, seconds, text

ORDER = 60

STEPS = 1000
"""Steps that device-hours, money and joules count."""
NAMES = PHASE_NAMES | {
    PERSISTENT: "persistent waiting",
    TRANSIENT: "transient waiting",
    "sum": "sum: actual - ideal step",
}


def build(study: Study) -> Section | None:
    """None without a size beside the base, or without measured phases."""
    sizes = waterfalls(study)
    if not sizes:
        return None
    shown = next((each for each in reversed(sizes) if each.curve is study.leading_curve), sizes[-1])
    largest, text, key = largest_loss(shown), "", ""
    if not study.forbidden("headline", shown.curve):
        gains = [(part.share.value, NAMES[part.name]) for part in shown.whole if part.share.value <= -NAMED]
        causes = compute_causes(study, shown.curve, shown.point)
        place = point_name(study, shown.curve, shown.point)
        text = say("losses", place, shown, largest, NAMES, sorted(gains), causes)
        key = f"{NAMES[largest.name]} {percent(largest.share.value)}" if largest else ""
    tables = kept(_table(study, sizes), _peak_table(study, sizes))
    title = "From the ideal to the actual step"
    return Section("waterfall", title, text, key=key, tables=tables, figures=[_figure(study, shown)])


def _table(study: Study, sizes: list[Waterfall]) -> Table | None:
    columns = [
        Column("part", "part"),
        Column("seconds", "per step", "s", "waterfall"),
        Column("share", "of the step", "points", "waterfall"),
        Column("throughput", "throughput lost", "samples/s", "waterfall"),
        Column("device_hours", f"device-hours / {STEPS:,} steps", "h", "waterfall"),
        Column("money", f"{study.prices.currency or 'money'} / {STEPS:,} steps", "currency", "waterfall"),
        Column("energy", f"energy / {STEPS:,} steps", "J", "waterfall"),
    ]
    rows = []
    for each in sizes:
        units, lost_s = _units(study, each), each.actual_s - each.ideal_s
        lost, share = (Estimate(total, total, total, 0) for total in (lost_s, lost_s / each.actual_s))
        for part in [*each.shown, Part("sum", lost, share)]:
            row = {name: unit and unit * part.seconds.value for name, unit in units.items()}
            named = {"part": NAMES[part.name], "seconds": part.seconds, "share": part.share}
            rows.append((each.curve, each.point, {**named, **row}))
    caption = "Time of each phase beyond the prediction of the base."
    return point_table(study, "waterfall", caption, columns, rows)


def _units(study: Study, shown: Waterfall) -> dict[str, float | None]:
    """Throughput, device-hours, money and joules that a second of a step costs."""
    point = shown.point
    throughput = point.global_batch_size / shown.ideal_s / shown.actual_s
    device_s, watts = point.size * STEPS, mean_watts(point.metrics)
    price = study.prices.price_of(point.metrics[0].device)
    return {
        "throughput": throughput,
        "device_hours": device_s / 3600,
        "money": price and price * device_s / 3600,
        "energy": watts and watts * device_s,
    }


def _peak_table(study: Study, sizes: list[Waterfall]) -> Table | None:
    """Parts from peak FLOP/s, where the FLOPs of the model and the peak of the device are known."""
    columns = [
        Column("part", "part"),
        Column("seconds", "per step", "s"),
        Column("share", "of the step", "share", "mfu"),
    ]
    rows = []
    for each in sizes:
        point, first = each.point, each.point.metrics[0]
        if not first.model_flops_per_sample or not first.peak_flops:
            continue
        peak_s = first.model_flops_per_sample * point.global_batch_size / (point.size * first.peak_flops)
        ideal_s = {part.name: part.ideal_s for part in each.parts}
        lines = [
            ("model FLOPs at the device's peak", peak_s),
            ("compute beyond the peak, at the base", ideal_s.pop("compute_s", 0.0) - peak_s),
            *((f"{NAMES[name]}, at the base", length_s) for name, length_s in ideal_s.items()),
            *((f"{NAMES[part.name]}, by scaling", part.seconds.value) for part in each.parts),
        ]
        rows += [
            (each.curve, point, {"part": part, "seconds": length_s, "share": length_s / each.actual_s})
            for part, length_s in lines
            if abs(length_s) >= SHOWN * each.actual_s
        ]
    caption = "The same step from the peak FLOP/s of the device, whose share is the MFU."
    return point_table(study, "waterfall_from_peak", caption, columns, rows)


def _figure(study: Study, shown: Waterfall) -> Figure:
    place, longest_s = point_name(study, shown.curve, shown.point), max(shown.ideal_s, shown.actual_s)
    size, unit = scale("s", longest_s)
    ends = [
        Row(name, [Segment(0.0, end_s / size, "faint", f"{name} {seconds(end_s)}")], seconds(end_s))
        for name, end_s in (("ideal step", shown.ideal_s), ("actual step", shown.actual_s))
    ]
    bar_rows, at_s = ends[:1], shown.ideal_s
    for part in shown.shown:
        name, start_s, at_s = NAMES[part.name], at_s, at_s + part.seconds.value
        colour = PHASE_COLOURS.get(part.name, PHASE_COLOURS["comm_wait_s"])
        length, title = part.seconds.scaled(1 / size), f"{name} {seconds(part.seconds.value)}"
        segment = Segment(start_s / size, at_s / size, colour, title, length)
        bar_rows.append(Row(name, [segment], text(part.share.value, "points")))
    bar_rows += ends[1:]
    x = Axis(f"time of a step at {place} ({unit.strip()})", 0.0, longest_s / size)
    alt = f"Waterfall at {place}: {', '.join(row.segments[0].title for row in bar_rows)}"
    drawing = partial(bars, bar_rows, x, emulated=study.emulated)
    return Figure("waterfall", "From the ideal to the actual step", drawing, alt, data="waterfall")
