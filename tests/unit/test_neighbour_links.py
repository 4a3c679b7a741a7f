"""Rates between neighbouring nodes: the schedule of the pairs, and where the messages lie."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from disttrain.comm_bench import links
from disttrain.comm_bench.links import measure_rates, neighbours
from disttrain.runtime.process_group import World


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


def test_gloo_sends_from_host_memory_and_nccl_from_the_gpu(monkeypatch):
    sent = []
    monkeypatch.setattr(links, "_exchange", lambda operation, tensor, peer: sent.append(tensor.device.type))
    for backend, device in (("gloo", "cpu"), ("nccl", "meta")):
        place = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 1}
        assert len(measure_rates(World(**place, device=torch.device("meta"), backend=backend), 1024)) == 1
        assert set(sent) == {device}
        sent.clear()
