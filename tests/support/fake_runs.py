"""Run directories as the trainer would leave them, made up: for tests of everything that reads runs.

`fake_run.json` has the fields that all runs share. All records go through the models of `disttrain.records`,
so they fit the schemas. Nothing is random: the same call writes the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.read.load import step_time
from disttrain.config.batch_plan import scale_batch
from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import get_key
from disttrain.config.run_key import config_key
from disttrain.records.attempt import AttemptRecord, Outcome
from disttrain.records.base import Record
from disttrain.records.hardware import HostSample
from disttrain.records.json_files import read_json, to_json, write_json, write_text
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES, Step

WHEN = "2026-01-02T03:04:05Z"
NODE = {"node": 0, "host": "c01", "taken": WHEN}
"""The fields that a record of a node must have."""
SHARED = read_json(Path(__file__).with_name("fake_run.json"))
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
    smallest, several = min(nodes) * min(gpus_per_node), len(gpus_per_node) > 1
    for (group, extra), count, gpus, repeat in product(enumerate(axes), nodes, gpus_per_node, range(repeats)):
        world = count * gpus
        batch = scale_batch(8, None, base_world=smallest, world=world, scaling=scaling)
        mean_s = step_s * batch.local * batch.accumulation / 8 * (1 + 0.1 * group)
        fake_run(
            root / name / "-".join([f"n{count}x{gpus}", *map(str, extra.values()), f"r{repeat}"]),
            nodes=count,
            gpus_per_node=gpus,
            repeat=repeat,
            axes={
                "resources.nodes": count,
                **extra,
                **({"resources.gpus_per_node": gpus} if several else {}),
            },
            mean_s=mean_s / efficiency ** math.log2(world) * (1 + 0.01 * ((repeat * 7 + count * 3) % 5 - 2)),
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
    times: Callable[[int], float] = lambda step: 1.0,
    steps: int = 110,
    left_out: Sequence[tuple[int, int]] = (),
    local_batch_size: int = 8,
    accumulation: int = 1,
    end: End = "done",
    message: str | None = None,
    overrides: dict[str, Any] | None = None,
    hosts: Sequence[str] | None = None,
    all_ranks: bool = False,
) -> RunDir:
    """One run directory.

    By default, each run has nodes of its own, and rank 0 alone has step records. With `all_ranks` every rank
    has the same records; a report then looks for stragglers, which takes 0.1 s a run.

    Args:
        times: a step takes so many times `mean_s`.
        left_out: ranges of steps that are not measured; by default the first ten.
        end: how far the run came.
        overrides: other values of fields of its metrics.
    """
    run, world = RunDir(path), nodes * gpus_per_node
    names, batch = {"name": run.name, "sweep": run.sweep}, local_batch_size * accumulation * world
    size = {"nodes": nodes, "gpus_per_node": gpus_per_node}
    sizes = {"steps": steps, "local_batch_size": local_batch_size, "global_batch_size": batch}
    config = _config(axes or {}, size, sizes)
    key, axes = config_key(config, repeat), axes or {"resources.nodes": nodes}
    planned = {"run_key": key, "config_key": key, "repeat": repeat, "config": config.as_dict(), "axes": axes}
    _write(run.run_json, RunRecord, "run", names | planned)
    if end == "planned":
        return run
    done = steps if end == "done" else steps // 2
    records = _steps(done, mean_s, times, batch // world, world)
    cause = {"done": "finished", "failed": "crashed"}.get(end)
    outcome = {"cause": cause, "message": message, "ended": cause and WHEN}
    hosts = hosts or [f"{run.sweep}-{run.name}-node{index}" for index in range(nodes)]
    _write(run.attempt(0).record, AttemptRecord, "attempt", outcome | {"nodes": hosts})
    for rank in range(world if all_ranks else 1):
        write_lines(run.attempt(0).steps(rank), records)
    end_s = records[-1]["start_s"] + records[-1]["step_s"]
    write_lines(run.attempt(0).host_samples(0), map(_sample, range(int(2 * end_s) + 1)))
    figures = _figures(records, world, batch, left_out or [(1, min(10, done - 1))])
    figures |= {"nodes": nodes, "ranks_per_node": gpus_per_node, **sizes, "accumulation": accumulation}
    figures |= {"status": {"done": "completed"}.get(end, end), "steps": done, "steps_total": steps}
    _write(run.metrics, Metrics, "metrics", names | figures | (overrides or {}))
    if cause:
        failed = end == "failed"
        path = run.failed if failed else run.done
        _write(path, Outcome, "outcome", outcome | {"retryable": failed})
    return run


def _config(axes: dict[str, Any], resources: dict[str, int], train: dict[str, int]) -> Config:
    config: dict[str, Any] = Config().as_dict()
    config["resources"] |= resources
    config["train"] |= train
    for key, value in axes.items():
        section, _, leaf = key.rpartition(".")
        get_key(config, section)[leaf] = value
    return Config.model_validate(config)


def edit(path: Path, **changes: Any) -> None:
    """Replace values of a JSON record, section by section."""
    path.write_text(json.dumps(_merged(read_json(path), changes)))


def _merged(record: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    sections = {key: each for key, each in changes.items() if isinstance(each, dict) and record.get(key)}
    return record | changes | {key: _merged(record[key], each) for key, each in sections.items()}


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    write_text(path, "".join(f"{to_json(record)}\n" for record in records))


def table_rows(report: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Rows of a table of report.json, by column; none without the table."""
    tables = [each for section in report["sections"] for each in section["tables"] if each["name"] == name]
    return [
        dict(zip((column["name"] for column in table["columns"]), row, strict=True))
        for table in tables
        for row in table["rows"]
    ]


