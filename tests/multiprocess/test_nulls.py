"""Null figures of communication, MFU and usage have their reason in a summary, and nothing else has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from tests.multiprocess.test_emulated import SMALL as EMULATED
from tests.multiprocess.test_train import SMALL, alone, make_config, train_on

pytestmark = pytest.mark.multiprocess

COMM = {"comm", "communication_time_per_step"}
"""Of profiled steps; exposed communication is of all."""
EXPOSED = {
    "comm_method",
    "comm_split",
    "communication_overhead_percent",
    "communication_computation_ratio",
}
MFU = {"mfu", "peak_flops"}
FLOPS = {"model_flops_per_sample", "model_flops_per_s_per_rank"}
REASONED = COMM | EXPOSED | MFU | FLOPS | {"gpu"}


@pytest.mark.parametrize(
    ("base", "ranks", "sections", "among"),
    [
        (SMALL, 1, {}, COMM | EXPOSED),
        (SMALL, 2, {}, COMM),
        (SMALL, 2, {"telemetry": {"warmup_steps": 12}}, COMM | {"model_flops_per_s_per_rank"}),
        (SMALL, 2, {"train": {"steps": 45}}, set()),
        (
            EMULATED,
            2,
            {"telemetry": {"profiled_steps": 8}},
            COMM | FLOPS,
        ),
        (SMALL, 1, {"model": {"kind": "tests.support.small_models:Failing", "rank": 0}}, COMM | EXPOSED),
    ],
    ids=["alone", "short", "warm-up", "sampled", "emulated", "failed"],
)
def test_a_null_figure_has_a_reason_where_readers_ask(
    two_ranks, tmp_path: Path, base, ranks, sections, among
):
    config = make_config(base, ranks, **sections)
    try:
        two_ranks.call(train_on, config, tmp_path) if ranks == 2 else train_on(alone(), config, tmp_path)
    except RuntimeError:
        assert sections["model"]["kind"] == "tests.support.small_models:Failing"
    metrics = read_json(RunDir(tmp_path).metrics)
    reasons = metrics.pop("null_reasons")
    of_processes = {f"processes.{name}" for name, value in metrics["processes"].items() if value is None}
    assert {name for name in REASONED if metrics[name] is None} | of_processes == set(reasons)
    assert set(reasons) >= among | MFU | {"gpu"}
    assert all(reasons.values())
    if among.isdisjoint(COMM) and ranks == 2:
        assert metrics["comm"]["collectives"]
