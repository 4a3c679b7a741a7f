"""A compiled model on several ranks: the loss curve of the model that is not compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.multiprocess.test_train import GPT, curve, make_config, train_on
from tests.support.ranks import Ranks
from tests.support.tolerance import approx_losses

pytestmark = pytest.mark.multiprocess

SECTIONS: dict[str, dict[str, Any]] = {
    "train": {"steps": 6, "local_batch_size": 2, "log_every": 1},
    "telemetry": {"warmup_steps": 1, "sinks": [], "profiled_steps": 0},
}


@pytest.mark.slow  # the sharded model below compiles the same blocks
@pytest.mark.parametrize("scope", ["blocks", "model"])
def test_ddp_learns_the_same_with_accumulation(two_ranks: Ranks, tmp_path: Path, scope: str) -> None:
    plain = two_ranks.call(train_on, make_config(GPT, 2, **SECTIONS), tmp_path / "plain")[0]
    options = {"scope": scope, "backend": "aot_eager"}
    compiled = make_config(GPT, 2, **SECTIONS, compile=options)
    made = two_ranks.call(train_on, compiled, tmp_path / "compiled")[0]
    assert made.accumulation == 2
    assert len(curve(made)) == 6
    assert curve(made) == approx_losses(curve(plain))


def test_fsdp_learns_the_same_with_one_graph_for_all_blocks(two_ranks: Ranks, tmp_path: Path) -> None:
    plain = two_ranks.call(train_on, make_config(GPT, 2, **SECTIONS), tmp_path / "plain")[0]
    sharded = make_config(
        GPT, 2, **SECTIONS, parallel={"strategy": "fsdp"},
        compile={"scope": "blocks", "backend": "aot_eager", "fullgraph": True},
    )  # fmt: skip
    made = two_ranks.call(train_on, sharded, tmp_path / "compiled")[0]
    assert curve(made) == approx_losses(curve(plain))