def _write(path: Path, kind: type[Record], shared: str, fields: dict[str, Any]) -> None:
    write_json(path, kind.model_validate(SHARED[shared] | fields).model_dump(mode="json"))


def _steps(
    count: int, mean_s: float, times: Callable[[int], float], samples: int, world: int
) -> list[dict[str, Any]]:
    """Steps around `mean_s` with a mild ripple, a rare slow one, and a slow start."""
    records, clock_s = [], 0.0
    lost = 1 - 0.85 ** math.log2(world) if world > 1 else None
    for step in range(1, count + 1):
        ripple = 1 + 0.03 * math.sin(2.4 * step) + 0.4 * (step % 37 == 0) + 2.0 * (step <= 2)
        step_s = mean_s * ripple * times(step)
        exposed_s = lost and lost * step_s
        rest_s = step_s - (exposed_s or 0.0)
        shares = {"compute_s": 0.86, "input_s": 0.04, "optimizer_s": 0.07, "checkpoint_s": 0.0}
        phases = {name: share * rest_s for name, share in shares.items()}
        record = Step(
            step=step,
            start_s=clock_s,
            step_s=step_s,
            comm_wait_s=exposed_s and 0.25 * exposed_s,
            comm_transfer_s=exposed_s and exposed_s - 0.25 * exposed_s,
            comm_exposed_s=exposed_s,
            **phases,
            other_s=rest_s - sum(shares.values()) * rest_s,
            samples=samples,
            loss=_loss(step),
            lr=1e-3,
        )
        records.append(record.model_dump(mode="json"))
        clock_s += step_s
    return records


def _sample(number: int) -> dict[str, Any]:
    """Of rank 0's process, twice a second."""
    at_s = 0.5 * number
    values = {
        "at_s": at_s,
        "time": 1.7e9 + at_s,
        "cpu_percent": 90 + 5 * math.sin(number) if number else None,
    }
    return HostSample.model_validate(SHARED["sample"] | values).model_dump(mode="json")


def _loss(step: int) -> float:
    """Nats per byte: from ln 256 towards 1.4."""
    return 1.4 + (math.log(256) - 1.4) * math.exp(-step / 40) + 0.03 * math.sin(1.7 * step)


def _figures(
    records: list[dict[str, Any]], world: int, batch: int, left_out: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Values of metrics that follow from the records."""
    measured = [
        each for each in records if not any(first <= each["step"] <= last for first, last in left_out)
    ]
    count, times_s = len(measured), np.array([each["step_s"] for each in measured])
    rate, several = count * batch / math.fsum(times_s), world > 1
    return {
        "world_size": world,
        "backend": "gloo" if several else None,
        "strategy": "ddp" if several else "single",
        "seconds_total": math.fsum(each["step_s"] for each in records) + 1.0,
        "left_out": left_out,
        "warmup_steps": left_out[0][1],
        "measured_steps": count,
        "measured_s": math.fsum(times_s),
        "samples_per_s": rate,
        "tokens_per_s": rate * 128,
        "step_time": step_time(times_s),
        "composition": {
            name: None if measured[0][name] is None else math.fsum(each[name] for each in measured) / count
            for name in PHASES
        },
        "comm_method": "ddp_backward_tail" if several else None,
        "comm_split": "min_over_ranks" if several else None,
        "peak_memory_bytes": (300 + world) * 2**20,
        "grad_norm_history": [{"step": each["step"], "grad_norm": 1 / each["step"]} for each in records],
        "loss_history": [{"step": each["step"], "loss": each["loss"]} for each in records],
        "eval_history": [_validation(step) for step in sorted({len(records) // 2, len(records)})],
    }


def _validation(step: int) -> dict[str, Any]:
    loss = _loss(step) + 0.05
    metrics = {"bits_per_byte": loss / math.log(2)}
    return {"step": step, "loss": loss, "metrics": metrics, "samples": 1000, "elapsed_s": 0.5}
