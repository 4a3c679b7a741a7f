"""Memory of a step on gloo ranks: the estimate of `ddp` and of gradient communication, and the parameters
that `fsdp` holds gathered."""

from __future__ import annotations

from typing import Any

import pytest

from disttrain.config.config_tree import Config
from disttrain.engine.memory_estimate import estimate
from tests.support.ranks import Ranks
from tests.support.step_memory import config_of, measure, strategy_state_bytes

pytestmark = pytest.mark.multiprocess


def test_the_estimate_of_ddp_is_the_peak_of_the_allocator(two_ranks: Ranks) -> None:
    config = config_of("ddp")
    for found in two_ranks.call(measure, config):
        assert estimate(config).total_bytes == pytest.approx(found.peak, rel=0.01)


def with_bucket_view(accumulation: int, view: bool) -> Config:
    """`ddp` on two ranks with fewer bytes of activations than of gradients."""
    plain = config_of("ddp").as_dict()
    plain["train"]["global_batch_size"] = 8 * accumulation
    plain["data"]["seq_len"] = 4
    plain["parallel"]["ddp"]["gradient_as_bucket_view"] = view
    return Config.model_validate(plain)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_bucket_view_saves_memory_unless_gradients_accumulate(two_ranks: Ranks, accumulation: int) -> None:
    configs = [with_bucket_view(accumulation, view) for view in (True, False)]
    view, copied = (two_ranks.call(measure, config)[0].peak for config in configs)
    assert [estimate(config).total_bytes for config in configs] == pytest.approx([view, copied], rel=0.01)
    saved = (copied - view) / estimate(configs[0]).gradients_bytes
    assert (saved > 0.5) if accumulation == 1 else (abs(saved) < 0.01)


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "topk"},
        {"scheme": "randomk", "error_feedback": False},
        {"scheme": "powersgd", "rank": 2},
        {"scheme": "local_sgd"},
    ],
    ids=lambda options: options["scheme"],
)
def test_the_estimate_holds_the_state_of_a_scheme(two_ranks: Ranks, options: dict[str, Any]) -> None:
    plain = config_of("ddp").as_dict()
    without = estimate(Config.model_validate(plain))
    plain["parallel"]["gradient_communication"] = options
    config = Config.model_validate(plain)
    found = estimate(config)
    counted = two_ranks.call(strategy_state_bytes, config)
    assert [found.communication_bytes - without.communication_bytes] * 2 == counted
    assert found.total_bytes - without.total_bytes == counted[0]
    assert bool(counted[0]) == (options["scheme"] in ("topk", "powersgd"))


def test_fsdp_gathers_block_by_block_unless_blocks_stay_gathered(two_ranks: Ranks) -> None:
    """Of six blocks, one computes and one is gathered ahead; the root stays gathered."""
    resharded = two_ranks.call(measure, config_of("fsdp"))
    kept = two_ranks.call(measure, config_of("fsdp-kept-gathered"))
    assert all(0 < found.gathered < 0.4 * found.model for found in resharded)
    assert all(found.gathered == found.model for found in kept)
