"""Section of the waterfall: from the ideal step to the actual one, by phase, as table and figure."""

from __future__ import annotations

from dataclasses import replace

from analysis.costs.energy import mean_watts
from analysis.figures.bar_figures import bar_figure
from analysis.figures.style import PHASE_CLASSES
from analysis.losses.size_waterfalls import SizeWaterfall, leading, waterfalls
from analysis.losses.waterfall import PERSISTENT, RESIDUAL, TRANSIENT, Part, Waterfall, from_peak, scales
from analysis.report import common
from analysis.report.cells import cell
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.report.waterfall_text import NAMES, compute_cause, loss_sentence, repeat_mark, share_text
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.svg.bars import Row, Segment, bars
from analysis.svg.scales import Axis
from analysis.units import RESOLUTION_S, listed, percent, resolved_s, seconds, signed, time_scale

STEPS = 1000
"""Steps that device-hours, money and joules count."""
SHOWN = 0.001
"""Parts below this share of the step have no bar; the caption of the figure names them and their sum."""
OPTIONAL = ("throughput", "device_hours", "money", "energy")
"""Units beside seconds and percent: money and energy where price and power are known."""
_COLOURS = PHASE_CLASSES | dict.fromkeys((PERSISTENT, TRANSIENT), PHASE_CLASSES["comm_wait_s"])
_SPLIT = (
    "Persistent waiting is for a rank that is slow in all steps, transient waiting for ranks that are late "
    "in turn, as in the table of waiting (see Stragglers); its noise floor is part of transfer."
)


def build(study: Study) -> Section | None:
    """None without a size beside the base, or without measured phases."""
    found = waterfalls(study)
    if not found:
        return None
    shown = leading(found)
    conclusion = loss_sentence(study, shown)
    return Section(
        "waterfall",
        "From the ideal to the actual step",
        conclusion,
        paragraphs=[
            text for text in (compute_cause(study, shown), _closing(found), _split_text(found)) if text
        ],
        tables=[_table(study, found), *_peak_tables(study, found)],
        figures=[_figure(study, shown)],
    )


def _closing(found: list[SizeWaterfall]) -> str:
    error_s = max(RESOLUTION_S, *(abs(each.found.closing_error_s) for each in found))
    uncovered = [part for each in found for part in each.found.parts if part.name == RESIDUAL]
    residual = max(abs(part.share.value) for part in uncovered)
    return (
        "The parts sum to the actual minus the ideal step, with a rounding error of at most "
        f"{error_s * 1e12:,.0f} ps. The residual is time of the step that no phase covers: at most "
        f"{percent(residual, 2)} of a step. Negative parts are gains."
    )


def _split_text(found: list[SizeWaterfall]) -> str:
    split = any(part.name == PERSISTENT for each in found for part in each.found.parts)
    return _SPLIT if split else ""


def _table(study: Study, found: list[SizeWaterfall]) -> Table:
    rows: list[list[Value]] = []
    sources, columns = [], _columns(study, found)
    names = {column.name for column in columns}
    for each in found:
        units = _units(study, each)
        for part in map(_without_rounding, each.found.parts):
            scaled = [
                part.seconds.value * units[name] if name in units else None
                for name in OPTIONAL
                if name in names
            ]
            rows.append(
                [
                    *common.size_values(study, each.curve, each.point),
                    NAMES[part.name],
                    part.seconds,
                    part.share,
                    *scaled,
                ]
            )
            sources.append(common.sources(study, each.curve, each.point))
        total_s = each.found.actual_s - each.found.ideal_s
        size = common.size_values(study, each.curve, each.point)
        sums = [total_s * units[name] if name in units else None for name in OPTIONAL if name in names]
        rows.append([*size, "sum: actual - ideal step", total_s, 1 - each.found.efficiency, *sums])
        sources.append(common.sources(study, each.curve, each.point))
    totals = [
        text
        for name, text in {"device_hours": "device-hours", "money": "money", "energy": "energy"}.items()
        if name in names
    ]
    power = " Energy is that of the GPUs at their mean power." if "energy" in names else ""
    caption = (
        f"Time that each phase adds to the step which the base predicts; {listed(totals)} are of {STEPS:,} "
        f"steps.{power}"
    )
    return Table("waterfall", caption, columns, rows, sources)


def _without_rounding(part: Part) -> Part:
    """The part; zero where it is only a rounding error, which its interval may exceed."""
    if abs(part.seconds.value) > RESOLUTION_S:
        return part
    if abs(part.seconds.high or 0.0) > RESOLUTION_S:
        return Part(part.name, replace(part.seconds, value=0.0), replace(part.share, value=0.0))
    zero = part.seconds.scaled(0.0)
    return Part(part.name, zero, zero)


def _columns(study: Study, found: list[SizeWaterfall]) -> list[Column]:
    present = {name for each in found for name in _units(study, each)}
    optional = [
        Column("throughput", "throughput lost", "samples/s", "waterfall"),
        Column("device_hours", f"device-hours / {STEPS:,} steps", "h", "waterfall"),
        Column("money", f"{study.prices.currency or 'money'} / {STEPS:,} steps", "currency", "waterfall"),
        Column("energy", f"energy / {STEPS:,} steps", "J", "waterfall"),
    ]
    return [
        *common.size_columns(study),
        Column("part", "part"),
        Column("seconds", "per step", "s", "waterfall"),
        Column("share", "of the step", "points", "waterfall"),
        *(column for column in optional if column.name in present),
    ]


