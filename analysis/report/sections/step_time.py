"""The time of a step: waterfall from the ideal to the actual step, phases, bottlenecks and POP factors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from analysis.draw.charts import Row, Segment, bars
from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES
from analysis.report.common import (
    STEP,
    Column,
    Figure,
    Section,
    Study,
    bars_figure,
    leading,
    place_of,
    places,
    say,
    size_table,
)
from analysis.results.advice import advice, situation
from analysis.results.cost import mean_watts
from analysis.results.curves import phase_s
from analysis.results.lost_time import (
    NAMED,
    NEEDED,
    PERSISTENT,
    SHOWN,
    STRAGGLERS,
    TRANSIENT,
    Bottleneck,
    Waterfall,
    at_largest,
    compute_causes,
    largest_loss,
    waterfalls,
)
from analysis.results.pop import EFFICIENCY, FACTORS, SCALING, curve_factors
from analysis.stats.estimates import Estimate
from analysis.units import cell, percent
from disttrain.records.steps import PHASES

STEPS = 1000
"""Steps that device-hours, money and joules count."""
_PARTS = PHASE_NAMES | {PERSISTENT: "persistent waiting", TRANSIENT: "transient waiting"}
_WATERFALL = "From the ideal to the actual step"
_BEYOND = (
    "Time of each phase beyond the prediction of the base; data transfer contains the noise floor of waiting."
)
_PEAK_COLUMNS = (
    Column("part"),
    Column("seconds", "per step", "s"),
    Column("share", "of the step", "share", "mfu"),
)


def waterfall(study: Study) -> Section | None:
    """None without a size beside the base, or without measured phases."""
    sizes = waterfalls(study)
    if not sizes:
        return None
    shown = next((each for each in reversed(sizes) if each.curve is study.leading_curve), sizes[-1])
    place, largest, text, key = place_of(study, shown.point).name, largest_loss(shown), "", ""
    if not study.forbidden("headline", shown.curve):
        gains = [(part.share.value, _PARTS[part.name]) for part in shown.whole if part.share.value <= -NAMED]
        causes = compute_causes(study, shown.curve, shown.point)
        text = say("losses", place, shown, largest, _PARTS, sorted(gains), causes)
        key = f"{_PARTS[largest.name]} {percent(largest.share.value)}" if largest else ""
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
        _WATERFALL,
        text,
        key=key,
        tables=[
            size_table(study, "waterfall", _BEYOND, columns, rows),
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
    parts = [(_PARTS[part.name], part.seconds, part.share) for part in shown.shown]
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
        **{f"{_PARTS[name]}, at the base": length_s for name, length_s in ideal_s.items()},
        **{f"{_PARTS[part.name]}, by scaling": part.seconds.value for part in shown.parts},
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
        rows.append(row(_PARTS[part.name], start_s, end_s, colour, part.seconds))
    rows.append(row("actual step", 0.0, shown.actual_s, "faint"))
    alt = f"Waterfall at {place}: {', '.join(row.segments[0].title for row in rows)}"
    drawing = partial(bars, rows, f"time of a step at {place}", "s", emulated=study.emulated)
    return Figure("waterfall", _WATERFALL, drawing, alt)


_TITLE = "Step time by phase"


def composition(study: Study) -> Section | None:
    """Bars and table of phases; None if no run has them."""
    items = [(place, place.point) for place in places(study) if place.point.phases.known]
    if not items:
        return None
    columns = [
        Column(name, PHASE_NAMES[name], "s", "phases", get=phase_s(name), colour=PHASE_COLOURS[name])
        for name in PHASES
        if any((point.composition[name] or 0.0) >= SHOWN * point.step_s.value for _, point in items)
    ]
    table = size_table(study, "composition", "Mean time of a step in each phase.", [STEP, *columns], items)
    figures = bars_figure(study, table, _TITLE, "mean time of a step")
    place, point = leading(study), leading(study).point
    longest = max(PHASES, key=lambda name: point.composition[name] or 0.0)
    share = point.phases.share(longest) if point.phases.known else None
    text = say("longest_phase", place.name, PHASE_NAMES[longest], share)
    return Section("composition", _TITLE, text, tables=[table], figures=figures)


_BOTTLENECKS = PHASE_NAMES | {STRAGGLERS: "the stragglers' compute and waiting"}
_COLUMNS = (
    Column("part", get=lambda row: _name(row[0])),
    Column("share", "of the step", "share", get=lambda row: row[0].share),
    Column("ceiling", "gain at most", "share", "gain-ceiling", get=lambda row: row[0].ceiling),
    Column("advice", "to try", get=lambda row: advice(*row)),
)


def bottlenecks(study: Study) -> Section:
    """Empty without measured phases."""
    rows, text = [], ""
    for curve in study.curves:
        parts, place = at_largest(study, curve), place_of(study, curve.points[-1])
        if parts is None:
            continue
        at = situation(study, curve, place.point)
        rows += [(place, (part, at)) for part in parts]
        if curve is study.leading_curve:
            named = [(part, _name(part), part.phase in NEEDED, advice(part, at, most=1)) for part in parts]
            text = say("bottleneck", place.name, named)
    caption = "Gain in throughput if all of the part vanished."
    table = size_table(study, "bottlenecks", caption, _COLUMNS, rows)
    return Section("bottlenecks", "Bottlenecks", text, tables=[table])


def _name(part: Bottleneck) -> str:
    return _BOTTLENECKS[part.phase] + (", without the stragglers' part" if part.rest else "")


_FACTORS = {
    EFFICIENCY: "parallel efficiency",
    "persistent_balance": "balance, persistent",
    "transient_balance": "balance, transient",
    "host": "host",
    "transfer": "transfer",
    SCALING: "computation scaling",
}
_PRODUCT = (
    "Factors of the parallel efficiency. Transfer here is the step beyond its slowest rank; the waterfall's "
    "is the recorded transfer with an estimate of the noise in waiting, so that the two differ slightly."
)


def pop(study: Study) -> Section | None:
    """None if no size has the step records of all its ranks."""
    by_point = [factors for curve in study.curves for factors in curve_factors(curve)]
    items = list(zip(places(study), by_point, strict=True))
    known = [
        (factors[name], _FACTORS[name], place.name)
        for place, factors in items
        for name in FACTORS
        if factors and place.point.world_size > 1
    ]
    if not known:
        return None
    value, name, place = min(known, key=lambda each: each[0].value)
    columns = [Column(key, heading, "share", "pop-factors") for key, heading in _FACTORS.items()]
    table = size_table(study, "pop_factors", _PRODUCT, columns, items)
    text, key = say("smallest_factor", name, value, place), f"{name} {percent(value.value)}"
    return Section("pop", "POP factors", text, key=key, tables=[table])


SECTIONS = {60: waterfall, 70: composition, 80: bottlenecks, 210: pop}
