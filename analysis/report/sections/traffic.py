"""Traffic of GPUs over NVLink and PCIe."""

from __future__ import annotations

from functools import partial

from analysis.draw.bars import Row, Segment, bars
from analysis.draw.style import Axis, LegendItem
from analysis.report.common import (
    all_points,
    over_repeats,
    point_name,
    size_columns,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import number

_RATES = {
    "nvlink_tx_bytes_per_s": ("NVLink sent", "c0"),
    "nvlink_rx_bytes_per_s": ("NVLink received", "c5"),
    "pcie_tx_bytes_per_s": ("PCIe sent", "c1"),
    "pcie_rx_bytes_per_s": ("PCIe received", "c4"),
}


def build(study: Study) -> Section | None:
    """None if no GPU reported traffic."""
    rows: list[list[Value]] = []
    points, links = [], []
    for curve, point in all_points(study):
        metrics = [study.metrics.get((curve.sweep, run)) for run in point.runs]
        gpus = [each.gpu for each in metrics if each is not None and each.gpu is not None]
        values = [over_repeats(point, [getattr(each, name) for each in gpus]) for name in _RATES]
        if any(value is not None for value in values):
            rows.append([*size_values(study, curve, point), *values])
            points.append((point_name(study, curve, point), values))
            links.append(sources(study, curve, point))
    if not rows:
        return None
    table = Table(
        "traffic",
        "Rate of one GPU: mean over GPUs, samples of measured steps, and repeats.",
        [
            *size_columns(study),
            *(Column(name, label, "B/s", "traffic") for name, (label, _) in _RATES.items()),
        ],
        rows,
        links,
    )
    name, fastest, rate = max(
        (
            (name, label, value.value)
            for name, values in points
            for (label, _), value in zip(_RATES.values(), values, strict=True)
            if value is not None
        ),
        key=lambda each: each[2],
    )
    conclusion = f"The busiest path is {fastest} on {name}: {number(rate / 1e9)} GB/s for each GPU."
    return Section(
        "traffic",
        "NVLink and PCIe traffic",
        conclusion,
        tables=[table],
        figures=[_figure(study, points, rate)],
    )


def _figure(study: Study, points: list[tuple[str, list[Estimate | None]]], highest: float) -> Figure:
    rows = []
    for name, values in points:
        rows.append(Row(name))
        for (label, colour), value in zip(_RATES.values(), values, strict=True):
            if value is not None:
                gigabytes = value.value / 1e9
                text = f"{number(gigabytes)} GB/s"
                rows.append(Row(label, [Segment(0, gigabytes, colour, f"{name}, {label}: {text}")], text))
    drawing = partial(
        bars,
        rows,
        Axis("mean rate of a GPU (GB/s)", 0.0, highest / 1e9),
        [LegendItem(label, colour) for label, colour in _RATES.values()],
        emulated=study.emulated,
    )
    alt = "; ".join(segment.title for row in rows for segment in row.segments)
    return Figure("traffic", "NVLink and PCIe traffic", drawing, alt, data="traffic")
