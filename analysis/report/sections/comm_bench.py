"""Communication benchmarks (`bench comm`): collectives over sizes, DDP steps by form of communication."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from analysis.draw.style import size_axis
from analysis.report.common import Column, Figure, Section, Study, Table, item_table, points_figure, say
from analysis.report.tables import table_view
from analysis.stats.estimates import Estimate
from analysis.units import binary_bytes
from disttrain.records.comm_bench import CollectiveTiming, CommBench, StepTiming, Timing
from disttrain.records.json_files import CorruptFile, read_json

ORDER = 6
_COLLECTIVES = (
    Column("collective", get=lambda each: _name(each)),
    Column("bytes", "size", "B", key=True),
    Column("latency_s", "latency", "s", get=lambda each: _estimate(each.time)),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
)
_STEPS = (
    Column("name", "form"),
    Column("options"),
    Column("step_s", "step", "s"),
    Column("exposed_s", "exposed", "s"),
    Column("bytes", "sent", "B"),
    Column("ratio", "speed-up", "ratio"),
    Column("bytes_per_s", "gradients / exposed", "B/s"),
)


def build(study: Study) -> Section | None:
    """None without the result of a benchmark."""
    results: dict[str, CommBench] = {}
    for run in study.runs:
        with suppress(FileNotFoundError, CorruptFile, ValidationError):
            results[run.name] = CommBench.model_validate(read_json(run.folder.comm_bench))
    if not results:
        return None
    figures = [_figure(study, results)]
    return Section("comm-bench", "Communication benchmark", tables=_tables(results), figures=figures)


def printed(results: Mapping[str, CommBench]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Caption, headings and texts of the tables, for a terminal."""
    return [
        (
            view.words,
            [column.heading for column in view.columns],
            [[cell.line for _, cell in row] for row in view.rows],
        )
        for view in map(table_view, _tables(results))
    ]


def _tables(results: Mapping[str, CommBench]) -> list[Table]:
    """The collectives and the steps of each run."""
    return [
        item_table(f"comm_bench_{kind}_{at}", say(f"comm_{kind}", run, result), columns, items)
        for at, (run, result) in enumerate(results.items())
        for kind, columns, items in (
            ("collectives", _COLLECTIVES, result.collectives),
            ("steps", _STEPS, [_step(result, step) for step in result.steps]),
        )
    ]


def _step(result: CommBench, step: StepTiming) -> dict[str, Any]:
    """Values of `_STEPS`."""

    def median(value: float | None, low: float | None, high: float | None) -> Estimate | None:
        return None if value is None else Estimate(value, low, high, result.compute.repeats)

    exposed = median(step.exposed_s, step.exposed_low_s, step.exposed_high_s)
    divides = exposed and exposed.low and exposed.low > 0  # unlike a time whose interval includes 0
    return {
        **vars(step),
        "step_s": step.step and _estimate(step.step),
        "exposed_s": exposed,
        "ratio": median(step.speed_up, step.speed_up_low, step.speed_up_high),
        "bytes_per_s": result.gradient_bytes / exposed.value if exposed and divides else None,
    }


def _name(timed: CollectiveTiming) -> str:
    return timed.kind.replace("_", "-")


def _estimate(time: Timing) -> Estimate:
    return Estimate(time.median_s, time.low_s, time.high_s, time.repeats)


def _figure(study: Study, results: Mapping[str, CommBench]) -> Figure:
    """Bus bandwidth by size of the message, a line for each collective of a run."""
    rows = [
        (
            f"{run} {_name(each)}",
            binary_bytes(each.bytes),
            float(each.bytes),
            _estimate(each.time).inverse(each.bus_bytes_per_s * each.time.median_s),
        )
        for run, result in results.items()
        for each in result.collectives
    ]
    x = size_axis("message", [size for _, _, size, _ in rows])
    x = x._replace(form=lambda size, _: binary_bytes(size))
    title, data = "Bus bandwidth by size of the message", "comm_bench_collectives_0"
    return points_figure(study, "comm_bench", title, rows, "B/s", x, "bus bandwidth", data, log=True)
