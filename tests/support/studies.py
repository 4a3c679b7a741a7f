"""Studies of made-up runs: written and read once for equal options, and varied in memory.

Runs are shared between tests, which change copies: `changed`, `delayed`, `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from analysis.read.load import load_runs
from analysis.read.run import Run
from analysis.report.section import Section
from analysis.study import Study, make_study
from disttrain.config.dotted_keys import get_key
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_sweep
from tests.support.straggler_records import generate, steps_of

_KNOWN: dict[str, list[Run]] = {}


@cache
def _folder() -> TemporaryDirectory[str]:
    """Deleted at the end of the process."""
    return TemporaryDirectory(prefix="studies-")


def runs_of(**options: Any) -> list[Run]:
    """The runs of `fake_sweep` with these options."""
    key = repr(sorted(options.items()))
    if key not in _KNOWN:
        folder = Path(_folder().name) / str(len(_KNOWN))
        _KNOWN[key] = load_runs([fake_sweep(folder, **options)])
    return [*_KNOWN[key]]


def study_of(**options: Any) -> Study:
    """The study of `runs_of` with these options."""
    return make_study(runs_of(**options))


def changed(run: Run, config: dict[str, Any] | None = None, **metrics: Any) -> Run:
    """The run with other values in its config, by dotted key, and in its metrics."""
    assert run.record is not None
    assert run.metrics is not None
    record = run.record.model_copy(deep=True)
    for key, value in (config or {}).items():
        section, _, leaf = key.rpartition(".")
        (get_key(record.config, section) if section else record.config)[leaf] = value
    return replace(run, record=record, metrics=run.metrics.model_copy(update=metrics))


def with_loss(run: Run, times: float) -> Run:
    """The run whose last validation has so many times its loss."""
    *former, last = run.curves["eval_history"]
    last = msgspec.structs.replace(last, loss=(last.loss or 0.0) * times)
    return replace(run, curves={**run.curves, "eval_history": [*former, last]})


def placed(
    run: Run, hosts: Sequence[str], start_s: float = 0.0, end_s: float = 60.0, cluster: str = "local"
) -> Run:
    """The run on these nodes of a cluster, from one time to another in seconds since the epoch."""
    started, ended = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, end_s))
    changes = {"nodes": [*hosts], "started": started, "ended": ended, "cluster": cluster}
    attempts = [
        replace(each, record=msgspec.structs.replace(each.record, **changes)) for each in run.attempts
    ]
    return replace(run, attempts=(*attempts,))


def delayed(run: Run, added_s: np.ndarray, hosts: Sequence[str] = (), **options: Any) -> Run:
    """The run on Slurm, with steps of ranks that take `added_s` longer [rank, step], on `hosts` by rank, and
    with the metrics that follow; `options` of `generate`."""
    assert run.metrics is not None
    rows = generate(added_s, **options)
    rows["measured"] = rows["step"] > run.metrics.warmup_steps
    if hosts:
        rows["host"] = [hosts[rank] for rank in rows["rank"]]
    measured = rows[rows["measured"]]
    step_s = float(measured["step_s"].mean())
    samples, steps = run.metrics.global_batch_size, run.metrics.measured_steps
    run = placed(run, hosts or sorted({*rows["host"]}), cluster="slurm")
    return changed(
        replace(run, steps=steps_of(rows)),
        samples_per_s=samples / step_s,
        measured_s=step_s * steps,
        composition={name: float(measured[name].mean()) for name in PHASES},
        step_time=None,
    )


def section_of(module: Any, study: Study | Sequence[Run]) -> Section:
    """The section that a module of `analysis.report.sections` builds of a study, or of runs."""
    section = module.build(study if isinstance(study, Study) else make_study(study))
    assert isinstance(section, Section)
    return section


def rows_of(section: Section, table: str = "") -> list[dict[str, Any]]:
    """Rows of a table of a section, by default of the first one, by names of columns."""
    shown = next(each for each in section.tables if table in ("", each.name))
    names = [column.name for column in shown.columns]
    return [dict(zip(names, row, strict=True)) for row in shown.rows]
