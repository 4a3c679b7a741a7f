"""Training: loss and gradient norm by step, and what the runs reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from analysis.figures.training_figures import gradient_norm_figure, training_figure
from analysis.report.common import (
    MOST_LINES,
    RUN_COLUMNS,
    all_points,
    coloured_points,
    frame_table,
    point_legend,
    point_name,
    run_key,
    sentence,
)
from analysis.report.model import TrainingQuality
from analysis.report.run_records import training_quality
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.study import Study
from analysis.svg.elements import mark
from analysis.svg.lines import line
from analysis.svg.plot import Plot
from analysis.svg.scales import Axis
from analysis.units import number, plural

_NAMED = 5
"""Runs with skipped steps that the section names."""
_EMULATED = "Emulated models learn nothing, so losses do not compare these runs."
_MOST_POINTS = 120
"""Points of one run's line; every k-th is drawn, and the last."""


def build(study: Study) -> Section | None:
    """None if no run has losses."""
    rows = [row for curve in study.curves for row in training_quality(curve, study.included)]
    if study.losses.empty and not rows:
        return None
    tables = [_table(study, rows)] if rows else []
    conclusion = quality_line(rows) or _spread(study, rows)
    losses = _loss_figure(study)
    figures = [figure for figure in (losses, _norm_figure(study)) if figure is not None]
    paragraphs = [_skipped(study)]
    return Section(
        "training",
        "Training quality",
        conclusion,
        paragraphs=[text for text in paragraphs if text],
        tables=tables,
        figures=figures,
    )


def _all_emulated(study: Study) -> bool:
    return bool(study.included["emulated"].all())


def quality_line(rows: Sequence[TrainingQuality]) -> str:
    """Distance of text models from the unigram entropy of their corpus; empty for other tasks."""
    gains = [
        row.unigram_entropy_bits - row.bits_per_byte
        for row in rows
        if row.unigram_entropy_bits is not None and row.bits_per_byte is not None
    ]
    if not gains:
        return ""
    entropy = "the unigram entropy of the corpus, the loss of a model of byte frequencies alone"
    if min(gains) <= 0:
        return f"Some runs did not learn: they end {number(-min(gains))} bits per byte above {entropy}."
    return f"All runs end at least {number(min(gains))} bits per byte below {entropy}."


def _spread(study: Study, rows: list[TrainingQuality]) -> str:
    """Range of the last training losses."""
    note = f" {_EMULATED}" if _all_emulated(study) else ""
    found = [row.train_loss for row in rows if row.train_loss is not None]
    if not found:
        return ""
    if max(found) - min(found) < 5e-4:
        return f"The last training loss is {found[0]:.3f} in all runs.{note}"
    return f"The last training loss lies between {min(found):.3f} and {max(found):.3f}.{note}"


def _skipped(study: Study) -> str:
    """Runs with skipped steps, most first."""
    rows = study.included[study.included["skipped_steps"].fillna(0) > 0]
    if rows.empty:
        return ""
    rows = rows.sort_values("skipped_steps", ascending=False, kind="stable")
    several = len(study.sweeps) > 1
    named = [
        f"{row.sweep + '/' if several else ''}{row.run} ({row.skipped_steps} of {row.steps})"
        for row in rows.head(_NAMED).itertuples()
    ]
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    steps = plural(int(rows["skipped_steps"].sum()), "step")
    return f"{steps} skipped, because the gradient norm was not finite: {', '.join(named)}{more}."


def _table(study: Study, rows: list[TrainingQuality]) -> Table:
    measures = {
        "train_loss": Column("train_loss", "training loss", "loss", "loss"),
        "valid_loss": Column("valid_loss", "validation loss", "loss", "loss"),
        "bits_per_byte": Column("bits_per_byte", "bits per byte", "loss", "loss"),
        "unigram_entropy_bits": Column("unigram_entropy_bits", "unigram entropy (bits)", "loss", "loss"),
        "accuracy": Column("accuracy", "accuracy", "share"),
    }
    present = [name for name in measures if any(getattr(row, name) is not None for row in rows)]
    several = len(study.curves) > 1
    skipped = _skipped_by_size(study)
    values: list[list[Value]] = []
    for row in rows:
        size = plural(row.size, row.unit)
        name = f"{row.curve}, {size}" if several else size
        counted = [skipped.get((row.curve, row.size), 0)] if skipped else []
        values.append([name, row.steps, *counted, *(getattr(row, each) for each in present), row.repeats])
    columns = [
        Column("runs", "runs"),
        Column("steps", "steps", "count"),
        *([Column("skipped_steps", "skipped steps", "count")] if skipped else []),
        *(measures[name] for name in present),
    ]
    caption = "Losses at the last validation; means over repeats."
    if skipped:
        caption += " Skipped steps: sum over repeats."
    return Table("training_quality", caption, [*columns, Column("repeats", "n", "count")], values)


def _skipped_by_size(study: Study) -> dict[tuple[str, int], int]:
    """Skipped steps of all repeats, by label of the curve and size; empty without any."""
    counts = {
        (curve.label, point.size): sum(
            int(row["skipped_steps"])
            for row in study.runs_of(curve, point)
            if not pd.isna(row["skipped_steps"])
        )
        for curve, point in all_points(study)
    }
    return counts if any(counts.values()) else {}


