"""Memory of a step on gloo ranks: the estimate of `ddp`, and the parameters that `fsdp` holds gathered."""

from __future__ import annotations

import pytest

from disttrain.memory_estimate import estimate
from tests.support.ranks import Ranks
from tests.support.step_memory import config_of, measure

pytestmark = pytest.mark.multiprocess


def test_the_estimate_of_ddp_is_the_peak_of_the_allocator(two_ranks: Ranks) -> None:
    config = config_of("ddp")
    for found in two_ranks.call(measure, config):
        assert estimate(config).total_bytes == pytest.approx(found.peak, rel=0.01)


def test_fsdp_gathers_block_by_block_unless_blocks_stay_gathered(two_ranks: Ranks) -> None:
    """Of six blocks, one computes and one is gathered ahead; the root stays gathered."""
    resharded = two_ranks.call(measure, config_of("fsdp"))
    kept = two_ranks.call(measure, config_of("fsdp-kept-gathered"))
    assert all(0 < found.gathered < 0.4 * found.model for found in resharded)
    assert all(found.gathered == found.model for found in kept)
