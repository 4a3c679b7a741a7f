"""Shares of a checkpoint: each rank derives its own alone, and together they are the whole state."""

import pickle
import shutil
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.checkpoint_plan import captured, message, write_description
from disttrain.checkpoint import storage
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.checkpoint.share import CapturedState, HostBuffers, assign, describe, own_share
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.records.checkpoint import CheckpointFile, CheckpointTensor
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from tests.support.manifests import manifest, write_checkpoint

SIZES = st.dictionaries(st.text("abc", min_size=1), st.integers(0, 1000), max_size=40)


@given(SIZES, st.integers(1, 20), st.randoms())
def test_every_tensor_is_saved_by_one_rank_and_the_loads_are_even(sizes, world_size, random):
    ranks = assign(sizes, world_size)
    assert ranks.keys() == sizes.keys()
    loads = [sum(sizes[name] for name in sizes if ranks[name] == rank) for rank in range(world_size)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)
    shuffled = random.sample(sorted(sizes.items()), len(sizes))
    assert assign(dict(shuffled), world_size) == ranks, "the order of names differs between processes"


def test_the_largest_tensors_are_assigned_first():
    assert assign({"a": 1, "b": 1, "c": 2}, 2) == {"c": 0, "a": 1, "b": 1}


def test_shares_of_all_ranks_are_one_checkpoint(tmp_path):
    replicated = {f"model.{n}": torch.full((n,), float(n)) for n in range(1, 9)}
    seeds = [{f"rank-{rank:05d}.seed": torch.tensor([rank])} for rank in range(3)]
    shares = [own_share(CapturedState(replicated, seed), rank, 3) for rank, seed in enumerate(seeds)]
    found = write_checkpoint(tmp_path, shares, manifest())
    assert {path.name for path in tmp_path.iterdir()} == {".metadata", *(f"__{r}_0.distcp" for r in range(3))}
    whole = replicated | seeds[0] | seeds[1] | seeds[2]
    assert found.manifest.tensors == {name: describe(value) for name, value in whole.items()}
    loaded = {name: torch.zeros_like(value) for name, value in whole.items()}
    storage.load_tensors(loaded, found)
    assert all(torch.equal(loaded[name], value) for name, value in whole.items())


def test_a_manifest_has_the_positions_of_shards_once_for_all_ranks_with_the_same():
    """Else it would grow with the ranks times the tensors."""
    shard = CheckpointTensor(dtype="int8", shape=(24, 1), mesh=(3,), placements=(0,))
    own = CheckpointTensor(dtype="uint8", shape=(5,))
    file = CheckpointFile(bytes=13, sha256="0" * 64)
    shares = [
        storage.WrittenShare(
            {"model.a": shard, f"rank-{rank}": own},
            {"model.a": (0, 8), f"rank-{rank}": (8, 5)}, file, (None, ""),
        )
        for rank in range(3)
    ]  # fmt: skip
    positions = {tuple(part.positions): part.ranks for part in storage.describe_shares(shares)["positions"]}
    own_parts = {(f"rank-{rank}",): [rank] for rank in range(3)}
    assert positions == {("model.a",): [0, 1, 2]} | own_parts


def test_copies_do_not_follow_the_state_and_use_their_memory_again():
    buffers = HostBuffers()
    state = {"a": torch.nn.Parameter(torch.ones(4)), "b": torch.ones(2)}
    first = buffers.copy(state)
    with torch.no_grad():
        state["a"] += 1
    assert first["a"].tolist() == [1.0] * 4
    second = buffers.copy({"a": state["a"], "b": torch.ones(3)})
    assert (second["a"].data_ptr(), second["b"].shape) == (first["a"].data_ptr(), (3,))
    assert (second["a"].tolist(), second["a"].requires_grad) == ([2.0] * 4, False)


class OneOfTwo(World):
    """Rank 0 or 1 of two, whose peer sends the same value as this rank."""

    def gather_object(self, value):
        self.collectives.append("gather_object")
        for file in self.folder.glob("*/__0_0.distcp"):
            shutil.copy(file, file.with_name("__1_0.distcp"))
        return [value, value] if self.rank == 0 else None

    def all_gather_object(self, value):
        self.collectives.append("all_gather_object")
        return [value, value]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_receives_the_results_of_all_ranks(tmp_path, rank):
    """The result of an all-gather grows with the ranks on each rank, and so does the memory for it."""
    attempt = RunDir(tmp_path).attempt(0)
    attempt.path.mkdir(parents=True)
    attempt.steps(rank).write_text("{}\n")
    OneOfTwo.folder, OneOfTwo.collectives = tmp_path / "checkpoints", []
    world = OneOfTwo(rank, 2, rank, 2, device=torch.device("cpu"), backend="gloo")
    state = CapturedState({"model.a": torch.ones(3), "model.b": torch.ones(3)}, {})
    config = CheckpointConfig(asynchronous=False)
    saver = CheckpointSaver(OneOfTwo.folder, config, attempt, world, lambda: state, manifest(step=0), 0)
    saver.save(1, None)
    saver.close()
    save, *read_back = OneOfTwo.collectives
    assert (save, set(read_back)) == ("gather_object", {"all_gather_object"}), "only the first is read back"
    assert (saver.committed_step, saver.failed) == (1 if rank == 0 else None, 0)


def calls_of(act):
    """Calls of functions, of Python and of C, while `act` runs: a measure of work without a clock."""
    calls = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls["call"] + calls["c_call"]


def shares_of(ranks):
    return [own_share(captured(rank, layers=1), rank, ranks) for rank in range(ranks)]


def test_the_plan_of_a_rank_does_not_grow_with_the_ranks():
    state, most, work = captured(0, layers=1), {}, {}
    for ranks in (16, 64):
        shares = shares_of(ranks)
        assert sum(len(share.tensors) for share in shares) == len(state.replicated) + ranks * len(state.own)
        most[ranks] = max(len(message(share, rank)) for rank, share in enumerate(shares))
        work[ranks] = calls_of(lambda ranks=ranks: own_share(state, 0, ranks))
    assert most[64] <= most[16]
    assert work[64] <= work[16]


def test_the_work_of_rank_0_grows_in_proportion_to_the_ranks(tmp_path):
    """Linear work grows twice as much from 32 to 64 ranks as from 16 to 32, and quadratic work four times."""
    work = {}
    for ranks in (8, 16, 32, 64):  # modules that the first call imports do not count
        messages = [message(share, rank) for rank, share in enumerate(shares_of(ranks))]
        folder = tmp_path / str(ranks)
        folder.mkdir()

        def receive(messages=messages, folder=folder):
            write_description(folder, [pickle.loads(each) for each in messages])

        work[ranks] = calls_of(receive)
    assert work[64] - work[32] == pytest.approx(2 * (work[32] - work[16]), rel=0.05)
