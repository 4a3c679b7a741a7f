"""Cost of one training at each measured size: time, device-hours, money, energy; cheapest size in time."""

from __future__ import annotations

import math
from functools import partial

import pandas as pd

from analysis.costs.cost import SizeCost, cheapest, pareto, size_costs
from analysis.costs.energy import energy_per_sample, grams_per_sample
from analysis.draw.points import Points, points
from analysis.draw.style import Axis
from analysis.efficiency import Curve, Point
from analysis.report import common
from analysis.report.cells import cell
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.stats.estimates import Estimate
from analysis.stats.verdicts import EQUIVALENCE_MARGIN
from analysis.study import Study
from analysis.units import money, number, percent, plural, span

_DOMINATED = "another point is faster and cheaper"
_TIME_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
MEETS = {"yes": "yes", "no": "no", "undecided": "cannot tell", None: None}


def build(study: Study) -> Section | None:
    """None without a curve, or without planned steps where no number of samples is given."""
    samples = _samples(study)
    if samples is None:
        return None
    found = [(curve, costs_of(study, curve, samples)) for curve in study.curves]
    best = iter(_undominated(found))
    rows: list[list[Value]] = []
    sources: list[list[RunLink]] = []
    for curve, costs in found:
        for point, cost in zip(curve.points, costs, strict=True):
            energy, grams = _energy(study, curve, point)
            size = common.size_values(study, curve, point)
            spent: list[Value] = [cost.devices, cost.time_s, cost.device_hours, cost.money]
            rows.append([*size, *spent, energy, grams, next(best), MEETS[cost.meets]])
            sources.append(common.sources(study, curve, point))
    columns = [
        *common.size_columns(study),
        Column("devices", "devices", "count"),
        Column("time_s", "time", "span", "training-cost"),
        Column("device_hours", "device-hours", "h", "training-cost"),
        Column("money", study.prices.currency or "money", "currency", "training-cost"),
        Column("joules_per_sample", "GPU energy", "J/sample", "energy"),
        Column("grams_per_sample", "CO2 / sample", "g", "energy"),
        Column("pareto", "Pareto-optimal"),
        Column("meets", "within the deadline"),
    ]
    kept = [at for at, _ in enumerate(columns) if any(row[at] is not None for row in rows)]
    table = Table(
        "training_cost",
        "Steps alone at the measured throughput, without start-up, validation, repeated work and queue. "
        "Pareto-optimal: no row is both faster and cheaper; differences below "
        f"{percent(EQUIVALENCE_MARGIN, 0)} do not count.",
        [columns[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        sources,
    )
    conclusion = _conclusion(study, found, samples)
    return Section(
        "training-cost",
        "Cost of a training",
        conclusion,
        paragraphs=[_question(study, samples)],
        tables=[table],
        figures=[_figure(study, found)],
    )


def costs_of(study: Study, curve: Curve, samples: float) -> list[SizeCost]:
    """Costs of training on `samples` samples at the sizes of a curve."""
    devices = {point.size: point.devices for point in curve.points}
    price = study.prices.price_of(study.runs_of(curve, curve.points[0])[0]["device"])
    return size_costs(curve, samples, devices, price_per_hour=price, deadline_s=study.deadline_s)


def _samples(study: Study) -> float | None:
    """Samples of the training, the same for all curves: as given, or planned in the first curve."""
    planned = (_planned_samples(study, curve) for curve in study.curves)
    return study.samples or next((count for count in planned if count is not None), None)


def _in_money(found: list[tuple[Curve, list[SizeCost]]]) -> bool:
    return all(cost.money is not None for _, costs in found for cost in costs)


def _undominated(found: list[tuple[Curve, list[SizeCost]]]) -> list[bool]:
    """Whether no size of any curve is faster and cheaper, in the order of `found`.

    Emulated curves are compared with emulated ones alone: their time is that of no hardware. Differences
    within the margin of equivalence are none.
    """
    in_money = _in_money(found)
    every = [
        (curve.emulated, cost.time_s.value, ((cost.money if in_money else None) or cost.device_hours).value)
        for curve, costs in found
        for cost in costs
    ]
    best = {
        kind: iter(
            pareto(
                [(time_s, spent) for emulated, time_s, spent in every if emulated is kind], EQUIVALENCE_MARGIN
            )
        )
        for kind in (False, True)
    }
    return [next(best[emulated]) for emulated, _, _ in every]


def _planned_samples(study: Study, curve: Curve) -> float | None:
    """Planned steps of the base, or of the smallest size, times its global batch."""
    point = curve.base or curve.points[0]
    steps = study.runs_of(curve, point)[0]["steps_total"]
    return None if pd.isna(steps) else float(steps) * point.global_batch_size


def _energy(study: Study, curve: Curve, point: Point) -> tuple[Estimate | None, Estimate | None]:
    """Joules and grams of CO2 per sample."""
    metrics = [study.metrics[curve.sweep, run] for run in point.runs if (curve.sweep, run) in study.metrics]
    energy, grid = energy_per_sample(metrics), study.prices.grid_g_per_kwh
    return energy, None if energy is None or grid is None else grams_per_sample(energy, grid)


def _question(study: Study, samples: float) -> str:
    several = len({_planned_samples(study, curve) for curve in study.curves}) > 1
    source = "the planned steps of the base" + (" of the first configuration" if several else "")
    source = "as given" if study.samples else source
    unknown = (
        "" if study.prices.device_hour else " No price list was given (--prices FILE), so no money is shown."
    )
    batches = {point.global_batch_size for curve in study.curves for point in curve.points}
    shorter = ""
    if len(batches) > 1:
        steps = plural(math.ceil(samples / max(batches)), "step")
        shorter = (
            f" A larger global batch takes fewer steps for them: {steps} at {max(batches)} samples a step."
        )
    return f"The training has {number(samples)} samples, {source}.{shorter}{unknown}"


def _conclusion(study: Study, found: list[tuple[Curve, list[SizeCost]]], samples: float) -> str:
    """Cheapest and fastest size; of real and of emulated runs, where there are both."""
    kinds = [[each for each in found if each[0].emulated is kind] for kind in (False, True)]
    if not all(kinds):
        return _conclusion_of(study, found, samples)
    real, emulated = (_conclusion_of(study, each, samples) for each in kinds)
    return f"Real runs: {_lower(real)} Emulated runs: {_lower(emulated)}"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _conclusion_of(study: Study, found: list[tuple[Curve, list[SizeCost]]], samples: float) -> str:
    every = [(curve, cost) for curve, costs in found for cost in costs]
    if study.deadline_s is not None:
        best = cheapest([cost for _, cost in every])
        if best is None:
            return f"No measured size ends within {span(study.deadline_s)} for certain{_unknown(every)}."
        curve = next(curve for curve, cost in every if cost is best)
        return f"The cheapest size within {span(study.deadline_s)} is {_text(study, curve, best, samples)}."
    least = min(every, key=lambda each: each[1].device_hours.value)
    fastest = min(every, key=lambda each: each[1].time_s.value)
    if least[1] is fastest[1]:
        return f"The fastest size is also the cheapest: {_text(study, *least, samples)}."
    most = (1 + EQUIVALENCE_MARGIN) * least[1].device_hours.value
    alike = [
        _name(study, *each) for each in every if each is not least and each[1].device_hours.value <= most
    ]
    also = f" ({', '.join(alike)}: within {percent(EQUIVALENCE_MARGIN, 0)} of it)" if alike else ""
    return f"Cheapest: {_text(study, *least, samples)}{also}. Fastest: {_text(study, *fastest, samples)}."


def _unknown(every: list[tuple[Curve, SizeCost]]) -> str:
    """Reasons for which sizes have no interval, in parentheses; empty if all have one."""
    reasons = {
        "not stationary" if cost.time_s.basis == "not stationary" else "one repeat"
        for _, cost in every
        if cost.time_s.low is None
    }
    return f" ({', '.join(sorted(reasons))})" if reasons else ""


def _name(study: Study, curve: Curve, cost: SizeCost) -> str:
    name = f"{curve.label}, " if len(study.curves) > 1 else ""
    return f"{name}{plural(cost.size, curve.unit)}"


def _text(study: Study, curve: Curve, cost: SizeCost, samples: float) -> str:
    price = "" if cost.money is None else f", {money(cost.money.value)} {study.prices.currency}"
    point = next(each for each in curve.points if each.size == cost.size)
    steps = plural(round(samples / point.global_batch_size), "step")
    return (
        f"{_name(study, curve, cost)} with {span(cost.time_s.value)} for {steps} and "
        f"{number(cost.device_hours.value)} device-hours {cell(cost.device_hours, 'h').interval}{price}"
    )


def _figure(study: Study, found: list[tuple[Curve, list[SizeCost]]]) -> Figure:
    in_money, best = _in_money(found), iter(_undominated(found))
    label = f"cost ({study.prices.currency})" if in_money else "device-hours"
    unit_of_cost = (study.prices.currency or "money") if in_money else "device-hours"
    longest_s = max(cost.time_s.value for _, costs in found for cost in costs)
    size_s, unit = next((each for each in _TIME_UNITS if each[0] <= longest_s), (1.0, "s"))
    form = money if in_money else number
    shown = []
    for curve, costs in found:
        values = [(cost.money if in_money else None) or cost.device_hours for cost in costs]
        sizes = [plural(cost.size, curve.unit) for cost in costs]
        optimal = [next(best) for _ in costs]
        titles = [
            f"{f'{curve.label}, ' if len(found) > 1 else ''}{size}: {span(cost.time_s.value)}, "
            f"{form(value.value)} {unit_of_cost}{'' if is_best else f'; {_DOMINATED}'}"
            for cost, value, size, is_best in zip(costs, values, sizes, optimal, strict=True)
        ]
        pale = [at for at, is_best in enumerate(optimal) if not is_best]
        times = [cost.time_s.value / size_s for cost in costs]
        shown.append(Points(curve.label, times, values, titles, texts=sizes, pale=pale))
    highest = max(value.high or value.value for each in shown for value in each.estimates)
    drawing = partial(
        points,
        shown,
        Axis(f"time of the training ({unit})", 0.0, 1.1 * longest_s / size_s),
        Axis(label, 0.0, 1.15 * highest),
        emulated=study.emulated,
    )
    alt = "; ".join(title for each in shown for title in each.titles)
    return Figure("training_cost", "Cost against time", drawing, alt, data="training_cost")
