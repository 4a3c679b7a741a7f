"""Training: loss, and accuracy or gradient norm, by step, and what the runs reached."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any

from analysis.read.run_table import column_value
from analysis.report.common import Column, Section, Study, item_table, places, say, step_figure

ORDER = 160

_MEANS = (
    Column("train_loss", "training loss", "loss", "loss"),
    Column("valid_loss", "validation loss", "loss", "loss"),
    Column("bits_per_byte", "bits per byte", "loss", "loss"),
    Column("unigram_entropy_bits", "unigram entropy (bits)", "loss", "loss"),
    Column("accuracy", "accuracy", "share"),
)


_steps = partial(column_value, column="steps")


def training_quality(study: Study) -> list[dict[str, Any]]:
    """Losses of the runs of each point at their last validation; means over repeats.

    Losses after other numbers of steps do not compare: they are apart.
    """
    rows = []
    for place in places(study):
        by_steps = sorted(place.point.runs, key=_steps)
        for steps, group in groupby(by_steps, key=_steps):
            runs = list(group)
            values = {at.name: [column_value(run, at.name) for run in runs] for at in _MEANS}
            known = {name: [each for each in of if each is not None] for name, of in values.items()}
            means = {name: fmean(of) if of else None for name, of in known.items()}
            rows.append(
                {
                    "runs": place.name,
                    "curve": place.curve.label,
                    "unit": place.curve.unit,
                    "size": place.point.size,
                    "shape": place.point.shape,
                    "repeats": len(runs),
                    "steps": steps,
                    "skipped_steps": sum(column_value(run, "skipped_steps") for run in runs) or None,
                    **means,
                }
            )
    return [each for each in rows if any(each[mean.name] is not None for mean in _MEANS)]


def build(study: Study) -> Section:
    """Empty if no run has losses."""
    rows = training_quality(study)
    gains = [
        run["unigram_entropy_bits"] - run["bits_per_byte"]
        for run in rows
        if run["unigram_entropy_bits"] and run["bits_per_byte"]
    ]
    columns = [
        Column("runs"),
        Column("steps", "steps", "count"),
        Column("skipped_steps", "skipped steps", "count"),
        *_MEANS,
        Column("repeats", "n", "count"),
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
        tables=[item_table("training_quality", caption, columns, rows)],
        figures=loss + accuracy,
    )
