"""Rates between neighbouring nodes: the schedule of the pairs, and where the messages lie."""

from __future__ import annotations

import pytest
import torch

from disttrain.comm_bench import links
from disttrain.comm_bench.links import measure_rates, rounds
from disttrain.runtime.process_group import World


@pytest.mark.parametrize("nodes", range(1, 12))
def test_each_pair_of_neighbours_is_measured_once_and_no_node_twice_in_a_round(nodes):
    found = rounds(nodes)
    pairs = sorted(tuple(sorted(pair)) for each in found for pair in each)
    expected = {tuple(sorted((node, (node + 1) % nodes))) for node in range(nodes) if nodes > 1}
    assert pairs == sorted(expected)
    for each in found:
        ends = [node for pair in each for node in pair]
        assert len(ends) == len(set(ends))
    assert len(found) <= 3


def test_gloo_sends_from_host_memory_and_nccl_from_the_gpu(monkeypatch):
    sent = []
    monkeypatch.setattr(links, "_exchange", lambda operation, tensor, peer: sent.append(tensor.device.type))
    for backend, device in (("gloo", "cpu"), ("nccl", "meta")):
        place = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 1}
        assert len(measure_rates(World(**place, device=torch.device("meta"), backend=backend), 1024)) == 1
        assert set(sent) == {device}
        sent.clear()
