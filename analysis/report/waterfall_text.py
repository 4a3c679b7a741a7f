"""Sentences on the waterfall of one size: the largest loss, the net of losses and gains, lost compute."""

from __future__ import annotations

from analysis.figures.style import PHASE_NAMES
from analysis.losses.compute_evidence import compute_causes
from analysis.losses.compute_loss import sentence as cause_sentence
from analysis.losses.size_waterfalls import NAMED, SizeWaterfall, largest_loss
from analysis.losses.waterfall import PERSISTENT, RESIDUAL, TRANSIENT, Part
from analysis.report import common
from analysis.report.scaling_text import is_net_settled
from analysis.study import Study
from analysis.units import bounds, fixed, listed, percent, plural, seconds

NAMES = PHASE_NAMES | {
    RESIDUAL: "residual",
    PERSISTENT: "persistent waiting",
    TRANSIENT: "transient waiting",
}
"""Parts of a waterfall as tables, figures and sentences name them."""


def loss_sentence(study: Study, shown: SizeWaterfall) -> str:
    """Name the largest loss whose interval excludes zero, and the net of all losses and gains."""
    place = common.point_name(study, shown.curve, shown.point)
    base = shown.curve.base_size
    if (part := largest_loss(shown)) is not None:
        repeat = repeat_mark(part)
        if shown.curve.scaling == "strong" and shown.curve.base is not None:
            largest = _strong(shown, place, part, repeat)
        else:
            beyond = "that of" if shown.curve.scaling == "weak" else "the prediction from"
            lost = f"{seconds(part.seconds.value)} beyond {beyond} {plural(base or 0, shown.curve.unit)}"
            largest = (
                f"At {place}, the largest loss is {NAMES[part.name]}: {lost}, {share_text(part)} of the "
                f"step{repeat}."
            )
        return f"{largest} {_net(shown)}".rstrip()
    return f"No phase loses time for certain at {place} against {plural(base or 0, shown.curve.unit)}."


def _strong(shown: SizeWaterfall, place: str, part: Part, repeat: str) -> str:
    """The loss of a part as seconds beyond its ideal part of the base's time: the bars themselves shrink."""
    base, ideal_s = shown.curve.base, shown.whole.base_parts_s[part.name]
    assert base is not None
    ratio = shown.point.world_size / base.world_size
    time = f"the time on {plural(base.size, shown.curve.unit)}"
    ideal = f"half of {time}" if ratio == 2 else f"{time} / {ratio:g}"
    return (
        f"At {place}, the largest loss is {NAMES[part.name]}: it takes {seconds(part.seconds.value)} more "
        f"than {ideal} ({seconds(ideal_s + part.seconds.value)} instead of {seconds(ideal_s)}), "
        f"{share_text(part)} of the step{repeat}."
    )


def _net(shown: SizeWaterfall) -> str:
    """All losses and gains and their net; empty without a gain of `NAMED`, since losses alone are the net."""
    parts = shown.whole.parts
    gains = sorted((part for part in parts if part.share.value <= -NAMED), key=lambda part: part.share.value)
    if not gains:
        return ""
    lost = sum(part.share.value for part in parts if part.share.value > 0)
    saved = sum(-part.share.value for part in parts if part.share.value < 0)
    net = 1 - shown.whole.efficiency
    mark = "" if is_net_settled(shown.point.efficiency) else ", which is not settled"
    return (
        f"All losses together take {percent(lost)} of the step, and all gains save {percent(saved)} "
        f"({listed([NAMES[part.name] for part in gains])}): a net {'loss' if net > 0 else 'gain'} of "
        f"{percent(abs(net))}{mark}."
    )


def compute_cause(study: Study, shown: SizeWaterfall) -> str:
    """Cause of lost compute time, if compute loses at least 1 % of the step; empty otherwise."""
    share = next((part.share.value for part in shown.found.parts if part.name == "compute_s"), 0.0)
    if share < NAMED:
        return ""
    return cause_sentence(compute_causes(study, shown.curve, shown.point))


def share_text(part: Part) -> str:
    """Share of the step in percent, with its interval if it has one: `20.8 % [17.5, 24.0]`."""
    low, high = part.share.low, part.share.high
    text = percent(part.share.value)
    return text if low is None or high is None else f"{text} {bounds(fixed(100 * low), fixed(100 * high))}"


def repeat_mark(part: Part) -> str:
    """A mark of parts that have no interval between repeats; empty for those that have one."""
    return " (one repeat)" if part.share.low is None and part.share.basis == "repeats" else ""
