"""Communication benchmarks (`bench comm`): collectives over sizes, DDP steps by form of communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pydantic import ValidationError

from analysis.draw.points import Points, extent
from analysis.draw.style import size_axis, value_axis
from analysis.report.common import points_figure
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.tables import table_view
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import binary_bytes, text
from disttrain.records.comm_bench import CommBench, Timing
from disttrain.records.json_files import CorruptFile, read_json

ORDER = 6


def build(study: Study) -> Section | None:
    """None without the result of a benchmark."""
    results: dict[str, CommBench] = {}
    for run in study.runs:
        if run.folder.comm_bench.exists():
            try:
                results[run.name] = CommBench.model_validate(read_json(run.folder.comm_bench))
            except (CorruptFile, ValidationError):
                continue
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
    parts = [
        part for run, result in results.items() for part in (_collectives(run, result), _steps(run, result))
    ]
    return [replace(part, name=f"{part.name}_{at // 2}") for at, part in enumerate(parts)]


def _conditions(result: CommBench) -> str:
    """Device, shape and software of a result."""
    device = "CPU" if result.device == "cpu" else f"GPU {result.device}"
    alone = ", all on one machine" if result.one_machine and result.nodes > 1 else ""
    nccl = f", NCCL {result.nccl}" if result.backend == "nccl" else ""
    return (
        f"{device}, {result.nodes} nodes x {result.ranks_per_node} ranks{alone}, "
        f"{result.cpu_count} processors, {result.backend}{nccl}, torch {result.torch}"
    )


def _collectives(run: str, result: CommBench) -> Table:
    columns = [
        Column("collective", "collective"),
        Column("bytes", "size", "B", key=True),
        Column("latency_s", "latency", "s"),
        Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
    ]
    rows: list[list[Value]] = [
        [each.kind.replace("_", "-"), each.bytes, _estimate(each.time), each.bus_bytes_per_s]
        for each in result.collectives
    ]
    caption = f"{run}: collectives ({_conditions(result)}). The latency is that of the last rank to arrive."
    return Table("comm_bench_collectives", caption, columns, rows)


def _steps(run: str, result: CommBench) -> Table:
    columns = [
        Column("form", "form"),
        Column("options", "options"),
        Column("step_s", "step", "s"),
        Column("exposed_s", "exposed", "s"),
        Column("bytes", "sent", "B"),
        Column("ratio", "speed-up", "ratio"),
        Column("bytes_per_s", "gradients / exposed", "B/s"),
        Column("exposed_ratio", "by exposed", "ratio"),
    ]
    # a time whose interval includes 0 is no divisor
    known = {each.name: each.exposed_s for each in result.steps if (each.exposed_low_s or 0.0) > 0}
    rows: list[list[Value]] = []
    for each in result.steps:
        base_s, exposed_s, repeats = known.get("baseline"), known.get(each.name), result.compute.repeats
        low_s, high_s = each.exposed_low_s, each.exposed_high_s
        low, high = each.speed_up_low, each.speed_up_high
        rows.append(
            [
                each.name,
                each.options,
                _estimate(each.step) if each.step else None,
                None if each.exposed_s is None else Estimate(each.exposed_s, low_s, high_s, repeats),
                each.bytes,
                None if each.speed_up is None else Estimate(each.speed_up, low, high, repeats),
                result.gradient_bytes / exposed_s if exposed_s else None,
                base_s / exposed_s if base_s and exposed_s else None,
            ]
        )
    caption = [
        f"{run}: DDP step ({_conditions(result)}). {result.layers} layers {result.width} x {result.width}, "
        f"{result.rows} samples a rank, gradients of {binary_bytes(result.gradient_bytes)}; without "
        f"communication {text(result.compute.median_s, 's')} a step. Exposed: the step less that; sent: "
        "handed to collectives by rank 0. Medians of rounds; a speed-up whose interval includes 1 shows no "
        "difference.",
        *(f"{each.name} not measured: {each.reason}." for each in result.steps if each.reason),
    ]
    return Table("comm_bench_steps", " ".join(caption), columns, rows)


def _estimate(time: Timing) -> Estimate:
    return Estimate(time.median_s, time.low_s, time.high_s, time.repeats)


def _figure(study: Study, results: Mapping[str, CommBench]) -> Figure:
    """Bus bandwidth by size of the message, a line for each collective of a run."""
    shown = []
    for run, result in results.items():
        for kind in dict.fromkeys(each.kind for each in result.collectives):
            timed = [each for each in result.collectives if each.kind == kind]
            rates = [
                _estimate(each.time).inverse(each.bus_bytes_per_s * each.time.median_s) for each in timed
            ]
            label = f"{run} {kind.replace('_', '-')}"
            titles = [
                f"{label}, {binary_bytes(each.bytes)}: {text(each.bus_bytes_per_s, 'B/s')}" for each in timed
            ]
            shown.append(Points(label, [float(each.bytes) for each in timed], rates, titles))
    rates = [rate for each in shown for rate in each.estimates]
    x = replace(size_axis("message", [size for each in shown for size in each.xs]), form=binary_bytes)
    y = value_axis("bus bandwidth", *extent(rates), log=True, form=partial(text, unit="B/s"))
    data = "comm_bench_collectives_0"
    return points_figure(study, "comm_bench", "Bus bandwidth by size of the message", shown, x, y, data)
