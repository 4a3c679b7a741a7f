"""Cost of one training at each measured size: time, device-hours, money, energy; cheapest size in time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.costs.cost import SizeCost, cheapest, pareto, size_costs
from analysis.costs.energy import energy_per_sample, grams_per_sample
from analysis.efficiency import Curve, Point
from analysis.figures.cost_figure import CostPoint, cost_figure
from analysis.figures.style import curve_class
from analysis.report import common
from analysis.report.cells import cell
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.stats.estimates import Estimate
from analysis.stats.verdicts import EQUIVALENCE_MARGIN
from analysis.study import Study
from analysis.svg.labels import Box, Label, along, distinct, point_labels
from analysis.svg.lines import line, points
from analysis.svg.plot import LegendItem, Plot
from analysis.svg.scales import Axis
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
    shown = [
        CostPoint(
            curve.label,
            plural(cost.size, curve.unit),
            cost.time_s.value / size_s,
            (cost.money if in_money else None) or cost.device_hours,
            next(best),
        )
        for curve, costs in found
        for cost in costs
    ]
    several, form = len(found) > 1, money if in_money else number
    titles = [
        f"{f'{each.curve}, ' if several else ''}{each.size}: {span(each.time * size_s)}, "
        f"{form(each.cost.value)} {unit_of_cost}{'' if each.best else f'; {_DOMINATED}'}"
        for each in shown
    ]
    time_label = f"time of the training ({unit})"
    return Figure(
        "training_cost",
        "Cost against time",
        _optimal(shown, [curve.emulated for curve, costs in found for _ in costs], unit, unit_of_cost),
        _drawn(shown, titles, time_label, label),
        "; ".join(titles),
        lambda: cost_figure(shown, time_label, label, emulated=study.emulated),
        f"Points to the lower left are better; of a hollow point, {_DOMINATED}. Lines join the sizes of a "
        "configuration.",
        data="training_cost",
    )


def _optimal(shown: Sequence[CostPoint], emulated: Sequence[bool], unit: str, unit_of_cost: str) -> str:
    """Number and extent of the Pareto-optimal points; of real and of emulated ones, where there are both."""
    parts = []
    for kind, name in ((False, "real"), (True, "emulated")):
        own = [each for each, is_emulated in zip(shown, emulated, strict=True) if is_emulated is kind]
        if not own:
            continue
        extent = _extent(own, unit, unit_of_cost)
        noun = "point" if len(own) == len(shown) else f"{name} point"
        best = sum(each.best for each in own)
        parts.append(
            f"the only {noun} is at {extent}"
            if len(own) == 1
            else f"{best} of {plural(len(own), noun)} {'is' if best == 1 else 'are'} Pareto-optimal: {extent}"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _extent(shown: Sequence[CostPoint], unit: str, unit_of_cost: str) -> str:
    """Time and cost of the fastest and of the cheapest Pareto-optimal point."""
    best = [each for each in shown if each.best]
    fastest, cheapest_one = min(best, key=lambda each: each.time), min(best, key=lambda each: each.cost.value)
    texts = []
    for each in dict.fromkeys((fastest, cheapest_one)):
        spent = cell(each.cost, "currency")
        interval = spent.in_text.removeprefix(spent.text)
        texts.append(f"{number(each.time)} {unit} for {spent.text} {unit_of_cost}{interval}")
    return " to ".join(texts)


def _drawn(shown: Sequence[CostPoint], titles: Sequence[str], time_label: str, label: str) -> str:
    """The `<svg>`: one line for each configuration, from size to size."""
    curves = list(dict.fromkeys(each.curve for each in shown))
    legend = [LegendItem(curve, curve_class(at), "line", curve) for at, curve in enumerate(curves)]
    plot = Plot(
        "training-cost",
        "Cost against time",
        "; ".join(titles),
        Axis(time_label, 0.0, 1.1 * max(each.time for each in shown)),
        Axis(label, 0.0, 1.15 * max(each.cost.high or each.cost.value for each in shown)),
        legend if len(curves) > 1 else [],
        grid="xy",
    )
    labels: list[Label] = []
    lines: list[Box] = []
    for at, curve in enumerate(curves):
        colour = curve_class(at)
        own = [(each, title) for each, title in zip(shown, titles, strict=True) if each.curve == curve]
        times, costs = [each.time for each, _ in own], [each.cost.value for each, _ in own]
        plot.add(line(plot, times, costs, colour, key=curve, style="thin"))
        lines += along([(plot.xs(time), plot.ys(cost)) for time, cost in zip(times, costs, strict=True)])
        for each, title in own:
            style = "" if each.best else "hollow"
            plot.add(points(plot, [each.time], [each.cost], colour, [title], key=curve, style=style))
            labels.append(Label(each.size, plot.xs(each.time), plot.ys(each.cost.value)))
    plot.add(point_labels(plot, distinct(labels), lines))
    return plot.svg()
