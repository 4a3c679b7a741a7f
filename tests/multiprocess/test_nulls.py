"""Whatever a summary leaves null has its reason there, and nothing else has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.dataset import DatasetRecord
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from tests.multiprocess.test_emulated import SMALL as EMULATED
from tests.multiprocess.test_train import SMALL, alone, make_config, train_on

pytestmark = pytest.mark.multiprocess

FACTS = {"stop_cause", "backend", "nccl", "batch_fit", "resumed_step", "checkpoint_step"} | {
    f"dataset.{name}" for name in DatasetRecord.model_fields
}
"""Null where there is no such thing, not for want of a measurement."""
COMM = {"comm", "communication_time_per_step"}
"""Of sampled steps; exposed communication is of all."""
EXPOSED = {
    "comm_method",
    "comm_split",
    "communication_overhead_percent",
    "communication_computation_ratio",
    "composition.comm_wait_s",
    "composition.comm_transfer_s",
}
MEASURED = {"measured_s", "step_time", "samples_per_s", "composition.compute_s", "model_flops_per_s_per_rank"}


def nulls(value: Any, name: str = "") -> Iterator[str]:
    """The names of what is null in plain data; an entry of a list goes by the list's name."""
    if value is None:
        yield name
    for each in value if isinstance(value, list) else ():
        yield from nulls(each, name)
    for key, each in value.items() if isinstance(value, dict) else ():
        yield from nulls(each, f"{name}.{key}" if name else key)


@pytest.mark.parametrize(
    ("base", "ranks", "sections", "among"),
    [
        (SMALL, 1, {}, COMM | EXPOSED | {"emulation_late_s"}),
        (SMALL, 2, {}, COMM | {"emulation_late_s"}),
        (SMALL, 2, {"telemetry": {"warmup_steps": 12}}, COMM | MEASURED),
        (SMALL, 2, {"train": {"steps": 45}}, {"emulation_late_s"}),
        (SMALL, 1, {"optim": {"lr": 1e38, "grad_clip": None}}, {"loss_history.loss", "eval_history.loss"}),
        (
            EMULATED,
            2,
            {"telemetry": {"profiled_steps": 8}},
            COMM | {"model_flops_per_sample", "compute_dtypes"},
        ),
        (SMALL, 1, {"model": {"kind": "tests.support.small_models:Failing", "rank": 0}}, COMM | EXPOSED),
    ],
    ids=["alone", "short", "warm-up", "sampled", "diverged", "emulated", "failed"],
)
def test_every_null_figure_has_a_reason(two_ranks, tmp_path: Path, base, ranks, sections, among):
    config = make_config(base, ranks, **sections)
    try:
        two_ranks.call(train_on, config, tmp_path) if ranks == 2 else train_on(alone(), config, tmp_path)
    except RuntimeError:
        assert sections["model"]["kind"] == "tests.support.small_models:Failing"
    metrics = read_json(RunDir(tmp_path).metrics)
    reasons = metrics.pop("null_reasons")
    found = set(nulls(metrics))
    assert found - FACTS == set(reasons)
    assert found >= among
    assert all(reasons.values())
    if among.isdisjoint(COMM) and ranks == 2:
        assert metrics["comm"]["collectives"]
