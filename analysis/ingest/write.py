"""Write run directories from a table of step times of another program."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.ingest.table import PER_RUN, RUN, complete_steps, read_table, separate_waiting
from analysis.read.load import step_time
from analysis.read.record import read_record
from analysis.units import percent, plural
from disttrain.errors import ConfigError
from disttrain.records.attempt import Outcome
from disttrain.records.base import Record
from disttrain.records.json_files import write_json, write_text
from disttrain.records.metrics import LossPoint, Metrics
from disttrain.records.planned import (
    AnnotationRecord,
    Code,
    Ingested,
    Provenance,
    RunRecord,
    SweepRecord,
    Target,
)
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES, Step

TAG = "ingested"
_REASON = "ingested from a table, which has no such value"
_POINTS = 1000
_AXES = ("resources.nodes", "resources.gpus_per_node", "model.kind", "parallel.strategy")
_SAME_BATCH = 1.01
"""Largest ratio of the batches of repeats: the samples of a step may vary."""
_UNASSIGNED = 0.5
"""Share of the time in no given phase above which `step_s` and the phases may differ in their unit."""


def ingest(
    path: Path,
    root: Path,
    *,
    sweep: str | None = None,
    global_batch_size: int | None = None,
    warmup_steps: int,
    targets: Sequence[Target] = (),
) -> tuple[list[RunDir], list[str]]:
    """Write a run directory below `root` for each run of a CSV table; the runs, and warnings.

    Args:
        path: the table (docs/report.md).
        root: folder of all sweeps.
        sweep: sweep of rows without a column `sweep`; the name of the file by default.
        global_batch_size: samples of a step over all ranks, for tables without a column `samples`.
        warmup_steps: first steps of each run that the figures leave out.
        targets: figures that each sweep of the table has to reach; recorded in its `sweep.json`.

    Raises:
        ConfigError: the table has an error, a run exists already, or a sweep has measured runs. Nothing is
            written then.
    """
    table, ignored = read_table(path, sweep or path.stem)
    warnings = [f"{path}: columns that are not read: {', '.join(ignored)}"] if ignored else []
    sweeps = table["sweep"].unique()
    earlier = [record for name in sweeps for record in _earlier_runs(root / name)]
    known = {(run.sweep, run.name) for run in earlier}
    if again := [name for (sweep, name), _ in table.groupby(RUN, sort=False) if (sweep, name) in known]:
        raise ConfigError(
            f"{path}: runs {', '.join(again)} exist already; name them otherwise, or name another --sweep"
        )
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    origin = Ingested(source=path.name, sha256=sha256, rows=0, ingested=now)
    runs = [
        (RunDir(root.joinpath(*names)), *_run(path, names, rows, origin, global_batch_size, warmup_steps))
        for names, rows in table.groupby(RUN, sort=False)
    ]
    batches: dict[tuple[Any, ...], list[int]] = {}
    for record in (*earlier, *(record for _, record, *_ in runs)):
        size = record.sweep, *(record.axes.get(axis) for axis in _AXES)
        batches.setdefault(size, []).append(record.config["train"]["global_batch_size"])
    several = {sweep for (sweep, *_), of_size in batches.items() if max(of_size) > _SAME_BATCH * min(of_size)}
    for folder, record, metrics, rows, doubts in runs:
        if record.sweep in several:
            record.axes["train.local_batch_size"] = metrics.local_batch_size
        _write(folder, record, metrics, rows)
        warnings += doubts
    for name in sweeps if targets else ():
        base = {"sweep": {"scaling": "weak", "base_ranks": None}}  # no config of another program is known
        planned = SweepRecord(name=name, base=base, created=now, targets=list(targets))
        _write_record(root / name / "sweep.json", planned)
    return [folder for folder, *_ in runs], warnings


def _earlier_runs(sweep: Path) -> list[RunRecord]:
    """Ingested runs of a sweep; `ConfigError` for another one."""
    records = []
    for folder in sorted({file.parent for file in sweep.glob("*/*.json")}):
        record, _ = read_record(RunDir(folder).run_json, RunRecord)
        if record is None or record.ingested is None:
            raise ConfigError(
                f"sweep {sweep.name!r} has runs that were not ingested ({folder.name}); name another --sweep"
            )
        records.append(record)
    return records


def _run(
    path: Path,
    names: Sequence[str],
    table: pd.DataFrame,
    origin: Ingested,
    batch: int | None,
    warmup_steps: int,
) -> tuple[RunRecord, Metrics, pd.DataFrame, list[str]]:
    """Records of the run of these rows, its rows of complete steps by rank and step, and reasons to doubt
    them. A row is `measured` after the warm-up."""
    name = "/".join(names)
    where = f"{path}, run {name}"
    facts = {column: next(iter(table[column].dropna()), None) for column in PER_RUN}
    ranks = table["rank"].astype(int)
    hosts = table["host"].groupby(ranks).first()
    world_size = int(facts["world_size"] or ranks.max() + 1)
    nodes = int(facts["nodes"] or hosts.nunique() or 1)
    if ranks.max() >= world_size:
        raise ConfigError(
            f"{where}: rank {ranks.max()} in a world of {world_size} ranks (column 'world_size')"
        )
    if world_size % nodes:
        raise ConfigError(f"{where}: {world_size} ranks do not divide by {nodes} nodes (column 'nodes')")
    rows = complete_steps(table)
    if rows.empty:
        raise ConfigError(f"{where}: no step has rows of all {len(hosts)} ranks")
    doubts = []
    if missing := sorted({*range(world_size)} - {*hosts.index}):
        listed = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        doubts.append(f"{name}: no rows of ranks {listed} of {world_size}")
    if incomplete := table["step"].nunique() - rows["step"].nunique():
        doubts.append(f"{name}: {plural(incomplete, 'step')} without rows of all ranks left out")
    unassigned = rows["unassigned_s"].sum() / rows["step_s"].sum()
    if unassigned > _UNASSIGNED:
        doubts.append(
            f"{name}: {percent(unassigned, 0)} of step_s is in no phase; are step_s and phases in seconds?"
        )
    rows = separate_waiting(rows).sort_values(["rank", "step"])
    rows["measured"] = rows["step"].rank(method="dense") > warmup_steps
    samples = rows["samples"][rows["measured"] | ~rows["measured"].any()]
    if samples.notna().all():
        batch = round(samples.mean() * world_size)
    elif batch is None:
        raise ConfigError(
            f"{path}: rows without a value in column 'samples'; name the samples of a step over all ranks "
            "with --global-batch-size N"
        )
    local = max(1, batch // world_size)
    shape = {"nodes": nodes, "ranks_per_node": world_size // nodes, "world_size": world_size}
    batches = {"local_batch_size": local, "global_batch_size": batch}
    known = hosts.reindex(range(world_size)).fillna("").tolist() if hosts.any() else []
    origin = origin.model_copy(update={"rows": len(rows), "incomplete_steps": incomplete, "hosts": known})
    metrics = _metrics(rows, facts, {"name": names[1], "sweep": names[0], **shape, **batches}, origin)
    return _run_record(metrics, facts, origin), metrics, rows.fillna({"samples": local}), doubts


def _write(folder: RunDir, record: RunRecord, metrics: Metrics, rows: pd.DataFrame) -> None:
    exposed_s = rows[["comm_wait_s", "comm_transfer_s"]].sum(axis=1, min_count=1)
    steps = rows.assign(comm_exposed_s=exposed_s, lr=None).astype({"step": int, "samples": int})
    columns = [name for name in Step.model_fields if name in steps]
    for rank, of_rank in steps.groupby("rank"):
        text = of_rank[columns].to_json(orient="records", lines=True, double_precision=15)
        write_text(folder.attempt(0).steps(int(rank)), text, durable=False)
    _write_record(folder.run_json, record)
    assert record.ingested is not None
    note = f"ingested from {record.ingested.source}, not measured by this program"
    _write_record(folder.path / "annotation.json", AnnotationRecord(tags=[TAG], note=note))
    _write_record(folder.metrics, metrics)
    _write_record(folder.done, Outcome(cause="finished", attempt=0, ended=metrics.updated, retryable=False))


def _write_record(path: Path, record: Record) -> None:
    write_json(path, record.model_dump(mode="json"))


def _run_record(metrics: Metrics, facts: dict[str, Any], origin: Ingested) -> RunRecord:
    model, strategy = facts["model"], facts["strategy"]
    resources = {"nodes": metrics.nodes, "gpus_per_node": metrics.ranks_per_node}
    axes = dict(zip(_AXES, (*resources.values(), model, strategy), strict=True))
    config = {
        "model": {"kind": metrics.model},
        "resources": resources,
        "train": {
            "steps": metrics.steps,
            "global_batch_size": metrics.global_batch_size,
            "local_batch_size": metrics.local_batch_size,
        },
    }
    name = f"{origin.sha256} {metrics.sweep}/{metrics.name}"
    key = hashlib.sha256(name.encode()).hexdigest()[:12]
    return RunRecord(
        name=metrics.name,
        sweep=metrics.sweep,
        run_key=key,
        config_key=key,
        repeat=facts["repeat"],
        config=config | ({"parallel": {"strategy": strategy}} if strategy else {}),
        axes={name: value for name, value in axes.items() if value is not None},
        cluster=None,
        provenance=Provenance(
            created=origin.ingested,
            host="unknown",
            python="unknown",
            packages={},
            code=Code(hash=None),
            argv=sys.argv,
        ),
        ingested=origin,
    )


def _metrics(rows: pd.DataFrame, facts: dict[str, Any], fields: dict[str, Any], origin: Ingested) -> Metrics:
    """`fields`: name, shape and batches of the run."""
    measured = rows[rows["measured"]]
    steps, ranks = np.unique(rows["step"]).astype(int).tolist(), rows["rank"].nunique()
    warmup = len(steps) - measured["step"].nunique()
    step_s, world_size = measured["step_s"], fields["world_size"]
    samples = measured["samples"].fillna(fields["global_batch_size"] / world_size).sum() * world_size
    rate = samples / step_s.sum(min_count=1)
    phases_s = measured[[*PHASES]].mean()
    exposed_s = phases_s[["comm_wait_s", "comm_transfer_s"]].sum(min_count=1)
    losses = rows.groupby("step")["loss"].mean().dropna()
    thinned = losses[:: max(1, -(-len(losses) // _POINTS))]
    required = (name for name, each in Metrics.model_fields.items() if each.is_required())
    values = dict.fromkeys(required) | {
        **fields, "run_key": "", "attempt": 0, "status": "completed", "updated": origin.ingested,
        "device": facts["device"] or "unknown", "torch": facts["framework"] or "unknown",
        "oversubscribed": False, "strategy": facts["strategy"], "strategy_reason": "ingested",
        "model": facts["model"] or "unknown", "steps": len(steps), "steps_total": len(steps),
        "accumulation": 1, "seconds_total": rows["step_s"].sum() / ranks, "warmup_steps": warmup,
        "left_out": [(steps[0], steps[warmup - 1])] if warmup else [(0, -1)],
        "measured_steps": len(steps) - warmup, "measured_s": step_s.sum(min_count=1) / ranks,
        "samples_per_s": rate, "samples_per_s_per_rank": rate / world_size,
        "composition": phases_s.astype(object).where(phases_s.notna(), None).to_dict(),
        "communication_overhead_percent": 100 * exposed_s / step_s.mean(),
        "step_time": step_time(step_s[measured["rank"] == rows["rank"].min()].to_numpy()),
        "loss_history": [LossPoint(step=int(step), loss=loss) for step, loss in thinned.items()],
        "eval_history": [],
    }  # fmt: skip
    values = {name: value if value == value else None for name, value in values.items()}  # NaN: not measured
    absent = [name for name, value in values.items() if value is None]
    return Metrics.model_validate(values | {"null_reasons": dict.fromkeys(absent, _REASON)})