def _lines(
    study: Study,
    plot: Plot,
    frame: pd.DataFrame,
    column: str,
    rings: Callable[[pd.DataFrame], pd.DataFrame] | None,
) -> None:
    """One line for each run of `frame`, and rings for its validations."""
    by_run = {key: each for key, each in frame.groupby(["sweep", "run"])}
    drawn = 0
    first_only = len(by_run) > MOST_LINES
    for curve, point, colour in coloured_points(study):
        for run in point.runs[: 1 if first_only else None]:
            found = by_run.get((curve.sweep, run))
            if found is None or drawn >= MOST_LINES:
                continue
            drawn += 1
            key, title = run_key(curve.sweep, run), f"{run}, {point_name(study, curve, point)}"
            shown = _thinned(found[found["split"] == "train"] if "split" in found else found)
            plot.add(
                line(
                    plot, list(shown["step"]), list(shown[column]), colour, title=title, key=key, style="thin"
                )
            )
            if rings is not None:
                for row in rings(found).itertuples():
                    text = f"{run}: validation loss {row.loss:.3f} after step {row.step}"
                    at = {"cx": plot.xs(row.step), "cy": plot.ys(row.loss)}
                    plot.add(mark("circle", text, key, **at, r=3.5, class_=f"stroke ring {colour}"))


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    if len(frame) <= _MOST_POINTS:
        return frame
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, _MOST_POINTS).astype(int))]


def _loss_figure(study: Study) -> Figure | None:
    """None without losses."""
    losses = study.losses.dropna(subset=["loss"])
    if losses.empty:
        return None
    low, high = float(losses["loss"].min()), float(losses["loss"].max())
    pad = max(0.05 * (high - low), 0.02 * abs(high))
    x = Axis("optimizer step", 0.0, float(losses["step"].max()))
    description = (
        f"Loss by optimizer step of {plural(losses['run'].nunique(), 'run')}, from {high:.3g} to {low:.3g}"
    )
    plot = Plot(
        "loss", "Loss", description, x, Axis("loss", max(0.0, low - pad), high + pad), point_legend(study)
    )
    _lines(study, plot, losses, "loss", lambda frame: frame[frame["split"] == "valid"])
    entropy = study.included["unigram_entropy_bits"].dropna().unique()
    return Figure(
        "training",
        "Loss",
        _agreement(study) or _range(low, high),
        plot.svg(),
        description,
        lambda: training_figure(study.curves, study.losses, float(entropy[0]) if len(entropy) == 1 else None),
        sentence(["" if _all_emulated(study) else "Lower is better.", "One line for each run"])
        + (", rings are validation." if (losses["split"] == "valid").any() else "."),
        data=lambda: _losses(study),
    )


def _losses(study: Study) -> Table:
    columns = [
        *RUN_COLUMNS,
        Column("split", "split"),
        Column("step", "step", "count"),
        Column("loss", "loss", "loss", "loss"),
        Column("bits_per_byte", "bits per byte", "loss", "loss"),
    ]
    return frame_table("losses", "Losses of training and validation by step.", columns, study.losses)


def _range(low: float, high: float) -> str:
    first, last = number(low), number(high)
    return f"All losses are {first}." if first == last else f"The losses lie between {first} and {last}."


def _agreement(study: Study) -> str:
    """Whether runs of one batch size and seed reached the same loss; empty for emulated ones and one size."""
    if _all_emulated(study):
        return ""
    rows = [row for curve in study.curves for row in training_quality(curve, study.included)]
    found = [
        value
        for row in rows
        if (value := row.valid_loss if row.valid_loss is not None else row.train_loss) is not None
    ]
    if len(found) < 2:
        return ""
    spread = max(found) - min(found)
    if spread < 0.01 * abs(max(found)):
        return f"All runs end within 1 % of one loss ({number(min(found))} to {number(max(found))})."
    return (
        f"The runs end at losses from {number(min(found))} to {number(max(found))}; with one seed "
        "and one global "
        "batch they would coincide."
    )


def _norm_figure(study: Study) -> Figure | None:
    norms = study.gradient_norms
    known = norms[norms["grad_norm"] > 0]
    if known.empty:
        return None
    low, high = float(known["grad_norm"].min()), float(known["grad_norm"].max())
    description = f"Gradient norm by optimizer step, from {number(low)} to {number(high)}"
    x = Axis("optimizer step", 0.0, float(norms["step"].max()))
    y = Axis("gradient norm", 0.8 * low, 1.25 * high, log=True)
    plot = Plot("gradient-norm", "Gradient norm", description, x, y, point_legend(study))
    _lines(study, plot, norms, "grad_norm", None)
    gaps = int(norms["grad_norm"].isna().sum())
    lead = (
        f"{plural(gaps, 'step')} without a finite norm."
        if gaps
        else "The norm is finite at every recorded step."
    )
    return Figure(
        "gradient_norm",
        "Gradient norm",
        lead,
        plot.svg(),
        description,
        lambda: gradient_norm_figure(study.curves, study.gradient_norms),
        "L2 norm of the gradients of the global batch before clipping, on a logarithmic axis.",
        data=lambda: _norms(study),
    )


def _norms(study: Study) -> Table:
    columns = [*RUN_COLUMNS, Column("step", "step", "count"), Column("grad_norm", "gradient norm", "number")]
    caption = "Gradient norm by step; empty where it is not finite."
    return frame_table("gradient_norms", caption, columns, study.gradient_norms)
