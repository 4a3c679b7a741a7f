"""A rank that hangs ends its attempt within its limit, and is named, not the ranks that wait for it.

A stopped process: `tests/slurm/no_accounting/test_faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.records.json_files import read_json
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.status.run_state import read_state
from sweeps.expand import RunPlan, SweepPlan
from tests.support.jobs import ended_afterwards, settled, states, submit, wait_until

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
RANKS, HANGS = 4, 2


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        yield tmp_path / "runs"


def test_the_hung_rank_is_named(root: Path) -> None:
    config = Config.model_validate(
        {
            # the fourth pass is that of step 3: one comes before the first step
            "model": {
                "kind": "tests.support.small_models:Hanging",
                "marker": str(root / "hung"),
                "rank": HANGS,
                "how": "sleep",
            },
            "data": {"kind": "tests.support.small_models:source"},
            "train": {"steps": 5, "local_batch_size": 4, "global_batch_size": 4 * RANKS},
            "checkpoint": {"every_steps": 1, "asynchronous": False},
            "resources": {"nodes": 2, "gpus_per_node": 2, "device": "cpu"},
            "telemetry": {"profiled_steps": 0, "sinks": []},
            "job": {"step_timeout_s": 12},
        }
    )
    plan = SweepPlan("demo", {}, (RunPlan("n2", config, config_key(config), 0, {}, BatchPlan(4, 1, RANKS)),))
    submit(plan, LocalScheduler(), root)
    run = states(root)["n2"].run
    wait_until(lambda: "no progress" in str(read_state(run).message) or read_state(run).state == "failed")
    # Until the rank has sent no heartbeat for ten seconds, the warning may be of a node that waits for it.
    assert str(read_state(run).message).startswith("no progress: "), "status warns before the end"
    ended = settled(root)["n2"]
    assert (ended.state, ended.cause, ended.retryable) == ("failed", "hung", True)
    assert f"rank {HANGS} was in step 3 for " in str(ended.message)
    assert read_json(run.attempt(0).record)["checkpoint_after"] == 2
