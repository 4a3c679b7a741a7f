"""Made-up runs in memory: written and read once for equal options, and varied.

`runs_of` has whole runs, with attempts, GPU-hours and samples, for sections; tests share them and change
copies: `changed`, `delayed`, `dataclasses.replace`. `run_of` makes a copy that has exact figures alone, for
what is computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from analysis.read.load import load_runs
from analysis.read.run import Run
from analysis.report.section import Section
from analysis.results.curves import Curve, scaling_curves
from analysis.study import Study, make_study
from disttrain.config.dotted_keys import get_key
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_sweep
from tests.support.straggler_records import generate, steps_of

STRATEGY, BUCKET = "parallel.strategy", "parallel.ddp.bucket_mb"
_FOLDER = TemporaryDirectory(prefix="studies-")
"""Deleted at the end of the process."""
_KNOWN: dict[str, list[Run]] = {}


def runs_of(**options: Any) -> list[Run]:
    """The runs of `fake_sweep` with these options."""
    key = repr(sorted(options.items()))
    if key not in _KNOWN:
        _KNOWN[key] = load_runs([fake_sweep(Path(_FOLDER.name) / str(len(_KNOWN)), **options)])
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


def run_of(
    nodes: int = 1,
    gpus: int = 1,
    repeat: int = 0,
    *,
    mean_s: float = 0.1,
    batch: int = 8,
    sweep: str = "s",
    name: str = "",
    axes: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """A finished run with these mean steps and `batch` samples of a rank; its node is nobody else's.

    Args:
        axes: swept keys beside the shape.
        metrics: other fields of its metrics.
        fields: other fields of the run.
    """
    world, axes = nodes * gpus, dict(axes or {})
    (whole,) = runs_of(nodes=(world,), repeats=1, all_ranks=True)
    assert whole.record is not None
    assert whole.metrics is not None
    assert whole.step_s is not None
    scale, rate = mean_s / whole.step_s, batch * world / mean_s
    values = {
        "nodes": nodes, "ranks_per_node": gpus, "local_batch_size": batch, "global_batch_size": batch * world,
        "samples_per_s": rate, "tokens_per_s": 128 * rate,
        "measured_s": mean_s * whole.metrics.measured_steps,
        "composition": {key: each and each * scale for key, each in whole.metrics.composition.items()},
    }  # fmt: skip
    swept = {"resources.nodes": nodes, "resources.gpus_per_node": gpus, **axes}
    run = changed(whole, swept, **values | dict(metrics or {}))
    assert run.record is not None
    name = name or "-".join([f"n{nodes}x{gpus}", *map(str, axes.values()), f"r{repeat}"])
    names = {"name": name, "sweep": sweep, "repeat": repeat, "axes": swept}
    seconds = {key: each * scale for key, each in run.steps.seconds.items()}
    figures_alone = {"attempts": (), "usage": None, "steps": replace(run.steps, seconds=seconds)}
    record = run.record.model_copy(update=names)
    return replace(run, folder=RunDir(Path("/runs") / sweep / name), record=record, **figures_alone | fields)


def attempt_of(*hosts: str, **fields: Any) -> Any:
    """An attempt of a minute on these nodes, of which nothing else is recorded."""
    values = {
        "record": SimpleNamespace(nodes=hosts), "span": (0.0, 60.0), "gpus": lambda node: frozenset(),
        "minicluster": None, "one_machine": False, "preflight": None, "link_rates": {},
        "line_rate_bytes_per_s": None,
    }  # fmt: skip
    return SimpleNamespace(**values | fields)


def sweep_of(
    nodes: Sequence[int] = (1, 2),
    step_s: Sequence[float] = (0.1, 0.101, 0.099),
    groups: Sequence[Mapping[str, Any]] = ({},),
    **options: Any,
) -> list[Run]:
    """A repeat for each of `step_s` at each size. Each doubling keeps 0.85 of the throughput of a rank. Each
    of the `groups` of axes is a tenth slower than the one before."""
    return [
        run_of(
            count,
            repeat=repeat,
            axes=axes,
            mean_s=mean_s * 0.85 ** -np.log2(count) * (1 + group / 10),
            **options,
        )
        for group, axes in enumerate(groups)
        for count in nodes
        for repeat, mean_s in enumerate(step_s)
    ]


def curves_of(*args: Any, **options: Any) -> list[Curve]:
    """Curves of `sweep_of`."""
    return scaling_curves(sweep_of(*args, **options))


def section_of(build: Callable[[Study], Section | None], study: Study | Sequence[Run]) -> Section:
    """The section that a function of `analysis.report.sections` builds of a study, or of runs."""
    section = build(study if isinstance(study, Study) else make_study(study))
    assert isinstance(section, Section)
    return section


def rows_of(section: Section, table: str = "") -> list[dict[str, Any]]:
    """Rows of a table of a section, by default of the first one, by names of columns."""
    shown = next(each for each in section.tables if table in ("", each.name))
    names = [column.name for column in shown.columns]
    return [dict(zip(names, row, strict=True)) for row in shown.rows]
