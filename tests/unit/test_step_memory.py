"""Estimated memory of sharded models, against the peak of the allocator in a step of one rank."""

from __future__ import annotations

import pytest

from disttrain.engine.memory_estimate import estimate
from tests.support.step_memory import CASES, config_of, measure_without_transport, step_peaks

TOLERANCE = 0.08
"""The estimate is at most so much above the peak, and not below: it counts two gathered blocks and the
gradient of one at the time of the most activations."""


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("ddp")])
def test_the_estimate_of_a_sharded_model_is_a_close_upper_bound(case: str) -> None:
    config = config_of(case)
    found = measure_without_transport(config)
    assert found.peak <= estimate(config).total_bytes <= (1 + TOLERANCE) * found.peak


def test_blocks_gathered_ahead_of_the_backward_pass_add_to_the_peak() -> None:
    ahead = config_of("fsdp-prefetch")
    options = ahead.parallel.fsdp.model_copy(update={"forward_prefetch": 0})
    parallel = ahead.parallel.model_copy(update={"fsdp": options})
    needed = estimate(ahead.model_copy(update={"parallel": parallel})).total_bytes
    assert needed == estimate(ahead).total_bytes > estimate(config_of("fsdp")).total_bytes


def test_memory_from_before_the_profile_is_no_part_of_the_peak() -> None:
    def memory(time: float, address: int, size: int) -> dict[str, object]:
        return {"name": "[memory]", "ts": time, "args": {"Addr": address, "Bytes": size}}

    steps = [{"name": "optimizer step", "cat": "user_annotation", "ts": time} for time in (10, 20, 30)]
    events = [
        *steps, memory(1, 1, 50), memory(2, 9, -1000), memory(11, 2, 5), memory(12, 2, -5),
        memory(21, 2, 7), memory(22, 1, -50), memory(31, 1, 1),
    ]  # fmt: skip
    assert step_peaks(events) == (55, 57, 8)
