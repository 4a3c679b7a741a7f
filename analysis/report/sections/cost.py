"""Cost: one training at each size in time, device-hours, money and energy, and what the runs used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from analysis.comparison import is_settled, trained_alike
from analysis.draw.points import Points, points
from analysis.draw.style import Axis
from analysis.report import common
from analysis.report.run_records import RunCost, run_costs
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.cost import J_PER_KWH, SizeCost, energy_per_sample, pareto, size_costs
from analysis.stats.estimates import Estimate
from analysis.stats.verdicts import EQUIVALENCE_MARGIN
from analysis.study import Study
from analysis.units import money, number, span
from disttrain.config.dotted_keys import get_key

_DOMINATED = "another point is faster and cheaper, or it is not ranked"
_TIME_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))

ORDER = 180


def build(study: Study) -> Section | None:
    """None if no run has started."""
    used = run_costs(study.runs)
    samples = _samples(study)
    costs = [] if samples is None else training_costs(study, samples)
    if not used and not costs:
        return None
    best = _pareto(study, costs)
    sentences = [_training(study, costs, samples, emulated=kind) for kind in (False, True)] if samples else []
    return Section(
        "cost",
        "Cost",
        common.sentence([*sentences, _usage(study, used)]),
        tables=[*([_costs(study, costs, best)] if costs else []), *([_used(study, used)] if used else [])],
        figures=[_figure(study, costs, best)] if costs else [],
    )


def training_costs(study: Study, samples: float) -> list[SizeCost]:
    """Costs of training on `samples` samples at the sizes of all curves."""
    costs: list[SizeCost] = []
    for curve in study.curves:
        price = study.prices.price_of(curve.points[0].metrics[0].device)
        costs += size_costs(curve, samples, price)
    return costs


def _samples(study: Study) -> float | None:
    """Samples of the training, the same for all curves: as given, or the planned steps of the base of the
    first curve that has them, times its global batch."""
    if study.samples or not study.curves:
        return study.samples if study.curves else None
    bases = (curve.base or curve.points[0] for curve in study.curves)
    return next((float(base.metrics[0].steps_total * base.global_batch_size) for base in bases), None)


def _ranked(study: Study, costs: Sequence[SizeCost], *, emulated: bool) -> list[SizeCost]:
    """The settled sizes, real or emulated ones; none where they trained differently."""
    kind = [cost for cost in costs if cost.curve.emulated is emulated and is_settled(cost.point)]
    return kind if trained_alike([cost.point for cost in kind]) else []


def _spent(cost: SizeCost, costs: Sequence[SizeCost]) -> Estimate:
    """Money where each size has a price, else device-hours."""
    return cost.money if cost.money and all(each.money for each in costs) else cost.device_hours


def _unsettled(costs: Sequence[SizeCost], *, emulated: bool) -> list[SizeCost]:
    return [cost for cost in costs if cost.curve.emulated is emulated and not is_settled(cost.point)]


def _may_reach(other: Estimate, best: Estimate) -> bool:
    """Whether a quantity that is not settled may be as small as the best: it may be without an interval."""
    return other.low is None or other.low <= best.value


def _pareto(study: Study, costs: Sequence[SizeCost]) -> list[bool | None]:
    """Whether no size is faster and cheaper; None for sizes that are not ranked, and where one that is not
    settled may be."""
    best: dict[int, bool] = {}
    for emulated in (False, True):
        ranked = _ranked(study, costs, emulated=emulated)
        marks = pareto(
            [(cost.time_s.value, _spent(cost, costs).value) for cost in ranked], EQUIVALENCE_MARGIN
        )
        left_out = _unsettled(costs, emulated=emulated)
        best |= {
            id(cost): mark
            for cost, mark in zip(ranked, marks, strict=True)
            if not mark
            or not any(
                _may_reach(other.time_s, cost.time_s)
                and _may_reach(_spent(other, costs), _spent(cost, costs))
                for other in left_out
            )
        }
    return [best.get(id(cost)) for cost in costs]


def _training(study: Study, costs: Sequence[SizeCost], samples: float | None, *, emulated: bool) -> str:
    """Cheapest and fastest size, or the cheapest within the deadline; empty without a size of this kind."""
    kind = [cost for cost in costs if cost.curve.emulated is emulated]
    if not kind:
        return ""
    ranked = _ranked(study, costs, emulated=emulated)
    settled = sum(is_settled(cost.point) for cost in kind)
    deadline_s = study.deadline_s
    in_time = ranked if deadline_s is None else [cost for cost in ranked if cost.meets(deadline_s) == "yes"]
    cheapest = min(in_time, key=lambda cost: _spent(cost, costs).value, default=None)
    fastest = min(in_time, key=lambda cost: cost.time_s.value, default=None)
    rivals = [
        common.point_name(study, cost.curve, cost.point)
        for cost in _unsettled(costs, emulated=emulated)
        if cheapest and fastest
        if deadline_s is None or cost.meets(deadline_s) != "no"
        if _may_reach(_spent(cost, costs), _spent(cheapest, costs))
        or (deadline_s is None and _may_reach(cost.time_s, fastest.time_s))
    ]
    return say(
        "training_cost",
        kind="" if len(kind) == len(costs) else "emulated " if emulated else "real ",
        samples=samples,
        reason="" if ranked else "their runs trained differently" if settled else "too few repeats",
        deadline_s=deadline_s,
        sizes=len(kind),
        rivals=rivals,
        cheapest=cheapest,
        fastest=fastest,
        name=lambda cost: common.point_name(study, cost.curve, cost.point),
        currency=study.prices.currency,
    )


def _costs(study: Study, costs: Sequence[SizeCost], best: Sequence[bool | None]) -> Table:
    rows: list[list[Value]] = []
    for cost, mark in zip(costs, best, strict=True):
        size = common.size_values(study, cost.curve, cost.point)
        meets = None if study.deadline_s is None else cost.meets(study.deadline_s)
        spent = [cost.time_s, cost.device_hours, cost.money]
        rows.append([*size, *spent, *_energy(study, cost), mark, meets])
    columns = [
        *common.size_columns(study),
        Column("time_s", "time", "span", "training-cost"),
        Column("device_hours", "device-hours", "h", "training-cost"),
        Column("money", study.prices.currency or "money", "currency", "training-cost"),
        Column("joules_per_sample", "GPU energy", "J/sample", "energy"),
        Column("grams_per_sample", "CO2 / sample", "g", "energy"),
        Column("pareto", "Pareto-optimal"),
        Column("meets", "within the deadline"),
    ]
    kept = [at for at, _ in enumerate(columns) if any(row[at] is not None for row in rows)]
    return Table(
        "training_cost",
        "One training at the measured throughput: its steps alone.",
        [columns[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        [common.sources(cost.point) for cost in costs],
    )


def _energy(study: Study, cost: SizeCost) -> tuple[Estimate | None, Estimate | None]:
    """Joules and grams of CO2 per sample."""
    energy = energy_per_sample(cost.point.metrics)
    grid = study.prices.grid_g_per_kwh
    return energy, None if energy is None or grid is None else energy.scaled(grid / J_PER_KWH)


def _usage(study: Study, used: Sequence[RunCost]) -> str:
    """Hours by unit, attempts, queue time, and runs that held GPUs without using them."""
    sums = []
    for unit in sorted({row.unit for row in used}):
        rows = [row for row in used if row.unit == unit]
        bounds = [row.hours_bound for row in rows if row.hours_bound is not None]
        sums.append((unit, sum(row.hours for row in rows), sum(bounds) if len(bounds) == len(rows) else None))
    waits = [row.queue_wait_s for row in used if row.queue_wait_s is not None]
    return say(
        "usage",
        sums=sums,
        attempts=sum(row.attempts for row in used),
        queue_s=sum(waits) if waits else None,
        idle=_with_idle_gpus(study),
    )


def _with_idle_gpus(study: Study) -> int:
    """Number of runs whose jobs held GPUs while their ranks ran on processors."""
    return sum(
        run.metrics is not None
        and run.metrics.device == "cpu"
        and run.usage is not None
        and run.usage.unit == "GPU-hours"
        and bool(get_key(run.config, "resources.gpus_per_node"))
        for run in study.runs
    )


def _used(study: Study, used: Sequence[RunCost]) -> Table:
    paths = {(run.sweep, run.name): run.path for run in study.runs}
    rows: list[list[Value]] = [
        [
            RunLink(
                row.run if len(study.sweeps) == 1 else f"{row.sweep}/{row.run}", paths[row.sweep, row.run]
            ),
            row.state,
            row.attempts,
            row.hours,
            row.unit,
            row.hours_bound,
            row.queue_wait_s,
            row.source,
        ]
        for row in used
    ]
    columns = [
        Column("run", "run"),
        Column("state", "state"),
        Column("attempts", "attempts", "count"),
        Column("hours", "used", "h", "device-hours"),
        Column("unit", "unit"),
        Column("hours_bound", "limit per start", "h", "device-hours"),
        Column("queue_wait_s", "queue time", "span"),
        Column("source", "source"),
    ]
    return Table("run_costs", "Use of each started run over all attempts, finished or not.", columns, rows)


def _figure(study: Study, costs: Sequence[SizeCost], best: Sequence[bool | None]) -> Figure:
    currency = study.prices.currency if all(cost.money for cost in costs) else None
    longest_s = max(cost.time_s.value for cost in costs)
    size_s, unit = next((each for each in _TIME_UNITS if each[0] <= longest_s), (1.0, "s"))
    spent = [_spent(cost, costs) for cost in costs]
    titles = [
        f"{common.point_name(study, cost.curve, cost.point)}: {span(cost.time_s.value)}, "
        f"{(money if currency else number)(value.value)} {currency or 'device-hours'}"
        f"{'' if mark else f'; {_DOMINATED}'}"
        for cost, value, mark in zip(costs, spent, best, strict=True)
    ]
    shown = []
    for curve in study.curves:
        at = [index for index, cost in enumerate(costs) if cost.curve is curve]
        times, values = [costs[index].time_s.value / size_s for index in at], [spent[index] for index in at]
        sizes = [curve.name(costs[index].point) for index in at]
        pale = [place for place, index in enumerate(at) if not best[index]]
        texts = [titles[index] for index in at]
        shown.append(Points(curve.label, times, values, texts, texts=sizes, pale=pale))
    highest = max(value.high or value.value for value in spent)
    drawing = partial(
        points,
        shown,
        Axis(f"time of the training ({unit})", 0.0, 1.1 * longest_s / size_s),
        Axis(f"cost ({currency})" if currency else "device-hours", 0.0, 1.15 * highest),
        emulated=study.emulated,
    )
    return Figure("training_cost", "Cost against time", drawing, "; ".join(titles), data="training_cost")
