"""Write run directories from a table of step times of another program."""

from __future__ import annotations

import hashlib
import platform
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from analysis.ingest.table import TableRun, drop_incomplete_steps, read_table, separate_waiting
from analysis.units import percent, plural
from disttrain.errors import ConfigError
from disttrain.records.annotation import AnnotationRecord
from disttrain.records.attempt import Outcome
from disttrain.records.base import SCHEMA_VERSION, Record
from disttrain.records.ingested import Ingested
from disttrain.records.json_files import to_json, write_json, write_text
from disttrain.records.metrics import Histogram, LossPoint, Metrics, StepTime
from disttrain.records.planned import RunRecord, SweepRecord, Target
from disttrain.records.provenance import Code, Provenance
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none
from disttrain.records.steps import PHASES

TAG = "ingested"
_REASON = "ingested from a table, which has no such value"
_UTC = "%Y-%m-%dT%H:%M:%SZ"
_POINTS = 1000
_BINS = 20
_SAME_BATCH = 1.01
"""Largest ratio of the batches of repeats: the samples of a step may vary."""
_UNASSIGNED = 0.5
"""Share of the time in no given phase above which `step_s` and the phases may differ in their unit."""


@dataclass(frozen=True)
class Shape:
    """Ranks of a run."""

    world_size: int
    nodes: int
    missing: list[int]
    """Ranks without rows."""

    @property
    def ranks_per_node(self) -> int:
        return self.world_size // self.nodes


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
        ConfigError: the table has an error, a run exists already, or a sweep has other runs. Nothing is
            written then.
    """
    tables, ignored = read_table(path, sweep or path.stem)
    warnings = [f"{path}: columns that are not read: {', '.join(ignored)}"] if ignored else []
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    for name in dict.fromkeys(table.sweep for table in tables):
        _check_sweep(root / name, sha256)
    made = []
    for table in tables:
        run, shape = RunDir(root / table.sweep / table.name), _shape(path, table)
        if run.path.exists():
            raise ConfigError(f"{run.path} exists already; remove it, or name another --sweep")
        incomplete = drop_incomplete_steps(path, table)
        warnings += [f"{table.sweep}/{table.name}: {text}" for text in _doubts(table, shape, incomplete)]
        separate_waiting(table)
        batch = _batch_size(path, table, shape, global_batch_size, warmup_steps)
        origin = Ingested(
            source=path.name,
            sha256=sha256,
            rows=len(table.rows),
            incomplete_steps=incomplete,
            ingested=datetime.now(UTC).strftime(_UTC),
            hosts=_hosts_by_rank(table, shape),
        )
        made.append(_Made(run, table, shape, batch, origin))
    several = {name for name in {each.run.sweep for each in made} if _several_batches(made, name)}
    for each in made:
        _write(each, warmup_steps, batch_axis=each.run.sweep in several)
    for name in {each.run.sweep for each in made} if targets else ():
        _write_targets(root / name, targets)
    return [each.run for each in made], warnings


@dataclass(frozen=True)
class _Made:
    """A run to write."""

    run: RunDir
    table: TableRun
    shape: Shape
    batch: int
    origin: Ingested

    @property
    def per_rank(self) -> int:
        """Samples of a rank in a step."""
        return max(1, self.batch // self.shape.world_size)


def _check_sweep(sweep: Path, sha256: str) -> None:
    """Refuse a sweep with runs of another origin: the report would average them with those of this table."""
    for folder in sorted(sweep.iterdir()) if sweep.is_dir() else []:
        run = RunDir(folder)
        if not (run.run_json.exists() or run.metrics.exists()):
            continue
        origin = (read_run_json_or_none(run) or {}).get("ingested")
        if origin is None or origin.get("sha256") != sha256:
            what = f"of another table, {origin.get('source')}" if origin else "that were not ingested"
            raise ConfigError(f"sweep {sweep.name!r} has runs {what} ({folder.name}); name another --sweep")


def _doubts(table: TableRun, shape: Shape, incomplete: int) -> list[str]:
    """Reasons to doubt the rows of a run."""
    found = []
    if shape.missing:
        listed = ", ".join(map(str, shape.missing[:5])) + (", ..." if len(shape.missing) > 5 else "")
        found.append(f"no rows of ranks {listed} of {shape.world_size}")
    if incomplete:
        found.append(f"{plural(incomplete, 'step')} without rows of all ranks left out")
    rows = table.rows.values()
    unassigned = sum(row["unassigned_s"] for row in rows) / sum(row["step_s"] for row in rows)
    if unassigned > _UNASSIGNED:
        found.append(f"{percent(unassigned, 0)} of step_s is in no phase; are step_s and phases in seconds?")
    return found


def _several_batches(made: Sequence[_Made], sweep: str) -> bool:
    """Whether runs of one shape, model and strategy differ in their batch, and so are no repeats."""
    batches: dict[tuple[Any, ...], list[int]] = {}
    for each in made:
        if each.run.sweep == sweep:
            facts = each.table.facts
            key = each.shape.nodes, each.shape.world_size, facts["model"], facts["strategy"]
            batches.setdefault(key, []).append(each.batch)
    return any(max(found) > _SAME_BATCH * min(found) for found in batches.values())


def _shape(path: Path, table: TableRun) -> Shape:
    ranks = {rank for rank, _ in table.rows}
    where = f"{path}, run {table.sweep}/{table.name}"
    world = table.facts["world_size"] or max(ranks) + 1
    if max(ranks) >= world:
        raise ConfigError(f"{where}: rank {max(ranks)} in a world of {world} ranks (column 'world_size')")
    per_host = Counter(host for host in table.hosts.values() if host)
    nodes = table.facts["nodes"] or len(per_host) or 1
    if world % nodes:
        raise ConfigError(f"{where}: {world} ranks do not divide by {nodes} nodes (column 'nodes')")
    return Shape(world, nodes, sorted(set(range(world)) - ranks))


def _hosts_by_rank(table: TableRun, shape: Shape) -> list[str]:
    if not any(table.hosts.values()):
        return []
    return [table.hosts.get(rank, "") for rank in range(shape.world_size)]


def _batch_size(path: Path, table: TableRun, shape: Shape, given: int | None, warmup_steps: int) -> int:
    """Mean samples of a measured step over all ranks."""
    rows = _measured(table, warmup_steps) or [*table.rows.values()]
    samples = [row.get("samples") for row in rows]
    if None not in samples:
        return round(float(np.mean(samples)) * shape.world_size)  # type: ignore[arg-type]
    if given is None:
        raise ConfigError(
            f"{path}: rows without a value in column 'samples'; name the samples of a step over all ranks "
            "with --global-batch-size N"
        )
    return given


def _measured(table: TableRun, warmup_steps: int) -> list[dict[str, Any]]:
    """Rows of the steps after the warm-up."""
    warmup = {*sorted({step for _, step in table.rows})[:warmup_steps]}
    return [row for row in table.rows.values() if row["step"] not in warmup]


def _write(made: _Made, warmup_steps: int, *, batch_axis: bool) -> None:
    run, table, origin = made.run, made.table, made.origin
    for rank in sorted({rank for rank, _ in table.rows}):
        lines = [_record(table.rows[key], made.per_rank) for key in sorted(table.rows) if key[0] == rank]
        write_text(run.attempt(0).steps(rank), "".join(f"{to_json(line)}\n" for line in lines), durable=False)
    metrics = _metrics(made, warmup_steps)
    _write_record(run.run_json, _run_record(made, batch_axis=batch_axis))
    note = f"ingested from {origin.source}, not measured by this program"
    _write_record(run.path / "annotation.json", AnnotationRecord(tags=[TAG], note=note))
    _write_record(run.metrics, metrics)
    _write_record(run.done, Outcome(cause="finished", attempt=0, ended=origin.ingested, retryable=False))


def _write_targets(sweep: Path, targets: Sequence[Target]) -> None:
    """Record targets in `sweep.json`; the base config is empty, since another program has none."""
    base = {"sweep": {"scaling": "weak", "base_ranks": None}}
    created = datetime.now(UTC).strftime(_UTC)
    _write_record(
        sweep / "sweep.json", SweepRecord(name=sweep.name, base=base, created=created, targets=list(targets))
    )


def _write_record(path: Path, record: Record) -> None:
    write_json(path, record.model_dump(mode="json"))


def _record(row: dict[str, Any], samples: int) -> dict[str, Any]:
    """One line of the step records; absent values are null."""
    wait_s, transfer_s = row.get("comm_wait_s"), row.get("comm_transfer_s")
    exposed = [value for value in (wait_s, transfer_s) if value is not None]
    return {
        "schema_version": SCHEMA_VERSION,
        "step": row["step"],
        "start_s": row.get("start_s"),
        "step_s": row["step_s"],
        **{name: row.get(name) for name in PHASES},
        "comm_exposed_s": sum(exposed) if exposed else None,
        "samples": row.get("samples", samples),
        "loss": row.get("loss"),
        "lr": None,
    }


def _run_record(made: _Made, *, batch_axis: bool) -> RunRecord:
    run, table, shape, origin = made.run, made.table, made.shape, made.origin
    key = hashlib.sha256(f"{origin.sha256} {run.sweep}/{run.name}".encode()).hexdigest()[:12]
    steps = len({step for _, step in table.rows})
    config: dict[str, Any] = {
        "model": {"kind": table.facts["model"] or "unknown"},
        "resources": {"nodes": shape.nodes, "gpus_per_node": shape.ranks_per_node},
        "train": {"steps": steps, "global_batch_size": made.batch, "local_batch_size": made.per_rank},
    }
    axes: dict[str, Any] = {"resources.nodes": shape.nodes, "resources.gpus_per_node": shape.ranks_per_node}
    if table.facts["model"]:
        axes["model.kind"] = table.facts["model"]
    if table.facts["strategy"]:
        axes["parallel.strategy"] = table.facts["strategy"]
        config["parallel"] = {"strategy": table.facts["strategy"]}
    if batch_axis:
        axes["train.local_batch_size"] = made.per_rank
    code = Code(hash=None)
    provenance = Provenance(
        created=origin.ingested,
        host=socket.gethostname(),
        python=platform.python_version(),
        packages={},
        code=code,
        argv=sys.argv,
    )
    return RunRecord(
        name=run.name,
        sweep=run.sweep,
        run_key=key,
        config_key=key,
        repeat=table.facts["repeat"],
        config=config,
        axes=axes,
        cluster=None,
        provenance=provenance,
        ingested=origin,
    )


def _metrics(made: _Made, warmup_steps: int) -> Metrics:
    run, table, shape, batch, origin = made.run, made.table, made.shape, made.batch, made.origin
    steps = sorted({step for _, step in table.rows})
    warmup = min(warmup_steps, len(steps))
    measured = _measured(table, warmup)
    measured_steps = len(steps) - warmup
    ranks = len({row["rank"] for row in table.rows.values()})
    measured_s = sum(row["step_s"] for row in measured) / ranks if measured else None
    samples = sum(row.get("samples", batch / shape.world_size) for row in measured)
    samples_per_s = samples * shape.world_size / ranks / measured_s if measured_s else None
    composition = {name: _mean([row.get(name) for row in measured]) for name in PHASES}
    mean_s = measured_s / measured_steps if measured_s else None
    values: dict[str, Any] = {
        "name": run.name, "sweep": run.sweep, "run_key": "", "attempt": 0, "status": "completed",
        "updated": origin.ingested, "nodes": shape.nodes, "ranks_per_node": shape.ranks_per_node,
        "world_size": shape.world_size, "device": table.facts["device"] or "unknown", "backend": None,
        "torch": table.facts["framework"] or "unknown", "nccl": None, "cpu_count": None,
        "oversubscribed": False, "strategy": table.facts["strategy"], "strategy_reason": "ingested",
        "model": table.facts["model"] or "unknown", "parameters": None, "dataset": None,
        "model_flops_per_sample": None, "flops_method": None, "steps": len(steps), "steps_total": len(steps),
        "local_batch_size": made.per_rank, "accumulation": 1, "global_batch_size": batch,
        "seconds_total": sum(row["step_s"] for row in table.rows.values()) / ranks,
        "warmup_steps": warmup, "left_out": [(steps[0], steps[warmup - 1])] if warmup else [(0, -1)],
        "measured_steps": measured_steps, "measured_s": measured_s, "samples_per_s": samples_per_s,
        "samples_per_s_per_rank": samples_per_s / shape.world_size if samples_per_s else None,
        "tokens_per_s": None, "model_flops_per_s_per_rank": None, "step_time": _step_time(measured),
        "composition": composition, "communication_overhead_percent": _overhead(composition, mean_s),
        "comm_method": None, "peak_memory_bytes": None, "loss_history": _losses(table, steps),
        "eval_history": [],
    }  # fmt: skip
    absent = [name for name, value in values.items() if value is None]
    return Metrics.model_validate(values | {"null_reasons": dict.fromkeys(absent, _REASON)})


def _overhead(composition: dict[str, float | None], step_s: float | None) -> float | None:
    """Exposed communication in percent of a step; None in a table without phases of communication."""
    known = [s for name in ("comm_wait_s", "comm_transfer_s") if (s := composition[name]) is not None]
    return 100 * sum(known) / step_s if known and step_s else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _step_time(measured: Sequence[dict[str, Any]]) -> StepTime | None:
    """Distribution on the first rank that has rows."""
    if not measured:
        return None
    first = min(row["rank"] for row in measured)
    times = np.array([row["step_s"] for row in measured if row["rank"] == first])
    counts, edges = np.histogram(times, bins=_BINS)
    p50, p95, p99 = (float(value) for value in np.percentile(times, [50, 95, 99]))
    return StepTime(
        mean_s=float(times.mean()),
        std_s=float(times.std()),
        min_s=float(times.min()),
        max_s=float(times.max()),
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        histogram=Histogram(edges_s=edges.tolist(), counts=counts.tolist()),
    )


def _losses(table: TableRun, steps: Sequence[int]) -> list[LossPoint]:
    """Mean loss over the ranks, thinned evenly; empty without losses."""
    by_step: dict[int, list[float]] = {}
    for row in table.rows.values():
        if row.get("loss") is not None:
            by_step.setdefault(row["step"], []).append(row["loss"])
    known = [step for step in steps if step in by_step]
    stride = max(1, -(-len(known) // _POINTS))
    return [LossPoint(step=step, loss=float(np.mean(by_step[step]))) for step in known[::stride]]
