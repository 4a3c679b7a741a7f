"""What N nodes would do: the curves go on to sizes that were not measured."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from analysis.draw.charts import Guide
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
from analysis.units import plural, text


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
    """Throughput: measured points, and pale predicted ones with their 90 % intervals on a dashed line."""
    rows: list[tuple[Any, ...]] = []
    guides = []
    for each in shown:
        curve, last = each.curve, each.curve.points[-1]
        rows += [(curve.label, curve.name(point), point.size, point.samples_per_s) for point in curve.points]
        end = (last.size, last.samples_per_s.value)
        for made in each.made:
            rate, size = made.samples_per_s, made.nodes * made.per_node
            low, high = (rate * math.exp(sign * made.half[90]) for sign in (-1, 1))
            ends = " to ".join(text(bound, "samples/s") for bound in (low, high))
            name = f"{plural(size, curve.unit)}, predicted ({ends})"
            rows.append((curve.label, name, size, Estimate(rate, low, high, 0), "", True))
            guides.append(Guide((end[0], size), (end[1], rate), "predicted"))
            end = (size, rate)
    x = size_axis(unit_name([each.curve for each in shown]), [row[2] for row in rows])
    return points_figure(
        study,
        "prediction",
        "Predicted throughput",
        rows,
        "samples/s",
        x,
        "throughput (samples/s)",
        log=x.log,
        guides=guides,
    )


SECTIONS = {25: prediction}
