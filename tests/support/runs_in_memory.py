"""Finished runs in memory, for tests of what is computed from runs that were read."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from analysis.read.load import load_runs
from analysis.read.run import Run
from analysis.results.curves import Curve, scaling_curves
from analysis.study import Study, make_study
from disttrain.config.dotted_keys import get_key
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run

STRATEGY, BUCKET = "parallel.strategy", "parallel.ddp.bucket_mb"


@cache
def _template(ranks: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        fake_run(Path(folder) / "s" / "run", nodes=ranks, all_ranks=True)
        (run,) = load_runs([Path(folder) / "s"])
    return run


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
    world = nodes * gpus
    template, scale = _template(world), mean_s / 0.1
    assert template.record is not None
    assert template.metrics is not None
    swept = {"resources.nodes": nodes, "resources.gpus_per_node": gpus, **(axes or {})}
    config = copy.deepcopy(template.config)
    for key, value in swept.items():
        section, _, leaf = key.rpartition(".")
        get_key(config, section)[leaf] = value
    name = name or "-".join([f"n{nodes}x{gpus}", *map(str, (axes or {}).values()), f"r{repeat}"])
    record = {"name": name, "sweep": sweep, "repeat": repeat, "config": config, "axes": swept}
    rate = batch * world / mean_s
    values = {
        "nodes": nodes, "ranks_per_node": gpus, "world_size": world, "local_batch_size": batch,
        "global_batch_size": batch * world, "samples_per_s": rate, "tokens_per_s": 128 * rate,
        "measured_s": mean_s * template.metrics.measured_steps,
        "composition": {key: each and each * scale for key, each in template.metrics.composition.items()},
    }  # fmt: skip
    seconds = {key: each * scale for key, each in template.steps.seconds.items()}
    run = replace(
        template,
        folder=RunDir(Path("/runs") / sweep / name),
        record=template.record.model_copy(update=record),
        metrics=template.metrics.model_copy(update=values | dict(metrics or {})),
        steps=replace(template.steps, seconds=seconds),
        attempts=(),
        usage=None,
    )
    return replace(run, **fields)


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


def study_of(*args: Any, **options: Any) -> Study:
    """The study of `sweep_of`."""
    return make_study(sweep_of(*args, **options))
