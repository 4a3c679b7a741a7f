"""Schedule of the probe of links, and its size."""

from __future__ import annotations

import pytest
import torch

from disttrain.runtime.process_group import World
from disttrain.telemetry.link_probe import _End, measure_rates, message_bytes, probe_links, rounds


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


@pytest.mark.parametrize(
    ("size", "backend", "configured", "expected"),
    [
        (1, None, None, 0),
        (4, "gloo", None, 2**20),
        (4, "nccl", None, 0),
        (4, "nccl", 2.0, 2**21),
        (4, "gloo", 0.0, 0),
    ],
)
def test_the_size_of_a_message(size, backend, configured, expected):
    world = World(rank=0, size=size, local_rank=0, local_size=1, device=torch.device("cpu"), backend=backend)
    assert message_bytes(world, configured) == expected


def test_nodes_of_one_host_have_no_links():
    world = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)
    assert probe_links(world, 0, 1024) is None


def test_gloo_sends_from_host_memory_and_nccl_from_the_gpu(monkeypatch):
    sent = []
    monkeypatch.setattr(
        _End, "_exchange", lambda end, operation, tensor, peer: sent.append(tensor.device.type)
    )
    for backend, device in (("gloo", "cpu"), ("nccl", "meta")):
        place = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 1}
        assert len(measure_rates(World(**place, device=torch.device("meta"), backend=backend), 1024)) == 1
        assert set(sent) == {device}
        sent.clear()
