"""The communication benchmark: pairs of nodes, medians with their intervals, and its tables."""

from collections import Counter

import pytest
import torch

from analysis.report.sections.network import printed
from disttrain.comm_bench import links
from disttrain.comm_bench.__main__ import sizes_up_to
from disttrain.comm_bench.ddp_steps import FORMS, why_not_measured
from disttrain.comm_bench.links import measure_rates, neighbours
from disttrain.comm_bench.timing import median_interval, summary
from disttrain.runtime.process_group import World
from tests.support.comm_bench import result


def row(found, name):
    _, head, rows = printed({"n2": found})[1]
    return next(dict(zip(head, row, strict=True)) for row in rows if row[0] == name)


def test_collectives_and_steps_have_their_time_bytes_and_speed_up():
    found = result()
    assert printed({"n2": found})[0][2] == [["all-reduce", "1.00 MiB", "10.0 ms [9.00, 12.0]", "150 MB/s"]]
    assert row(found, "topk") == {
        "form": "topk", "step": "20.0 ms [18.0, 24.0]", "exposed": "10.0 ms [8.00, 11.0]", "sent": "156 KiB",
        "speed-up": "2.50\N{MULTIPLICATION SIGN} [2.40, 2.60]", "gradients / exposed": "800 MB/s",
        "options": "",
    }  # fmt: skip
    assert row(found, "hierarchical")["step"] == "\N{EN DASH}"
    unclear = found.steps[1].model_copy(update={"exposed_low_s": -0.001})
    zero = row(found.model_copy(update={"steps": [found.steps[0], unclear]}), "topk")
    assert zero["gradients / exposed"] == "\N{EN DASH}", "exposed time that may be zero gives no bandwidth"


@pytest.mark.parametrize(("nodes", "ranks", "left_out"), [(2, 1, True), (1, 4, True), (2, 2, False)])
def test_a_hierarchy_needs_several_nodes_of_several_ranks(nodes, ranks, left_out):
    names = [name for name in FORMS if why_not_measured(name, nodes, ranks)]
    assert names == (["hierarchical"] if left_out else [])


@pytest.mark.parametrize(("count", "ends"), [(3, None), (5, None), (6, (0, 5)), (15, (3, 11)), (25, (7, 17))])
def test_the_interval_of_a_median_is_that_of_the_binomial_table(count, ends):
    assert median_interval(range(count)) == ((count - 1) / 2, *(ends or (None, None)))
    assert summary(range(count)).repeats == count
    assert summary([0.0] * (count - 1) + [9.0]).median_s == 0.0, "one outlier does not move it"


def test_the_sizes_end_with_the_largest():
    assert sizes_up_to(2**20) == [4096, 32768, 262144, 2**20]
    assert sizes_up_to(1000) == [1000]


@pytest.mark.parametrize("nodes", range(1, 12))
def test_each_pair_of_neighbours_is_measured_once_in_three_rounds_at_most(nodes):
    pairs = neighbours(nodes)
    expected = {frozenset((node, (node + 1) % nodes)) for node in range(nodes) if nodes > 1}
    assert set(map(frozenset, pairs)) == expected
    assert len(pairs) == len(expected)
    measured = Counter()  # pairs so far, by node; a pair waits for both of its nodes
    for pair in pairs:
        measured |= dict.fromkeys(pair, 1 + max(measured[node] for node in pair))
    assert all(count <= 3 for count in measured.values())


@pytest.mark.parametrize(("backend", "device"), [("gloo", "cpu"), ("nccl", "meta")])
def test_gloo_sends_from_host_memory_and_nccl_from_the_gpu(monkeypatch, backend, device):
    sent = set()
    monkeypatch.setattr(links, "_exchange", lambda operation, tensor, peer: sent.add(tensor.device.type))
    world = World(rank=0, size=2, local_rank=0, local_size=1, device=torch.device("meta"), backend=backend)
    assert (len(measure_rates(world, 1024)), sent) == (1, {device})