def _units(study: Study, each: SizeWaterfall) -> dict[str, float]:
    runs = study.runs_of(each.curve, each.point)
    price = study.prices.price_of(runs[0]["device"])
    watts = mean_watts([study.metrics.get((row["sweep"], row["run"])) for row in runs])
    return {scale.name: scale.factor for scale in scales(each.found, STEPS, price, watts)}


def _peak_tables(study: Study, found: list[SizeWaterfall]) -> list[Table]:
    """Bars from peak FLOP/s, where the FLOPs of the model and the peak of the device are known."""
    rows: list[list[Value]] = []
    sources: list[list[RunLink]] = []
    for each in found:
        first = study.metrics.get((each.curve.sweep, each.point.runs[0]))
        if first is None or not first.model_flops_per_sample or not first.peak_flops:
            continue
        steps = from_peak(each.found, first.model_flops_per_sample, first.peak_flops)
        for name, length_s in steps.items():
            if abs(length_s) > 1e-9:
                share = length_s / each.found.actual_s
                size = common.size_values(study, each.curve, each.point)
                rows.append([*size, _peak_name(name), length_s, share])
                sources.append(common.sources(study, each.curve, each.point))
    if not rows:
        return []
    caption = (
        "The same step from the peak FLOP/s of the device: the share of the first row is the MFU; then "
        "losses that the base has already, then those of scaling."
    )
    columns = [
        *common.size_columns(study),
        Column("part", "part"),
        Column("seconds", "per step", "s"),
        Column("share", "of the step", "share", "mfu"),
    ]
    return [Table("waterfall_from_peak", caption, columns, rows, sources)]


def _peak_name(name: str) -> str:
    if name == "peak":
        return "model FLOPs at the device's peak"
    if name == "kernels":
        return "compute beyond the peak, at the base"
    if name.startswith("base."):
        return f"{NAMES[name.removeprefix('base.')]}, at the base"
    return f"{NAMES[name]}, by scaling"


def _figure(study: Study, shown: SizeWaterfall) -> Figure:
    found, place = shown.found, common.point_name(study, shown.curve, shown.point)
    factor, unit = time_scale(max(found.actual_s, found.ideal_s))
    ideal = Segment(0.0, found.ideal_s * factor, "faint", "ideal step")
    rows = [Row("ideal step", [ideal], seconds(found.ideal_s))]
    at_s, highest_s = found.ideal_s, max(found.ideal_s, found.actual_s)
    for part in filter(_is_drawn, found.parts):
        end_s = at_s + part.seconds.value
        colour = _COLOURS.get(part.name, _COLOURS["other_s"])
        title = f"{NAMES[part.name]} {share_text(part)}{repeat_mark(part)}"
        interval = _moved(part.seconds, at_s, factor)
        text = f"{signed(100 * part.share.value)} %"
        segment = Segment(at_s * factor, end_s * factor, colour, title, part.name, interval)
        rows.append(Row(NAMES[part.name], [segment], text))
        highest_s = max(highest_s, end_s, (interval.high or 0.0) / factor)
        at_s = end_s
    actual = Segment(0.0, found.actual_s * factor, "faint", "actual step")
    rows.append(Row("actual step", [actual], seconds(found.actual_s)))
    description = f"Waterfall at {place}: " + ", ".join(
        [f"ideal step {seconds(found.ideal_s)}"]
        + [f"{NAMES[part.name]} {_signed_s(part.seconds.value)}" for part in found.parts]
        + [f"actual step {seconds(found.actual_s)}"]
    )
    x = Axis(f"time of a step at {place} ({unit})", 0.0, 1.15 * highest_s * factor)
    svg = bars(
        rows,
        x,
        name="waterfall",
        title="From the ideal to the actual step",
        description=description,
    )
    reading = "Bars to the right are losses, bars to the left gains; labels are percent of the actual step"
    whiskers = (
        "; whiskers are 95 % intervals" if common.has_bars(each.seconds for each in found.parts) else ""
    )
    actual_s = cell(shown.point.step_s, "s").in_text
    finding = f"The step at {place} takes {actual_s} instead of the ideal {seconds(found.ideal_s)}."
    return Figure(
        "waterfall",
        "From the ideal to the actual step",
        finding,
        svg,
        description,
        lambda: bar_figure(rows, x, emulated=study.emulated),
        f"{reading}{whiskers}.{not_drawn(found)}",
        data="waterfall",
    )


def _is_drawn(part: Part) -> bool:
    return abs(part.share.value) >= SHOWN


def not_drawn(found: Waterfall) -> str:
    """The parts without a bar and their sum, the gap between the last bar and the actual step."""
    left = [part for part in found.parts if resolved_s(part.seconds.value) and not _is_drawn(part)]
    if not left:
        return ""
    sum_s = sum(part.seconds.value for part in left)
    share = signed(100 * sum_s / found.actual_s, 2)
    names = listed([NAMES[part.name] for part in left])
    size = f"{_signed_s(sum_s)} ({share} %)"
    sums = f"{names}, {size}" if len(left) == 1 else f"{names}, together {size}"
    return f" Parts below {percent(SHOWN)} of the step have no bar: {sums}. The table has all parts."


def _signed_s(value_s: float) -> str:
    """Seconds as in the table, with the sign of a loss: `+41.2 ms`, `-3.00 µs`; `0 µs`."""
    return f"+{seconds(value_s)}" if resolved_s(value_s) > 0 else seconds(value_s)


def _moved(part_s: Estimate, at_s: float, factor: float) -> Estimate:
    """The estimate of the end of a bar that starts at `at_s`."""
    low = None if part_s.low is None else (at_s + part_s.low) * factor
    high = None if part_s.high is None else (at_s + part_s.high) * factor
    return Estimate((at_s + part_s.value) * factor, low, high, part_s.repeats)
