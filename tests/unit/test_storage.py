"""Shares of a checkpoint: each rank derives its own, and together they are the whole state."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.checkpoint import storage
from disttrain.checkpoint.share import CapturedState, HostBuffers, assign, describe, own_share
from tests.support.manifests import manifest, write_checkpoint

SIZES = st.dictionaries(st.text("abc", min_size=1), st.integers(0, 1000), max_size=40)


@given(SIZES, st.integers(1, 20), st.randoms())
def test_every_tensor_is_saved_by_one_rank_and_the_loads_are_even(sizes, world_size, random) -> None:
    ranks = assign(sizes, world_size)
    assert ranks.keys() == sizes.keys()
    loads = [sum(sizes[name] for name in sizes if ranks[name] == rank) for rank in range(world_size)]
    assert max(loads) <= sum(sizes.values()) / world_size + max(sizes.values(), default=0)
    shuffled = random.sample(sorted(sizes.items()), len(sizes))
    assert assign(dict(shuffled), world_size) == ranks  # the order of names differs between processes


def captured(rank: int) -> CapturedState:
    replicated = {f"model.{n}": torch.full((n,), float(n)) for n in range(1, 9)}
    return CapturedState(replicated, {f"rank-{rank:05d}.seed": torch.tensor([rank])})


def test_shares_of_all_ranks_are_one_checkpoint(tmp_path: Path) -> None:
    shares = [own_share(captured(rank), rank, 3) for rank in range(3)]
    found = write_checkpoint(tmp_path, shares, manifest())
    assert {path.name for path in tmp_path.iterdir()} == {".metadata", *(f"__{r}_0.distcp" for r in range(3))}
    whole = captured(0).replicated | {f"rank-{rank:05d}.seed": torch.tensor([rank]) for rank in range(3)}
    assert found.manifest.tensors == {name: describe(value) for name, value in whole.items()}
    loaded = {name: torch.zeros_like(value) for name, value in whole.items()}
    storage.load_tensors(loaded, found)
    assert all(torch.equal(loaded[name], value) for name, value in whole.items())


def test_copies_do_not_follow_the_state_and_use_their_memory_again() -> None:
    buffers = HostBuffers()
    state = {"a": torch.nn.Parameter(torch.ones(4)), "b": torch.ones(2)}
    first = buffers.copy(state)
    with torch.no_grad():
        state["a"] += 1
    buffers.wait()
    assert first["a"].tolist() == [1.0] * 4
    second = buffers.copy({"a": state["a"], "b": torch.ones(3)})
    assert (second["a"].data_ptr(), second["b"].shape) == (first["a"].data_ptr(), (3,))
    assert second["a"].tolist() == [2.0] * 4
    assert not second["a"].requires_grad
