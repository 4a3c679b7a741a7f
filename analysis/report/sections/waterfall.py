"""Section of the waterfall: from the ideal step to the actual one, by phase, as table and figure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from analysis.draw.charts import Row, Segment, bars
from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES
from analysis.report.common import Column, Figure, Section, Study, place_of, say, size_table
from analysis.results.cost import mean_watts
from analysis.results.lost_time import (
    NAMED,
    PERSISTENT,
    SHOWN,
    TRANSIENT,
    Waterfall,
    compute_causes,
    largest_loss,
    waterfalls,
)
from analysis.stats.estimates import Estimate
from analysis.units import cell, percent

ORDER = 60

STEPS = 1000
"""Steps that device-hours, money and joules count."""
NAMES = PHASE_NAMES | {PERSISTENT: "persistent waiting", TRANSIENT: "transient waiting"}
_TITLE = "From the ideal to the actual step"
_CAPTION = (
    "Time of each phase beyond the prediction of the base; data transfer contains the noise floor of waiting."
)
_PEAK_COLUMNS = (
    Column("part"),
    Column("seconds", "per step", "s"),
    Column("share", "of the step", "share", "mfu"),
)


def build(study: Study) -> Section | None:
    """None without a size beside the base, or without measured phases."""
    sizes = waterfalls(study)
    if not sizes:
        return None
    shown = next((each for each in reversed(sizes) if each.curve is study.leading_curve), sizes[-1])
    place, largest, text, key = place_of(study, shown.point).name, largest_loss(shown), "", ""
    if not study.forbidden("headline", shown.curve):
        gains = [(part.share.value, NAMES[part.name]) for part in shown.whole if part.share.value <= -NAMED]
        causes = compute_causes(study, shown.curve, shown.point)
        text = say("losses", place, shown, largest, NAMES, sorted(gains), causes)
        key = f"{NAMES[largest.name]} {percent(largest.share.value)}" if largest else ""
    steps, money = f"/ {STEPS:,} steps", study.prices.currency or "money"
    columns = [
        Column("part"),
        Column("seconds", "per step", "s", "waterfall"),
        Column("share", "of the step", "points", "waterfall"),
        Column("throughput", "throughput lost", "samples/s", "waterfall"),
        Column("device_hours", f"device-hours {steps}", "h", "waterfall"),
        Column("money", f"{money} {steps}", "currency", "waterfall"),
        Column("energy", f"energy {steps}", "J", "waterfall"),
    ]
    rows = [(place_of(study, each.point), row) for each in sizes for row in _losses(study, each)]
    peak = [(place_of(study, each.point), row) for each in sizes for row in _from_peak(each)]
    caption = "The same step from the peak FLOP/s of the device, whose share is the MFU."
    return Section(
        "waterfall",
        _TITLE,
        text,
        key=key,
        tables=[
            size_table(study, "waterfall", _CAPTION, columns, rows),
            size_table(study, "waterfall_from_peak", caption, _PEAK_COLUMNS, peak),
        ],
        figures=[_figure(study, shown, place)],
    )


def _losses(study: Study, shown: Waterfall) -> Iterator[dict[str, Any]]:
    """Parts of the loss, and their sum, in each unit."""
    point = shown.point
    device_s, watts = point.size * STEPS, mean_watts(point.metrics)
    price = study.prices.price_of(point.metrics[0].device)
    units = {
        "throughput": point.global_batch_size / shown.ideal_s / shown.actual_s,
        "device_hours": device_s / 3600,
        "money": price and price * device_s / 3600,
        "energy": watts and watts * device_s,
    }
    lost_s = shown.actual_s - shown.ideal_s
    lost, share = (Estimate(total, total, total, 0) for total in (lost_s, lost_s / shown.actual_s))
    parts = [(NAMES[part.name], part.seconds, part.share) for part in shown.shown]
    for name, length_s, of_step in [*parts, ("sum: actual - ideal step", lost, share)]:
        costs = {unit: factor and factor * length_s.value for unit, factor in units.items()}
        yield {"part": name, "seconds": length_s, "share": of_step, **costs}


def _from_peak(shown: Waterfall) -> Iterator[dict[str, Any]]:
    """Parts from peak FLOP/s, where the FLOPs of the model and the peak of the device are known."""
    point, first = shown.point, shown.point.metrics[0]
    if not first.model_flops_per_sample or not first.peak_flops:
        return
    peak_s = first.model_flops_per_sample * point.global_batch_size / (point.size * first.peak_flops)
    ideal_s = {part.name: part.ideal_s for part in shown.parts}
    lengths_s = {
        "model FLOPs at the device's peak": peak_s,
        "compute beyond the peak, at the base": ideal_s.pop("compute_s", 0.0) - peak_s,
        **{f"{NAMES[name]}, at the base": length_s for name, length_s in ideal_s.items()},
        **{f"{NAMES[part.name]}, by scaling": part.seconds.value for part in shown.parts},
    }
    for name, length_s in lengths_s.items():
        if abs(share := length_s / shown.actual_s) >= SHOWN:
            yield {"part": name, "seconds": length_s, "share": share}


def _figure(study: Study, shown: Waterfall, place: str) -> Figure:
    def row(name: str, start_s: float, end_s: float, colour: str, seconds: Estimate | None = None) -> Row:
        label = cell(end_s - start_s, "s", max(shown.ideal_s, shown.actual_s)).text
        return Row(name, [Segment(start_s, end_s, colour, f"{name} {label}", seconds)], label)

    end_s = shown.ideal_s
    rows = [row("ideal step", 0.0, end_s, "faint")]
    for part in shown.shown:
        colour = PHASE_COLOURS.get(part.name, PHASE_COLOURS["comm_wait_s"])
        start_s, end_s = end_s, end_s + part.seconds.value
        rows.append(row(NAMES[part.name], start_s, end_s, colour, part.seconds))
    rows.append(row("actual step", 0.0, shown.actual_s, "faint"))
    alt = f"Waterfall at {place}: {', '.join(row.segments[0].title for row in rows)}"
    drawing = partial(bars, rows, f"time of a step at {place}", "s", emulated=study.emulated)
    return Figure("waterfall", _TITLE, drawing, alt)
