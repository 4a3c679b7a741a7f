"""Training: loss, and accuracy or gradient norm, by step, and what the runs reached."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from statistics import fmean

from analysis.read.run import Run
from analysis.read.run_table import column_value
from analysis.report.common import Column, Section, Study, places, say, size_table, step_figure

_steps = partial(column_value, column="steps")


def _mean(runs: Sequence[Run], name: str) -> float | None:
    known = [value for run in runs if (value := column_value(run, name)) is not None]
    return fmean(known) if known else None


def _skipped(runs: Sequence[Run]) -> int | None:
    return sum(column_value(run, "skipped_steps") for run in runs) or None


_MEANS = [
    Column(name, heading, "loss", "loss", get=partial(_mean, name=name))
    for name, heading in (
        ("train_loss", "training loss"),
        ("valid_loss", "validation loss"),
        ("bits_per_byte", "bits per byte"),
        ("unigram_entropy_bits", "unigram entropy (bits)"),
    )
]
_MEANS.append(Column("accuracy", "accuracy", "share", get=partial(_mean, name="accuracy")))
_COLUMNS = (
    Column("steps", "steps", "count", get=lambda runs: _steps(runs[0])),
    Column("skipped_steps", "skipped steps", "count", get=_skipped),
    *_MEANS,
    Column("repeats", "n", "count", get=len),
)


def training(study: Study) -> Section:
    """Empty if no run has losses. Losses after other numbers of steps do not compare: they are apart."""
    items = [
        (place, runs)
        for place in places(study)
        for _, group in groupby(sorted(place.point.runs, key=_steps), key=_steps)
        for runs in [list(group)]
        if any(mean.of(runs) is not None for mean in _MEANS)
    ]
    gains = [
        entropy - bits
        for _, runs in items
        if (entropy := _mean(runs, "unigram_entropy_bits")) and (bits := _mean(runs, "bits_per_byte"))
    ]
    caption = "Losses at the last validation; means over repeats."
    loss = step_figure(
        study,
        "training",
        "Loss",
        [
            Column("loss", "loss (rings: validation)", "loss", "loss"),
            Column("bits_per_byte", "bits per byte", "loss", "loss"),
            Column("split"),
        ],
        lambda run: [
            {**at.metrics, "step": at.step, "loss": at.loss, "split": split}
            for split, curve in (("train", "loss_history"), ("valid", "eval_history"))
            for at in run.curves[curve]
        ],
        rings="valid",
    )
    accuracy = step_figure(
        study,
        "accuracy",
        "Accuracy",
        [Column("accuracy", "accuracy of the validation", "share", get="metrics.accuracy")],
        lambda run: run.curves["eval_history"],
    ) or step_figure(
        study,
        "gradient_norm",
        "Gradient norm",
        [Column("grad_norm", "gradient norm", "number")],
        lambda run: run.curves["grad_norm_history"],
        log=True,
    )
    return Section(
        "training",
        "Training quality",
        say("training", gains),
        tables=[size_table(study, "training_quality", caption, _COLUMNS, items)],
        figures=loss + accuracy,
    )


SECTIONS = {160: training}
