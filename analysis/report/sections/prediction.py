"""What N nodes would do: the curves go on to sizes that were not measured."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from analysis.draw.style import size_axis
from analysis.predict.basis import CurveForecast
from analysis.predict.forecast import Forecast, Refusal, replay_error
from analysis.report.common import (
    Column,
    Figure,
    Section,
    Study,
    item_table,
    points_figure,
    say,
    unit_name,
)
from analysis.results.curves import Curve
from analysis.stats.estimates import Estimate
from analysis.units import Unit, plural, text


class _Row(NamedTuple):
    curve: Curve
    forecast: Forecast

    @property
    def size(self) -> int:
        return self.forecast.nodes * self.forecast.per_node

    @property
    def bounds(self) -> tuple[float, float]:
        return self.forecast.bounds(90)

    def part(self, name: str) -> float | None:
        return self.forecast.parts.get(name)


def _columns(study: Study) -> list[Column]:
    curve = [Column("curve", "configuration", key=True, get="curve.label")]
    return [
        *(curve if len(study.curves) > 1 else []),
        Column("size", unit_name(study.curves), "count", key=True),
        Column("step_s", "step", "s", "step-time", get="forecast.step_s"),
        Column("step_low_s", "90 % from", "s", "prediction", get=lambda row: row.bounds[0]),
        Column("step_high_s", "to", "s", get=lambda row: row.bounds[1]),
        Column("samples_per_s", "throughput", "samples/s", "throughput", get="forecast.samples_per_s"),
        Column("efficiency", "efficiency", "share", "efficiency", get="forecast.efficiency"),
        Column("own_s", "own work", "s", get=lambda row: row.part("own work")),
        Column("exposed_s", "exposed communication", "s", get=lambda row: row.part("exposed communication")),
        Column("waiting_s", "waiting", "s", get=lambda row: row.part("waiting")),
        Column("method", "method", get="forecast.method"),
    ]


def prediction(study: Study) -> Section | None:
    """None where no curve can be predicted."""
    shown = [each for each in study.forecasts if each.made]
    if not shown:
        return None
    rows = [_Row(each.curve, made) for each in shown for made in each.made]
    lines = [_line(each) for each in study.forecasts]
    table = item_table("prediction", say("prediction_table", study.emulated), _columns(study), rows)
    return Section(
        "prediction",
        "What would N nodes do?",
        paragraphs=[*filter(None, lines), say("past_predictions", study.past_predictions)],
        tables=[table],
        figures=[_figure(study, shown)],
    )


def _line(each: CurveForecast) -> str:
    if isinstance(each.basis, Refusal):
        return say("not_predicted", each.curve.label, each.basis)
    replayed = any(made.parts for made in each.made)
    refusals = [(nodes, result) for nodes, result in each.results if isinstance(result, Refusal)]
    missing = next((made.missing for made in each.made if made.missing), "")
    return say("predicted", each, replay_error(each.basis) if replayed else None, missing, refusals)


def _figure(study: Study, shown: list[CurveForecast]) -> Figure:
    """Efficiency, or throughput without a base: measured points, and on dashed lines pale predicted ones with
    their 90 % intervals."""
    with_base = all(each.curve.base for each in shown)
    unit: Unit = "share" if with_base else "samples/s"
    title = "efficiency" if with_base else "throughput"
    rows: list[tuple[Any, ...]] = []
    for each in shown:
        curve = each.curve
        measured = [(curve.name(point), point.size, point) for point in curve.points]
        rows += [
            (curve.label, name, size, point.efficiency if with_base else point.samples_per_s)
            for name, size, point in measured
        ]
        for made in each.made:
            size = made.nodes * made.per_node
            value = made.efficiency if with_base and made.efficiency else made.samples_per_s
            low, high = (value * math.exp(sign * made.half[90]) for sign in (-1, 1))
            ends = " to ".join(text(bound, unit) for bound in (low, high))
            name = f"{plural(size, curve.unit)}, predicted ({ends})"
            rows.append((curve.label, name, size, Estimate(value, low, high, 0), "", True, True))
    x = size_axis(unit_name([each.curve for each in shown]), [row[2] for row in rows])
    levels = (0.0, 1.0) if with_base else ()
    heading = title if with_base else f"{title} (samples/s)"
    return points_figure(
        study,
        "prediction",
        f"Measured, and on dashed lines predicted {title}",
        rows,
        unit,
        x,
        heading,
        levels=levels,
        log=x.log and not with_base,
    )


SECTIONS = {25: prediction}
