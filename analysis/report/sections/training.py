"""Training: loss, and accuracy or gradient norm, by step, and what the runs reached."""

from __future__ import annotations

from functools import partial

import pandas as pd

from analysis.draw.style import Axis
from analysis.report.common import RUN_COLUMNS, all_points, frame_table, point_name, run_lines, step_figure
from analysis.report.run_records import TrainingQuality, training_quality
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.study import Study
from analysis.units import number, percent

ORDER = 160

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
    losses = sorted(row.train_loss for row in rows if row.train_loss is not None)
    if study.included["emulated"].all():
        losses = []  # emulated models learn nothing
    ends = [f"{loss:.3f}" for loss in (*losses[:1], *losses[-1:])]
    figures = [_loss_figure(study), _accuracy_figure(study) or _norm_figure(study)]
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
    columns = [
        Column("runs", "runs"),
        Column("steps", "steps", "count"),
        Column("skipped_steps", "skipped steps", "count"),
        Column("train_loss", "training loss", "loss", "loss"),
        Column("valid_loss", "validation loss", "loss", "loss"),
        Column("bits_per_byte", "bits per byte", "loss", "loss"),
        Column("unigram_entropy_bits", "unigram entropy (bits)", "loss", "loss"),
        Column("accuracy", "accuracy", "share"),
        Column("repeats", "n", "count"),
    ]
    points = {(curve.label, point.shape): (curve, point) for curve, point in all_points(study)}
    values: list[list[Value]] = []
    for row in rows:
        at = points[row.curve, row.shape]
        skipped = sum(run["skipped_steps"] for run in study.runs_of(*at) if pd.notna(run["skipped_steps"]))
        means = [getattr(row, column.name) for column in columns[3:]]
        values.append([point_name(study, *at), row.steps, int(skipped) or None, *means])
    return Table("training_quality", "Losses at the last validation; means over repeats.", columns, values)


def _loss_figure(study: Study) -> Figure | None:
    """Lines of training, rings of validation; None without losses."""
    losses = study.losses.dropna(subset=["loss"])
    if losses.empty:
        return None
    low, high = float(losses["loss"].min()), float(losses["loss"].max())
    pad = max(0.05 * (high - low), 0.02 * abs(high))
    is_training = losses["split"] == "train"
    runs = run_lines(study, losses[is_training], "loss")
    runs += run_lines(study, losses[~is_training], "loss", rings=True)
    y = Axis("loss (rings: validation)", max(0.0, low - pad), high + pad)
    return step_figure(
        study, "training", "Loss", runs, y, f"{number(low)} to {number(high)}", partial(_losses, study)
    )


def _losses(study: Study) -> Table:
    columns = [
        *RUN_COLUMNS,
        Column("split", "split"),
        Column("step", "step", "count"),
        Column("loss", "loss", "loss", "loss"),
        Column("bits_per_byte", "bits per byte", "loss", "loss"),
        Column("accuracy", "accuracy", "share"),
    ]
    return frame_table("losses", "Losses of training and validation by step.", columns, study.losses)


def _accuracy_figure(study: Study) -> Figure | None:
    """Of the validation; None without one."""
    known = study.losses.dropna(subset=["accuracy"])
    if known.empty:
        return None
    low, high = float(known["accuracy"].min()), float(known["accuracy"].max())
    y = Axis("accuracy", max(0.0, low - 0.05), min(1.0, high + 0.05), form=lambda value: percent(value, 0))
    runs = run_lines(study, known, "accuracy", rings=True)
    return step_figure(
        study, "accuracy", "Accuracy", runs, y, f"{percent(low)} to {percent(high)}", partial(_losses, study)
    )


def _norm_figure(study: Study) -> Figure | None:
    """On a logarithmic axis; None without norms."""
    norms = study.gradient_norms
    positive = norms.assign(grad_norm=norms["grad_norm"].where(norms["grad_norm"] > 0))
    low, high = positive["grad_norm"].min(), positive["grad_norm"].max()
    if pd.isna(low):
        return None
    runs = run_lines(study, positive, "grad_norm")
    y = Axis("gradient norm", 0.8 * low, 1.25 * high, log=True)
    columns = [*RUN_COLUMNS, Column("step", "step", "count"), Column("grad_norm", "gradient norm", "number")]
    caption = "Gradient norm by step; empty where it is not finite."
    data = partial(frame_table, "gradient_norms", caption, columns, norms)
    return step_figure(
        study, "gradient_norm", "Gradient norm", runs, y, f"{number(low)} to {number(high)}", data
    )
