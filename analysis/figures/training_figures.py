"""PNG twins of the figures of loss and gradient norm by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.efficiency import Curve
from analysis.figures.curve_drawing import add_legend, drawn_for_curves, new_axes, run_lines
from analysis.figures.style import FAINT

_RING: dict[str, Any] = {
    "marker": "o",
    "linestyle": "none",
    "markerfacecolor": "white",
    "markersize": 5,
    "markeredgewidth": 1.2,
    "zorder": 3,
}
"""A validation point."""


@drawn_for_curves
def training_figure(
    curves: Sequence[Curve], losses: pd.DataFrame, entropy_bits: float | None = None
) -> Figure:
    """Loss by step: a line for each run, rings for validation; `losses` is that of `training_curves`.

    Lines of larger sizes are thinner, so that equal curves stay visible. `entropy_bits` is the unigram
    entropy of the corpus in bits per byte; it is drawn if losses have that scale.
    """
    figure, axes = new_axes(3.5)
    for frame, colour, label, position in run_lines(curves, losses):
        width = 0.8 + 2.4 * (1 - position)
        train, valid = frame[frame["split"] == "train"], frame[frame["split"] == "valid"]
        axes.plot(train["step"], train["loss"], color=colour, linewidth=width, alpha=0.85, label=label)
        axes.plot(valid["step"], valid["loss"], color=colour, **_RING)
    rated = losses[losses["bits_per_byte"] > 0]
    if entropy_bits is not None and not rated.empty:
        level = entropy_bits * float((rated["loss"] / rated["bits_per_byte"]).median())
        axes.axhline(level, color=FAINT, linewidth=0.9, dashes=(1.5, 2), label="_unigram")
        place: dict[str, Any] = {
            "xy": (1, level),
            "xycoords": axes.get_yaxis_transform(),
            "textcoords": "offset points",
        }
        axes.annotate(
            "byte frequencies alone", xytext=(-2, 3), ha="right", fontsize=8.8, color=FAINT, **place
        )
    if (losses["split"] == "valid").any():
        axes.plot([], [], color=FAINT, label="validation", **_RING)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss")
    axes.set_xlim(left=0)
    add_legend(figure, axes)
    return figure


@drawn_for_curves
def gradient_norm_figure(curves: Sequence[Curve], norms: pd.DataFrame) -> Figure:
    """Gradient norm by step on a logarithmic axis, a line for each run; `norms` is that of
    `training_curves`. A step whose norm is not finite is a gap."""
    figure, axes = new_axes(3.0)
    for frame, colour, label, _ in run_lines(curves, norms):
        axes.plot(frame["step"], frame["grad_norm"], color=colour, linewidth=1.2, alpha=0.85, label=label)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("gradient norm")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    add_legend(figure, axes)
    return figure
