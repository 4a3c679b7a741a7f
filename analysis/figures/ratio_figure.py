"""PNG twin of the figure of compared throughputs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis.comparison import PointComparison
from analysis.figures.style import CURVE_COLOURS, FAINT, MARKERS, WIDTH_IN, mark_emulated, styled
from analysis.stats.verdicts import EQUIVALENCE_MARGIN


@styled
def ratio_figure(compared: Sequence[PointComparison]) -> Figure:
    """Ratio of throughputs by number of ranks, with intervals over repeats and the margin of equivalence."""
    figure = Figure((WIDTH_IN, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.axhspan(1 / (1 + EQUIVALENCE_MARGIN), 1 + EQUIVALENCE_MARGIN, color=FAINT, alpha=0.3, linewidth=0)
    axes.axhline(1.0, color=FAINT, linestyle="--", linewidth=1)
    pairs = list(dict.fromkeys((each.curve.label, each.base_curve.label) for each in compared))
    for index, (label, base) in enumerate(pairs):
        own = [each for each in compared if (each.curve.label, each.base_curve.label) == (label, base)]
        colour = CURVE_COLOURS[index % len(CURVE_COLOURS)]
        sizes = [each.point.world_size for each in own]
        ratios = [each.ratio.value for each in own]
        marker = MARKERS[index % len(MARKERS)]
        axes.plot(sizes, ratios, marker=marker, linestyle="", color=colour, label=f"{label} / {base}")
        for size, each in zip(sizes, own, strict=True):
            if each.ratio.basis == "repeats" and each.ratio.low is not None and each.ratio.high is not None:
                axes.plot([size, size], [each.ratio.low, each.ratio.high], color=colour)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({each.point.world_size for each in compared}))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel("ratio of throughputs")
    figure.legend(loc="outside lower center", ncols=2)
    if any(each.curve.emulated for each in compared):
        mark_emulated(figure)
    return figure
