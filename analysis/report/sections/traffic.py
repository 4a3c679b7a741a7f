"""Traffic of GPUs over NVLink and PCIe."""

from __future__ import annotations

from functools import partial

from analysis.draw.bars import Row, Segment, bars
from analysis.draw.style import Axis, LegendItem
from analysis.report.common import all_points, over_repeats, point_name, size_table
from analysis.report.section import Column, Figure, Section
from analysis.report.sentences import say
from analysis.study import Study
from analysis.units import number

ORDER = 140

_RATES = {
    "nvlink_tx_bytes_per_s": ("NVLink sent", "c0"),
    "nvlink_rx_bytes_per_s": ("NVLink received", "c5"),
    "pcie_tx_bytes_per_s": ("PCIe sent", "c1"),
    "pcie_rx_bytes_per_s": ("PCIe received", "c4"),
}


def build(study: Study) -> Section | None:
    """None if no GPU reported traffic."""
    rows, rates = [], []
    for curve, point in all_points(study):
        gpus = [each.gpu for each in point.metrics if each.gpu is not None]
        values = [over_repeats(point, [getattr(each, name) for each in gpus]) for name in _RATES]
        if any(values):
            rows.append((curve, point, values))
            paths = zip(_RATES.values(), values, strict=True)
            place = point_name(study, curve, point)
            rates += [(rate.value, place, *path) for path, rate in paths if rate is not None]
    if not rows:
        return None
    columns = [Column(name, label, "B/s", "traffic") for name, (label, _) in _RATES.items()]
    table = size_table(study, "traffic", "Mean rate of one GPU over measured steps.", columns, rows)
    rate, place, path, _ = max(rates, key=lambda each: each[0])
    return Section(
        "traffic",
        "NVLink and PCIe traffic",
        say("traffic", rate=rate / 1e9, place=place, path=path),
        tables=[table],
        figures=[_figure(study, rates)],
    )


def _figure(study: Study, rates: list[tuple[float, str, str, str]]) -> Figure:
    """Bars of these rates: bytes/s, size, path, colour."""
    rows: list[Row] = []
    headings = set()
    for rate, place, path, colour in rates:
        if place not in headings:
            headings.add(place)
            rows.append(Row(place))
        text = f"{number(rate / 1e9)} GB/s"
        rows.append(Row(path, [Segment(0, rate / 1e9, colour, f"{place}, {path}: {text}")], text))
    drawing = partial(
        bars,
        rows,
        Axis("mean rate of a GPU (GB/s)", 0.0, max(rates)[0] / 1e9),
        [LegendItem(*each) for each in _RATES.values()],
        emulated=study.emulated,
    )
    alt = "; ".join(segment.title for row in rows for segment in row.segments)
    return Figure("traffic", "NVLink and PCIe traffic", drawing, alt, data="traffic")
