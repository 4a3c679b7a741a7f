"""Training: loss, and accuracy or gradient norm, by step, and what the runs reached."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from analysis.read.run_table import row
from analysis.report.common import all_points, kept, point_name, step_figure
from analysis.report.section import Column, Section, item_table
from analysis.report.sentences import say
from analysis.study import Study

ORDER = 160

_STEP = Column("step", "step", "count")
_MEANS = (
    Column("train_loss", "training loss", "loss", "loss"),
    Column("valid_loss", "validation loss", "loss", "loss"),
    Column("bits_per_byte", "bits per byte", "loss", "loss"),
    Column("unigram_entropy_bits", "unigram entropy (bits)", "loss", "loss"),
    Column("accuracy", "accuracy", "share"),
)


def training_quality(study: Study) -> list[dict[str, Any]]:
    """Losses of the runs of each point at their last validation; means over repeats.

    Losses after other numbers of steps do not compare: they are apart.
    """
    found = []
    for curve, point in all_points(study):
        by_steps: dict[int, list[dict[str, Any]]] = {}
        for run in map(row, point.runs):
            by_steps.setdefault(run["steps"], []).append(run)
        for steps, runs in sorted(by_steps.items()):
            means = {column.name: _mean(run[column.name] for run in runs) for column in _MEANS}
            if any(value is not None for value in means.values()):
                found.append(
                    {
                        "runs": point_name(study, curve, point),
                        "curve": curve.label,
                        "unit": curve.unit,
                        "size": point.size,
                        "shape": point.shape,
                        "repeats": len(runs),
                        "steps": steps,
                        "skipped_steps": sum(run["skipped_steps"] for run in runs) or None,
                        **means,
                    }
                )
    return found


def build(study: Study) -> Section | None:
    """None if no run has losses."""
    rows = training_quality(study)
    figures = kept(
        step_figure(
            study,
            "training",
            "Loss",
            [
                _STEP,
                Column("loss", "loss (rings: validation)", "loss", "loss"),
                Column("bits_per_byte", "bits per byte", "loss", "loss"),
                Column("split", "split"),
            ],
            lambda run: [
                (at.step, at.loss, at.metrics.get("bits_per_byte"), split)
                for split, curve in (("train", "loss_history"), ("valid", "eval_history"))
                for at in run.curves[curve]
            ],
            rings=lambda row: row[-1] == "valid",
        ),
        step_figure(
            study,
            "accuracy",
            "Accuracy",
            [_STEP, Column("accuracy", "accuracy of the validation", "share")],
            lambda run: [(at.step, at.metrics.get("accuracy")) for at in run.curves["eval_history"]],
            rings=lambda row: True,
        )
        or step_figure(
            study,
            "gradient_norm",
            "Gradient norm",
            [_STEP, Column("grad_norm", "gradient norm", "number")],
            lambda run: [(at.step, at.grad_norm) for at in run.curves["grad_norm_history"]],
            log=True,
        ),
    )
    if not figures and not rows:
        return None
    gains = [
        run["unigram_entropy_bits"] - run["bits_per_byte"]
        for run in rows
        if run["unigram_entropy_bits"] and run["bits_per_byte"]
    ]
    columns = [
        Column("runs", "runs"),
        Column("steps", "steps", "count"),
        Column("skipped_steps", "skipped steps", "count"),
        *_MEANS,
        Column("repeats", "n", "count"),
    ]
    caption = "Losses at the last validation; means over repeats."
    return Section(
        "training",
        "Training quality",
        say("training", min(gains)) if gains else "",
        tables=kept(item_table("training_quality", caption, columns, rows)),
        figures=figures,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
