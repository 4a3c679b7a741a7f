"""Run directories as the trainer would leave them, made up: for tests of everything that reads runs.

All records go through the models of `disttrain.records`, so they fit the schemas. Nothing is random:
the same call writes the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.read.run import Run
from disttrain.config.batch_plan import scale_batch
from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import get_key
from disttrain.config.run_key import config_key
from disttrain.records.attempt import AttemptRecord, Outcome
from disttrain.records.base import Record
from disttrain.records.dataset import DatasetRecord
from disttrain.records.hardware import HostSample
from disttrain.records.json_files import read_json, read_jsonl, to_json, write_json, write_text
from disttrain.records.metrics import EvalPoint, GradNormPoint, Histogram, LossPoint, Metrics, StepTime
from disttrain.records.planned import Code, Provenance, RunRecord
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES, Step

WHEN = "2026-01-02T03:04:05Z"
NODE = {"node": 0, "host": "c01", "taken": WHEN}
"""The fields that a record of a node must have."""
End = Literal["done", "failed", "running", "planned"]


def fake_sweep(
    root: Path,
    name: str = "default",
    *,
    nodes: Sequence[int] = (1, 2, 4),
    repeats: int = 3,
    gpus_per_node: Sequence[int] = (1,),
    scaling: Literal["weak", "strong"] = "weak",
    axes: Iterable[dict[str, Any]] = ({},),
    step_s: float = 0.1,
    efficiency: float = 0.85,
    all_ranks: bool = False,
    **overrides: Any,
) -> Path:
    """A finished sweep: each doubling of the ranks keeps `efficiency` of the throughput per rank.

    `axes` holds one dict of further swept keys (dotted) per group of runs; each group is a tenth slower
    than the one before. `overrides` replace fields of every run's metrics.
    """
    for group, extra in enumerate(axes):
        for count in nodes:
            for gpus in gpus_per_node:
                world = count * gpus
                batch = scale_batch(
                    8, None, base_world=min(nodes) * min(gpus_per_node), world=world, scaling=scaling
                )
                work = batch.local * batch.accumulation / 8
                mean_s = step_s * work * (1 + 0.1 * group) / efficiency ** math.log2(world)
                for repeat in range(repeats):
                    swept = {"resources.nodes": count, **extra}
                    if len(gpus_per_node) > 1:
                        swept["resources.gpus_per_node"] = gpus
                    fake_run(
                        root / name / "-".join([f"n{count}x{gpus}", *map(str, extra.values()), f"r{repeat}"]),
                        nodes=count,
                        gpus_per_node=gpus,
                        repeat=repeat,
                        axes=swept,
                        mean_s=mean_s * (1 + 0.01 * ((repeat * 7 + count * 3) % 5 - 2)),
                        local_batch_size=batch.local,
                        accumulation=batch.accumulation,
                        overrides=overrides,
                        all_ranks=all_ranks,
                    )
    return root / name


def fake_run(
    path: Path,
    *,
    nodes: int = 1,
    gpus_per_node: int = 1,
    repeat: int = 0,
    axes: dict[str, Any] | None = None,
    mean_s: float = 0.1,
    steps: int = 110,
    local_batch_size: int = 8,
    accumulation: int = 1,
    end: End = "done",
    message: str | None = None,
    overrides: dict[str, Any] | None = None,
    hosts: Sequence[str] | None = None,
    all_ranks: bool = False,
) -> RunDir:
    """One run directory; `end` says how far the run came, `overrides` replace fields of its metrics.

    By default, each run has nodes of its own, and rank 0 alone has step records. With `all_ranks` every rank
    has the same records; a report then looks for stragglers, which takes 0.1 s a run.
    """
    run = RunDir(path)
    world = nodes * gpus_per_node
    global_batch_size = local_batch_size * accumulation * world
    config = _config(nodes, gpus_per_node, steps, local_batch_size, global_batch_size, axes or {})
    _write(run.run_json, _run_record(run, config, repeat, axes or {"resources.nodes": nodes}))
    if end == "planned":
        return run
    done = steps if end == "done" else steps // 2
    records = _steps(done, mean_s, global_batch_size // world, world)
    attempt = run.attempt(0)
    hosts = hosts or [f"{run.sweep}-{run.name}-node{index}" for index in range(nodes)]
    _write(attempt.record, _attempt(hosts, end, message))
    lines = "".join(record.model_dump_json() + "\n" for record in records)
    for rank in range(world if all_ranks else 1):
        write_text(attempt.steps(rank), lines)
    samples = _samples(records[-1].start_s + records[-1].step_s)
    write_text(attempt.host_samples(0), "".join(sample.model_dump_json() + "\n" for sample in samples))
    metrics = _metrics(run, config, records, world, local_batch_size, accumulation, steps)
    status = {"done": "completed", "failed": "failed", "running": "running"}[end]
    _write(run.metrics, Metrics.model_validate(metrics.model_dump() | {"status": status} | (overrides or {})))
    if end == "done":
        _write(run.done, Outcome(cause="finished", attempt=0, ended=WHEN, retryable=False))
    if end == "failed":
        _write(run.failed, Outcome(cause="crashed", attempt=0, message=message, ended=WHEN, retryable=True))
    return run


def reshape(run: Path, factor: Callable[[int], float]) -> None:
    """Multiply the recorded seconds of each step on all ranks by `factor(step)`, and its metrics alike."""
    before_s, after_s = 0.0, 0.0
    metrics = read_json(run / "metrics.json")
    for path in (run / "attempts" / "000").glob("steps-*.jsonl"):
        records = list(read_jsonl(path))
        for record in records:
            seconds = {
                name: value for name, value in record.items() if name.endswith("_s") and value is not None
            }
            times = factor(record["step"])
            record |= {name: value * times for name, value in seconds.items() if name != "start_s"}
            if not any(first <= record["step"] <= last for first, last in metrics["left_out"]):
                before_s, after_s = before_s + seconds["step_s"], after_s + record["step_s"]
        write_text(path, "".join(f"{to_json(record)}\n" for record in records))
    ratio = after_s / before_s
    faster = ("samples_per_s", "samples_per_s_per_rank", "tokens_per_s", "model_flops_per_s_per_rank")
    metrics |= {name: metrics[name] / ratio for name in faster if metrics[name]}
    metrics["measured_s"] *= ratio
    metrics["composition"] = {name: value and value * ratio for name, value in metrics["composition"].items()}
    times = metrics["step_time"]
    times |= {name: value * ratio for name, value in times.items() if name.endswith("_s")}
    write_json(run / "metrics.json", metrics)


def edit(path: Path, **changes: Any) -> None:
    """Replace values of a JSON record, section by section."""
    path.write_text(json.dumps(_merged(read_json(path), changes)))


def _merged(record: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    sections = {key: each for key, each in changes.items() if isinstance(each, dict) and record.get(key)}
    return record | changes | {key: _merged(record[key], each) for key, each in sections.items()}


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    write_text(path, "".join(f"{to_json(record)}\n" for record in records))


def _write(path: Path, record: Record) -> None:
    write_json(path, record.model_dump(mode="json"))


def _config(
    nodes: int, gpus_per_node: int, steps: int, local: int, global_: int, axes: dict[str, Any]
) -> Config:
    data: dict[str, Any] = Config().as_dict()
    data["resources"] |= {"nodes": nodes, "gpus_per_node": gpus_per_node}
    data["train"] |= {"steps": steps, "local_batch_size": local, "global_batch_size": global_}
    for key, value in axes.items():
        section, _, leaf = key.rpartition(".")
        get_key(data, section)[leaf] = value
    return Config.model_validate(data)


def _run_record(run: RunDir, config: Config, repeat: int, axes: dict[str, Any]) -> RunRecord:
    key = config_key(config, repeat)
    return RunRecord(
        name=run.name,
        sweep=run.sweep,
        run_key=key,
        config_key=key,
        repeat=repeat,
        config=config.as_dict(),
        axes=axes,
        cluster="local",
        provenance=Provenance(
            created=WHEN,
            host="workstation",
            user="someone",
            python="3.12.1",
            packages={"torch": "2.13.0"},
            code=Code(hash="0123456789ab", git_commit="f" * 40, git_dirty=False),
            argv=["submit.py", "sweep", "--nodes", "1", "2", "4"],
        ),
    )


def _attempt(nodes: Sequence[str], end: End, message: str | None) -> AttemptRecord:
    return AttemptRecord(
        attempt=0,
        submission=0,
        cluster="local",
        job_id="1",
        nodes=list(nodes),
        host="workstation",
        pid=1,
        pid_started=0.0,
        code_hash="0123456789ab",
        cpu_count=2,
        submitted="2026-01-02T03:02:05Z",
        started="2026-01-02T03:03:05Z",
        ended=WHEN if end in ("done", "failed") else None,
        cause={"done": "finished", "failed": "crashed"}.get(end),  # type: ignore[arg-type]
        message=message,
    )


def _steps(count: int, mean_s: float, samples: int, world: int) -> list[Step]:
    """Steps around `mean_s` with a mild ripple, a rare slow one, and a slow start."""
    records, clock_s = [], 0.0
    for step in range(1, count + 1):
        ripple = (
            1 + 0.03 * math.sin(2.4 * step) + (0.4 if step % 37 == 0 else 0.0) + (2.0 if step <= 2 else 0.0)
        )
        step_s = mean_s * ripple
        communication = (1 - 0.85 ** math.log2(world)) * step_s if world > 1 else None
        rest = step_s - (communication or 0.0)
        records.append(
            Step(
                step=step,
                start_s=clock_s,
                step_s=step_s,
                compute_s=0.86 * rest,
                input_s=0.04 * rest,
                comm_wait_s=None if communication is None else 0.25 * communication,
                comm_transfer_s=None if communication is None else communication - 0.25 * communication,
                comm_exposed_s=communication,
                optimizer_s=0.07 * rest,
                checkpoint_s=0.0,
                other_s=rest - (0.86 + 0.04 + 0.07) * rest,
                samples=samples,
                loss=_loss(step),
                lr=1e-3,
            )
        )
        clock_s += step_s
    return records


def _samples(end_s: float) -> list[HostSample]:
    """Of rank 0's process, twice a second."""
    return [
        HostSample(
            rank=0,
            at_s=0.5 * number,
            time=1.7e9 + 0.5 * number,
            cpu_percent=90 + 5 * math.sin(number) if number else None,
            rss_bytes=300 * 2**20,
            threads=9,
            host_memory_used_bytes=2**32,
            host_memory_total_bytes=2**34,
        )
        for number in range(int(2 * end_s) + 1)
    ]


