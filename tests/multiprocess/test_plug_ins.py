"""One of each kind from outside of the package, named in a config, trains together with the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.config.parsing import Draft, check
from disttrain.engine.plug_in_check import unchecked
from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir
from tests.multiprocess.test_train import train_on
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess

STEPS, LR, WEIGHT, FACTOR = 4, 0.04, 2.0, 0.5
HERE = "tests.support.plug_ins"
SECTIONS: dict[str, Any] = {
    "model": {
        "kind": f"{HERE}:Times",
        "weight": WEIGHT,
        "transforms": [f"{HERE}:doubled", f"{HERE}:plus_three"],
    },
    "data": {"kind": f"{HERE}:OneToZero", "samples": 8},
    "optim": {"name": "sgd", "lr": LR, "momentum": 0, "schedule": f"{HERE}:harmonic", "step_factor": 0.9},
    "train": {"steps": STEPS, "local_batch_size": 1, "global_batch_size": 4},
    "telemetry": {
        "warmup_steps": 1,
        "profiled_steps": 0,
        "gpu_every_s": 0.02,
        "sinks": [f"{HERE}:Lines"],
        "fields": [f"{HERE}:DESCRIPTORS"],
    },
    "resources": {"nodes": 2, "gpus_per_node": 1, "device": "cpu"},
}
STRATEGY = {"strategy": f"{HERE}:AverageAtTheEnd", "options": {"factor": FACTOR}}
SCHEME = {"gradient_communication": {"scheme": f"{HERE}:Scaled", "options": {"factor": FACTOR}}}


def expected_losses() -> list[float]:
    weight, losses = WEIGHT, []
    for step in range(1, STEPS + 1):
        output = 2 * weight + 3
        losses.append(output**2)
        weight -= LR * 0.9 / step * FACTOR * 4 * output
    return losses


@pytest.mark.parametrize("parallel", [{"strategy": "ddp", **SCHEME}, STRATEGY], ids=["scheme", "strategy"])
def test_one_of_each_from_outside_trains(two_ranks: Ranks, tmp_path: Path, parallel: dict[str, Any]) -> None:
    config = check(Draft({**SECTIONS, "parallel": parallel}))
    assert list(unchecked(config)) == []
    metrics = two_ranks.call(train_on, config, tmp_path)[0]
    assert metrics.strategy == parallel["strategy"]
    assert [point.loss for point in metrics.loss_history] == pytest.approx(expected_losses(), rel=1e-5)
    attempt = RunDir(tmp_path).attempt(0)
    assert f"{STEPS},loss/train," in attempt.path.joinpath("scalars.csv").read_text()
    assert metrics.processes.descriptors_max > 2  # type: ignore[union-attr]
    assert all(line["descriptors"] > 2 for line in read_jsonl(attempt.host_samples(0)))
