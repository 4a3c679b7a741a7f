"""Training: loss, and accuracy or gradient norm, by step, and what the runs reached."""

from __future__ import annotations

from typing import Any

from analysis.read.run import Run
from analysis.report.common import all_points, kept, point_name, step_figure
from analysis.report.run_records import TrainingQuality, training_quality
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.study import Study

ORDER = 160

_NAMED = 5
"""Runs with skipped steps that the section names."""


def build(study: Study) -> Section | None:
    """None if no run has losses."""
    rows = [row for curve in study.curves for row in training_quality(curve)]
    gains = [
        row.unigram_entropy_bits - row.bits_per_byte
        for row in rows
        if row.unigram_entropy_bits is not None and row.bits_per_byte is not None
    ]
    losses = sorted(row.train_loss for row in rows if row.train_loss is not None)
    if all(run.emulated for run in study.included):
        losses = []  # emulated models learn nothing
    ends = [f"{loss:.3f}" for loss in (*losses[:1], *losses[-1:])]
    figures = kept(_loss_figure(study), _accuracy_figure(study) or _norm_figure(study))
    if not figures and not rows:
        return None
    return Section(
        "training",
        "Training quality",
        say("training", min(gains, default=None), " to ".join(dict.fromkeys(ends))),
        paragraphs=kept(_skipped(study)),
        tables=[_table(study, rows)] if rows else [],
        figures=figures,
    )


def _skipped(study: Study) -> str:
    """Runs with skipped steps, most first."""
    found = [(run.metrics.skipped_steps, run, run.metrics.steps) for run in study.included if run.metrics]
    found = sorted((each for each in found if each[0]), key=lambda each: -each[0])
    runs = [
        f"{f'{run.sweep}/' if len(study.sweeps) > 1 else ''}{run.name} ({skipped} of {steps})"
        for skipped, run, steps in found
    ]
    total = sum(skipped for skipped, *_ in found)
    return say("skipped_steps", total, runs[:_NAMED], max(0, len(runs) - _NAMED))


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
        skipped = sum(each.skipped_steps for each in at[1].metrics)
        means = [getattr(row, column.name) for column in columns[3:]]
        values.append([point_name(study, *at), row.steps, skipped or None, *means])
    return Table("training_quality", "Losses at the last validation; means over repeats.", columns, values)


def _loss_figure(study: Study) -> Figure | None:
    """Lines of training, rings of validation."""
    columns = [
        Column("step", "step", "count"),
        Column("loss", "loss (rings: validation)", "loss", "loss"),
        Column("bits_per_byte", "bits per byte", "loss", "loss"),
        Column("split", "split"),
    ]

    def rows(run: Run) -> list[tuple[Any, ...]]:
        curves = {"train": run.curves["loss_history"], "valid": run.curves["eval_history"]}
        return [
            (point.step, point.loss, point.metrics.get("bits_per_byte"), split)
            for split, curve in curves.items()
            for point in curve
        ]

    return step_figure(study, "training", "Loss", columns, rows, rings=lambda row: row[-1] == "valid")


def _accuracy_figure(study: Study) -> Figure | None:
    columns = [Column("step", "step", "count"), Column("accuracy", "accuracy of the validation", "share")]
    return step_figure(
        study,
        "accuracy",
        "Accuracy",
        columns,
        lambda run: [(point.step, point.metrics.get("accuracy")) for point in run.curves["eval_history"]],
        rings=lambda row: True,
    )


def _norm_figure(study: Study) -> Figure | None:
    columns = [Column("step", "step", "count"), Column("grad_norm", "gradient norm", "number")]
    return step_figure(
        study,
        "gradient_norm",
        "Gradient norm",
        columns,
        lambda run: [(point.step, point.grad_norm) for point in run.curves["grad_norm_history"]],
        log=True,
    )