DATASET = DatasetRecord(
    name="python-stdlib",
    version="3.12.1",
    sha256="ab" * 32,
    train_samples=9000,
    valid_samples=1000,
    bytes=10_000_000,
    unigram_entropy_bits=4.8,
)


def _loss(step: int) -> float:
    """Nats per byte: from ln 256 towards 1.4."""
    return 1.4 + (math.log(256) - 1.4) * math.exp(-step / 40) + 0.03 * math.sin(1.7 * step)


def _metrics(
    run: RunDir, config: Config, records: list[Step], world: int, local: int, accumulation: int, steps: int
) -> Metrics:
    warmup = min(10, len(records) - 1)
    measured = records[warmup:]
    measured_s = math.fsum(record.step_s for record in measured)
    samples_per_s = len(measured) * local * accumulation * world / measured_s
    return Metrics(
        name=run.name,
        sweep=run.sweep,
        run_key="0" * 12,
        attempt=0,
        status="completed",
        updated=WHEN,
        nodes=config.resources.nodes,
        ranks_per_node=config.resources.gpus_per_node,
        world_size=world,
        device="cpu",
        backend="gloo" if world > 1 else None,
        torch="2.13.0",
        nccl=None,
        cpu_count=2,
        oversubscribed=False,
        strategy="ddp" if world > 1 else "single",
        strategy_reason="more than one rank" if world > 1 else "one rank",
        model="gpt",
        parameters=824_320,
        dataset=DATASET,
        model_flops_per_sample=632_000_000,
        flops_method="3 x counted forward matmul and convolution FLOPs",
        steps=len(records),
        steps_total=steps,
        local_batch_size=local,
        accumulation=accumulation,
        global_batch_size=local * accumulation * world,
        seconds_total=math.fsum(record.step_s for record in records) + 1.0,
        warmup_steps=warmup,
        left_out=[(1, warmup)],
        measured_steps=len(measured),
        measured_s=measured_s,
        samples_per_s=samples_per_s,
        samples_per_s_per_rank=samples_per_s / world,
        tokens_per_s=samples_per_s * 128,
        model_flops_per_s_per_rank=samples_per_s / world * 632_000_000,
        step_time=_step_time([record.step_s for record in measured]),
        composition=_composition(measured),
        comm_method="ddp_backward_tail" if world > 1 else None,
        comm_split="min_over_ranks" if world > 1 else None,
        peak_memory_bytes=300 * 2**20 + world * 2**20,
        grad_norm_history=[GradNormPoint(step=record.step, grad_norm=1 / record.step) for record in records],
        loss_history=[LossPoint(step=record.step, loss=record.loss) for record in records],
        eval_history=[_validation(step) for step in sorted({len(records) // 2, len(records)})],
    )


def _validation(step: int) -> EvalPoint:
    loss = _loss(step) + 0.05
    return EvalPoint(
        step=step, loss=loss, metrics={"bits_per_byte": loss / math.log(2)}, samples=1000, elapsed_s=0.5
    )


def _step_time(seconds: list[float]) -> StepTime:
    times = np.array(seconds)
    counts, edges = np.histogram(times, bins=20)
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


def _composition(records: list[Step]) -> dict[str, float | None]:
    """Mean seconds of each phase, None if no record has it."""
    found: dict[str, float | None] = {}
    for name in PHASES:
        values = [value for record in records if (value := getattr(record, name)) is not None]
        found[name] = math.fsum(values) / len(records) if values else None
    return found


def with_metrics(runs: Sequence[Run], **fields: Any) -> list[Run]:
    """These runs with other values in their metrics."""
    return [replace(run, metrics=run.metrics and run.metrics.model_copy(update=fields)) for run in runs]


def table_rows(report: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Rows of a table of report.json, by column; none without the table."""
    tables = [each for section in report["sections"] for each in section["tables"] if each["name"] == name]
    return [
        dict(zip((column["name"] for column in table["columns"]), row, strict=True))
        for table in tables
        for row in table["rows"]
    ]
