"""Training: loss and gradient norm by step, and what the runs reached."""

from __future__ import annotations

from functools import partial

import pandas as pd

from analysis.draw.points import lines
from analysis.draw.style import Axis
from analysis.report.common import (
    RUN_COLUMNS,
    all_points,
    frame_table,
    point_legend,
    run_lines,
    size_legend,
)
from analysis.report.model import TrainingQuality
from analysis.report.run_records import training_quality
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.study import Study
from analysis.units import number, plural

_NAMED = 5
"""Runs with skipped steps that the section names."""


def build(study: Study) -> Section | None:
    """None if no run has losses."""
    rows = [row for curve in study.curves for row in training_quality(curve, study.included)]
    if study.losses.empty and not rows:
        return None
    gains = [
        row.unigram_entropy_bits - row.bits_per_byte
        for row in rows
        if row.unigram_entropy_bits is not None and row.bits_per_byte is not None
    ]
    ends = [f"{loss:.3f}" for loss in sorted(row.train_loss for row in rows if row.train_loss is not None)]
    ends = [*ends[:1], *ends[-1:]]
    figures = [_loss_figure(study), _norm_figure(study)]
    return Section(
        "training",
        "Training quality",
        say("training", min(gains, default=None), " to ".join(dict.fromkeys(ends))),
        paragraphs=[text for text in [_skipped(study)] if text],
        tables=[_table(study, rows)] if rows else [],
        figures=[figure for figure in figures if figure],
    )


def _skipped(study: Study) -> str:
    """Runs with skipped steps, most first."""
    rows = study.included[study.included["skipped_steps"].fillna(0) > 0]
    rows = rows.sort_values("skipped_steps", ascending=False, kind="stable")
    runs = [
        f"{f'{row.sweep}/' if len(study.sweeps) > 1 else ''}{row.run} ({row.skipped_steps} of {row.steps})"
        for row in rows.itertuples()
    ]
    return say("skipped_steps", int(rows["skipped_steps"].sum()), runs[:_NAMED], max(0, len(runs) - _NAMED))


def _table(study: Study, rows: list[TrainingQuality]) -> Table:
    measures = {
        "train_loss": Column("train_loss", "training loss", "loss", "loss"),
        "valid_loss": Column("valid_loss", "validation loss", "loss", "loss"),
        "bits_per_byte": Column("bits_per_byte", "bits per byte", "loss", "loss"),
        "unigram_entropy_bits": Column("unigram_entropy_bits", "unigram entropy (bits)", "loss", "loss"),
        "accuracy": Column("accuracy", "accuracy", "share"),
    }
    skipped = {
        (curve.label, point.size): sum(
            int(row["skipped_steps"])
            for row in study.runs_of(curve, point)
            if not pd.isna(row["skipped_steps"])
        )
        for curve, point in all_points(study)
    }
    columns = [
        Column("runs", "runs"),
        Column("steps", "steps", "count"),
        *([Column("skipped_steps", "skipped steps", "count")] if any(skipped.values()) else []),
        *measures.values(),
        Column("repeats", "n", "count"),
    ]
    values: list[list[Value]] = []
    for row in rows:
        size = plural(row.size, row.unit)
        name = f"{row.curve}, {size}" if len(study.curves) > 1 else size
        counted = [skipped.get((row.curve, row.size), 0)] if any(skipped.values()) else []
        values.append([name, row.steps, *counted, *(getattr(row, each) for each in measures), row.repeats])
    return Table("training_quality", "Losses at the last validation; means over repeats.", columns, values)


def _loss_figure(study: Study) -> Figure | None:
    """Lines of training, rings of validation; None without losses."""
    losses = study.losses.dropna(subset=["loss"])
    if losses.empty:
        return None
    low, high = float(losses["loss"].min()), float(losses["loss"].max())
    pad = max(0.05 * (high - low), 0.02 * abs(high))
    x = Axis("optimizer step", 0.0, float(losses["step"].max()))
    y = Axis("loss (rings: validation)", max(0.0, low - pad), high + pad)
    is_training = losses["split"] == "train"
    runs = run_lines(study, losses[is_training], "loss")
    runs += run_lines(study, losses[~is_training], "loss", rings=True)
    drawing = partial(lines, runs, x, y, [*point_legend(study), *size_legend(study)], emulated=study.emulated)
    alt = f"Loss by optimizer step, from {number(low)} to {number(high)}"
    return Figure("training", "Loss", drawing, alt, data=lambda: _losses(study))


def _losses(study: Study) -> Table:
    columns = [
        *RUN_COLUMNS,
        Column("split", "split"),
        Column("step", "step", "count"),
        Column("loss", "loss", "loss", "loss"),
        Column("bits_per_byte", "bits per byte", "loss", "loss"),
    ]
    return frame_table("losses", "Losses of training and validation by step.", columns, study.losses)


def _norm_figure(study: Study) -> Figure | None:
    """On a logarithmic axis; None without norms."""
    norms = study.gradient_norms
    known = norms["grad_norm"][norms["grad_norm"] > 0]
    if known.empty:
        return None
    low, high = float(known.min()), float(known.max())
    x = Axis("optimizer step", 0.0, float(norms["step"].max()))
    y = Axis("gradient norm", 0.8 * low, 1.25 * high, log=True)
    positive = norms.assign(grad_norm=norms["grad_norm"].where(norms["grad_norm"] > 0))
    runs = run_lines(study, positive, "grad_norm")
    drawing = partial(lines, runs, x, y, [*point_legend(study), *size_legend(study)], emulated=study.emulated)
    alt = f"Gradient norm by optimizer step, from {number(low)} to {number(high)}"
    return Figure("gradient_norm", "Gradient norm", drawing, alt, data=lambda: _norms(study))


def _norms(study: Study) -> Table:
    columns = [*RUN_COLUMNS, Column("step", "step", "count"), Column("grad_norm", "gradient norm", "number")]
    caption = "Gradient norm by step; empty where it is not finite."
    return frame_table("gradient_norms", caption, columns, study.gradient_norms)
