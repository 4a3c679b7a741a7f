"""Communication benchmarks (`bench comm`): collectives over sizes, DDP steps by form of communication."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from pydantic import ValidationError

from analysis.draw.style import size_axis
from analysis.report.common import points_figure
from analysis.report.section import Column, Figure, Section, Table, item_table
from analysis.report.sentences import say
from analysis.report.tables import table_view
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import binary_bytes
from disttrain.records.comm_bench import CommBench, StepTiming, Timing
from disttrain.records.json_files import CorruptFile, read_json

ORDER = 6


def build(study: Study) -> Section | None:
    """None without the result of a benchmark."""
    results: dict[str, CommBench] = {}
    for run in study.runs:
        with suppress(FileNotFoundError, CorruptFile, ValidationError):
            results[run.name] = CommBench.model_validate(read_json(run.folder.comm_bench))
    if not results:
        return None
    figures = [_figure(study, results)]
    return Section("comm-bench", "Communication benchmark", "", tables=_tables(results), figures=figures)


def printed(results: Mapping[str, CommBench]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Caption, headings and texts of the tables, for a terminal."""
    views = map(table_view, _tables(results))
    return [
        (
            view.words,
            [column.heading for column in view.columns],
            [[cell.line for _, cell in row] for row in view.rows],
        )
        for view in views
    ]


def _tables(results: Mapping[str, CommBench]) -> list[Table]:
    """The collectives and the steps of each run."""
    return [
        replace(part, name=f"{part.name}_{at}")
        for at, (run, result) in enumerate(results.items())
        for part in (_collectives(run, result), _steps(run, result))
    ]


def _collectives(run: str, result: CommBench) -> Table:
    columns = [
        Column("collective", "collective", get=lambda each: each.kind.replace("_", "-")),
        Column("bytes", "size", "B", key=True),
        Column("latency_s", "latency", "s", get=lambda each: _estimate(each.time)),
        Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
    ]
    caption = say("comm_collectives", run, result)
    return item_table("comm_bench_collectives", caption, columns, result.collectives)


def _steps(run: str, result: CommBench) -> Table:
    def median(value: float | None, low: float | None, high: float | None) -> Estimate | None:
        return None if value is None else Estimate(value, low, high, result.compute.repeats)

    def rate(step: StepTiming) -> float | None:  # a time whose interval includes 0 is no divisor
        known = step.exposed_s and step.exposed_low_s and step.exposed_low_s > 0
        return result.gradient_bytes / step.exposed_s if step.exposed_s and known else None

    columns = [
        Column("name", "form"),
        Column("options", "options"),
        Column("step_s", "step", "s", get=lambda each: each.step and _estimate(each.step)),
        Column(
            "exposed_s",
            "exposed",
            "s",
            get=lambda each: median(each.exposed_s, each.exposed_low_s, each.exposed_high_s),
        ),
        Column("bytes", "sent", "B"),
        Column(
            "ratio",
            "speed-up",
            "ratio",
            get=lambda each: median(each.speed_up, each.speed_up_low, each.speed_up_high),
        ),
        Column("bytes_per_s", "gradients / exposed", "B/s", get=rate),
    ]
    caption = say("comm_steps", run, result)
    return item_table("comm_bench_steps", caption, columns, result.steps)


def _estimate(time: Timing) -> Estimate:
    return Estimate(time.median_s, time.low_s, time.high_s, time.repeats)


def _figure(study: Study, results: Mapping[str, CommBench]) -> Figure:
    """Bus bandwidth by size of the message, a line for each collective of a run."""
    rows = [
        (
            f"{run} {each.kind.replace('_', '-')}",
            binary_bytes(each.bytes),
            float(each.bytes),
            _estimate(each.time).inverse(each.bus_bytes_per_s * each.time.median_s),
        )
        for run, result in results.items()
        for each in result.collectives
    ]
    x = replace(size_axis("message", [size for _, _, size, _ in rows]), form=binary_bytes)
    title, data = "Bus bandwidth by size of the message", "comm_bench_collectives_0"
    return points_figure(study, "comm_bench", title, rows, "B/s", x, "bus bandwidth", data, log=True)
