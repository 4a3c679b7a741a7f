"""The communication benchmark on real ranks: each form is measured, with the bytes of its scheme."""

from __future__ import annotations

import dataclasses

import pytest

from disttrain.comm_bench.__main__ import measure, sizes_up_to
from disttrain.comm_bench.ddp_steps import Model
from disttrain.records.comm_bench import CommBench
from disttrain.runtime.process_group import World
from tests.support.ranks import Ranks

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
WIDTH, LAYERS = 40, 3


def measured(world: World) -> CommBench:
    """On 2 nodes of 2 ranks."""
    placed = dataclasses.replace(world, local_rank=world.rank % 2, local_size=2)
    return measure(placed, Model(WIDTH, LAYERS, rows=2), sizes_up_to(8192), 3)


def test_each_form_is_measured_with_the_bytes_of_its_scheme(four_ranks: Ranks) -> None:
    found = four_ranks.call(measured)[0]
    assert (found.nodes, found.ranks_per_node, found.one_machine, found.device) == (2, 2, True, "cpu")
    assert [(each.kind, each.bytes) for each in found.collectives] == [
        (kind, size) for kind in ("all_reduce", "all_gather", "reduce_scatter") for size in (4096, 8192)
    ]
    for each in found.collectives:
        assert each.time.repeats == 3
        assert each.bus_bytes_per_s == pytest.approx(
            (1.5 if each.kind == "all_reduce" else 0.75) * each.bytes / each.time.median_s
        )
    dense = 4 * LAYERS * WIDTH**2
    assert found.gradient_bytes == dense
    assert {each.name: each.bytes for each in found.steps} == {
        "baseline": dense,
        "overlap off": dense,
        "small buckets": dense,
        "large buckets": dense,
        "hierarchical": dense,  # between nodes, by the leader
        "fp16": dense / 2,
        "powersgd": 4 * LAYERS * 4 * 2 * WIDTH,  # two factors of rank 4
        "topk": 8 * (dense // 400),  # 1 % of the values, and their indices
    }
    for form in found.steps:
        assert form.step is not None
        assert form.step.repeats == 3
    assert found.steps[0].speed_up == 1
