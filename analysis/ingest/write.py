"""Write run directories from a table of step times of another program."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class TableRun:
    """A run to write."""

    folder: RunDir
    rows: pd.DataFrame
    """Of complete steps, by rank and step."""
    measured: pd.DataFrame
    """Rows of the steps after the warm-up."""
    facts: dict[str, Any]
    """Values of the columns `PER_RUN`; None without one."""
    nodes: int
    world_size: int
    batch: int
    """Mean samples of a measured step over all ranks."""
    origin: Ingested

    @property
    def local_batch(self) -> int:
        return max(1, self.batch // self.world_size)

    @property
    def steps(self) -> list[int]:
        return np.unique(self.rows["step"]).astype(int).tolist()


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
        path: the table (docs/ingest.md).
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
        _table_run(
            path, RunDir(root.joinpath(*names)), rows, origin, global_batch_size, warmup_steps, warnings
        )
        for names, rows in table.groupby(RUN, sort=False)
    ]
    records = [_run_record(run) for run in runs]
    batches: dict[tuple[Any, ...], list[int]] = {}
    for record in (*earlier, *records):
        size = record.sweep, *(record.axes.get(axis) for axis in _AXES)
        batches.setdefault(size, []).append(record.config["train"]["global_batch_size"])
    several = {sweep for (sweep, *_), of_size in batches.items() if max(of_size) > _SAME_BATCH * min(of_size)}
    for run, record in zip(runs, records, strict=True):
        if record.sweep in several:
            record.axes["train.local_batch_size"] = run.local_batch
        _write(run, record)
    for name in sweeps if targets else ():
        base = {"sweep": {"scaling": "weak", "base_ranks": None}}  # no config of another program is known
        planned = SweepRecord(name=name, base=base, created=now, targets=list(targets))
        _write_record(root / name / "sweep.json", planned)
    return [run.folder for run in runs], warnings


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


def _table_run(
    path: Path,
    folder: RunDir,
    table: pd.DataFrame,
    origin: Ingested,
    batch: int | None,
    warmup_steps: int,
    warnings: list[str],
) -> TableRun:
    """The run of these rows; reasons to doubt them are appended to `warnings`."""
    name = f"{folder.sweep}/{folder.name}"
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
    if missing := sorted({*range(world_size)} - {*hosts.index}):
        listed = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        warnings.append(f"{name}: no rows of ranks {listed} of {world_size}")
    if incomplete := table["step"].nunique() - rows["step"].nunique():
        warnings.append(f"{name}: {plural(incomplete, 'step')} without rows of all ranks left out")
    unassigned = rows["unassigned_s"].sum() / rows["step_s"].sum()
    if unassigned > _UNASSIGNED:
        warnings.append(
            f"{name}: {percent(unassigned, 0)} of step_s is in no phase; are step_s and phases in seconds?"
        )
    rows = separate_waiting(rows).sort_values(["rank", "step"])
    measured = rows[rows["step"].rank(method="dense") > warmup_steps]
    samples = (rows if measured.empty else measured)["samples"]
    if samples.notna().all():
        batch = round(samples.mean() * world_size)
    elif batch is None:
        raise ConfigError(
            f"{path}: rows without a value in column 'samples'; name the samples of a step over all ranks "
            "with --global-batch-size N"
        )
    names = hosts.reindex(range(world_size)).fillna("").tolist() if hosts.any() else []
    origin = origin.model_copy(update={"rows": len(rows), "incomplete_steps": incomplete, "hosts": names})
    return TableRun(folder, rows, measured, facts, nodes, world_size, batch, origin)


def _write(run: TableRun, record: RunRecord) -> None:
    folder, origin = run.folder, run.origin
    exposed_s = run.rows[["comm_wait_s", "comm_transfer_s"]].sum(axis=1, min_count=1)
    lines = run.rows.fillna({"samples": run.local_batch}).assign(comm_exposed_s=exposed_s, lr=None)
    for rank, of_rank in lines.groupby("rank"):
        columns = of_rank[[name for name in Step.model_fields if name in lines]].astype(object)
        records = columns.where(columns.notna(), None).to_dict("records")
        text = "".join(Step.model_validate(record).model_dump_json() + "\n" for record in records)
        write_text(folder.attempt(0).steps(int(rank)), text, durable=False)
    _write_record(folder.run_json, record)
    note = f"ingested from {origin.source}, not measured by this program"
    _write_record(folder.path / "annotation.json", AnnotationRecord(tags=[TAG], note=note))
    _write_record(folder.metrics, _metrics(run))
    _write_record(folder.done, Outcome(cause="finished", attempt=0, ended=origin.ingested, retryable=False))


def _write_record(path: Path, record: Record) -> None:
    write_json(path, record.model_dump(mode="json"))


def _run_record(run: TableRun) -> RunRecord:
    folder, facts, origin = run.folder, run.facts, run.origin
    model, strategy = facts["model"], facts["strategy"]
    resources = {"nodes": run.nodes, "gpus_per_node": run.world_size // run.nodes}
    axes = dict(zip(_AXES, (*resources.values(), model, strategy), strict=True))
    config = {
        "model": {"kind": model or "unknown"},
        "resources": resources,
        "train": {
            "steps": len(run.steps),
            "global_batch_size": run.batch,
            "local_batch_size": run.local_batch,
        },
    }
    key = hashlib.sha256(f"{origin.sha256} {folder.sweep}/{folder.name}".encode()).hexdigest()[:12]
    return RunRecord(
        name=folder.name,
        sweep=folder.sweep,
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


def _metrics(run: TableRun) -> Metrics:
    rows, measured, facts, steps = run.rows, run.measured, run.facts, run.steps
    world_size, ranks, measured_steps = run.world_size, rows["rank"].nunique(), measured["step"].nunique()
    warmup = len(steps) - measured_steps
    phases_s = measured[[*PHASES]].mean().astype(object)
    losses = rows.groupby("step")["loss"].mean().dropna()
    thinned = losses[:: max(1, -(-len(losses) // _POINTS))]
    values: dict[str, Any] = {name: None for name, each in Metrics.model_fields.items() if each.is_required()}
    values |= {
        "name": run.folder.name, "sweep": run.folder.sweep, "run_key": "", "attempt": 0,
        "status": "completed", "updated": run.origin.ingested, "nodes": run.nodes,
        "ranks_per_node": world_size // run.nodes, "world_size": world_size,
        "device": facts["device"] or "unknown", "torch": facts["framework"] or "unknown",
        "oversubscribed": False, "strategy": facts["strategy"], "strategy_reason": "ingested",
        "model": facts["model"] or "unknown", "steps": len(steps), "steps_total": len(steps),
        "local_batch_size": run.local_batch, "accumulation": 1, "global_batch_size": run.batch,
        "seconds_total": rows["step_s"].sum() / ranks, "warmup_steps": warmup,
        "left_out": [(steps[0], steps[warmup - 1])] if warmup else [(0, -1)],
        "measured_steps": measured_steps, "composition": phases_s.where(phases_s.notna(), None).to_dict(),
        "loss_history": [LossPoint(step=int(step), loss=loss) for step, loss in thinned.items()],
        "eval_history": [], "communication_overhead_percent": None,
    }  # fmt: skip
    if measured_steps:
        measured_s = measured["step_s"].sum() / ranks
        samples = measured["samples"].fillna(run.batch / world_size).sum() * world_size / ranks
        exposed_s = measured[["comm_wait_s", "comm_transfer_s"]].mean().sum(min_count=1)
        values |= {
            "measured_s": measured_s,
            "samples_per_s": samples / measured_s,
            "samples_per_s_per_rank": samples / measured_s / world_size,
            "step_time": step_time(measured["step_s"][measured["rank"] == rows["rank"].min()].to_numpy()),
        }
        if not np.isnan(exposed_s):
            values["communication_overhead_percent"] = 100 * exposed_s * measured_steps / measured_s
    absent = [name for name, value in values.items() if value is None]
    return Metrics.model_validate(values | {"null_reasons": dict.fromkeys(absent, _REASON)})
