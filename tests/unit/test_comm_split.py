"""Exposed communication is divided into waiting and transfer without losing any of it."""

import json
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.runtime.process_group import World
from disttrain.telemetry.comm_split import UNMEASURED, CommSplit
from disttrain.telemetry.step_clock import (
    CHECKPOINT,
    COMM,
    COMPUTE,
    CONTROL_SYNC,
    REPLICATE_SYNC,
    SHARD_SYNC,
    HostClock,
)
from disttrain.telemetry.step_records import StepLog
from disttrain.telemetry.step_result import StepResult

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)
ON_DEVICE = World(rank=0, size=2, local_rank=0, local_size=2, device=torch.device("cuda"), backend="nccl")


class Peers(CommSplit):
    """The split of a rank whose peers spent `others` in exposed communication."""

    def __init__(self, others: list[float]) -> None:
        super().__init__(ALONE)
        self.others = others

    def submit(self, exposed_s, within=(), *, wait=False) -> None:
        count = len(exposed_s)
        pairs = zip(exposed_s, self.others[:count], strict=True)
        super().submit([[min(mine, theirs), *meetings] for (mine, *meetings), theirs in pairs])
        del self.others[:count]


def recorded(path, exposed, others, look_ups=(), unseen=(), full=100):
    """The lines of a run of one second of compute and `exposed` communication in each step, which is not seen
    in those of `unseen`."""
    now = [0.0]
    clock = HostClock(lambda: now[0])
    recorder = StepLog(
        JsonLinesWriter(path),
        clock,
        samples_per_step=1,
        warmup_steps=0,
        split=Peers(list(others)),
        full_records=full,
    )
    clock.start()
    for step, seconds in enumerate(exposed, 1):
        clock.switch(COMPUTE)
        now[0] += 1
        clock.switch(COMM)
        now[0] += seconds
        reason = "an unshard was asynchronous" if step in unseen else None
        recorder.record(StepResult(step, torch.tensor(0.0), 0.1, exposed_comm_reason=reason))
        clock.end_step()
        if step in look_ups:
            recorder.split_comm()
    return recorder


seconds = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=30)


@given(seconds, st.sets(st.integers(1, 30)))
def test_transfer_is_the_least_of_all_ranks_and_waiting_the_rest(tmp_path_factory, pairs, look_ups):
    path = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    exposed, others = ([pair[i] / 1000 for pair in pairs] for i in range(2))
    recorder = recorded(path, exposed, others, look_ups)
    recorder.split_comm(everything=True)
    recorder.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(pairs) + 1))
    for line, mine, theirs in zip(lines, exposed, others, strict=True):
        assert line["comm_transfer_s"] == pytest.approx(min(mine, theirs), abs=1e-6)
        assert line["comm_wait_s"] == pytest.approx(max(0.0, mine - theirs), abs=1e-6)
        assert line["comm_exposed_s"] == pytest.approx(mine, abs=1e-6)
    assert sum(recorder.measured) == pytest.approx(len(pairs) + sum(exposed))
    assert sum(recorder.durations) == pytest.approx(sum(recorder.measured))


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after the call"])
def test_a_run_that_breaks_off_keeps_what_was_never_compared(tmp_path, monkeypatch, late):
    too_early = iter([late])
    ready = Peers.ready
    monkeypatch.setattr(
        Peers, "ready", lambda self, wait=False: [] if next(too_early, False) else ready(self, wait)
    )
    recorder = recorded(tmp_path / "steps.jsonl", [0.25] * 5, [0.25] * 5, look_ups={3})
    recorder.abandon()
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["comm_transfer_s"] for line in lines] == [0.25] * 3 + [None] * 2
    assert [line["comm_exposed_s"] for line in lines] == [0.25] * 5
    assert len(recorder.durations) == 3, "figures are of steps that are divided"


@pytest.mark.parametrize(
    ("others", "unseen"), [([0.5] * 3, {2}), ([0.5, UNMEASURED, 0.5], ())], ids=["this rank", "another rank"]
)
def test_what_one_rank_did_not_see_is_null_on_all(tmp_path, others, unseen):
    recorder = recorded(tmp_path / "steps.jsonl", [0.25] * 3, others, unseen=unseen)
    recorder.split_comm(everything=True)
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["comm_transfer_s"] for line in lines] == [0.25, None, 0.25]
    assert [line["comm_exposed_s"] for line in lines] == [0.25, None, 0.25]
    assert [line["other_s"] for line in lines] == [0.0, 0.25, 0.0]
    assert recorder.comm_unmeasured
    assert [step for step, _ in recorder.ratios.thinned()] == [1, 3]
    assert sum(recorder.measured) == pytest.approx(3 * 1.25)


def test_steps_with_and_without_their_communication_are_never_put_together(tmp_path):
    recorder = recorded(tmp_path / "steps.jsonl", [0.25] * 5, [0.25] * 5, unseen={2, 3}, full=0)
    recorder.split_comm(everything=True)
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(line["first"], line["last"]) for line in lines] == [(1, 1), (2, 3), (4, 5)]
    assert [line["comm_transfer_s"] for line in lines] == [0.25, None, 0.5]
    assert [line["comm_exposed_s"] for line in lines] == [0.25, None, 0.5]


def test_on_a_device_the_newest_window_is_left_for_the_next_time():
    split = CommSplit(ON_DEVICE)
    for _ in range(3):
        split.step_done()
    assert split.due(everything=False) == 0
    for _ in range(2):
        split.step_done()
    assert split.due(everything=False) == 3
    assert split.due(everything=True) == 2


def step_of(path, split: CommSplit, *phases: tuple[int, float]) -> dict[str, float]:
    """The record of one step with these seconds in its phases, in order."""
    now = [0.0]
    clock = HostClock(lambda: now[0])
    recorder = StepLog(JsonLinesWriter(path), clock, samples_per_step=1, warmup_steps=0, split=split)
    clock.start()
    for phase, seconds in phases:
        clock.switch(phase)
        now[0] += seconds
    recorder.record(StepResult(1, torch.tensor(0.0), 0.1))
    clock.end_step()
    recorder.split_comm(everything=True)
    recorder.close()
    return json.loads(path.read_text())


def test_each_meeting_is_compared_on_its_own(tmp_path):
    """This rank waits 0.3 s at the first and is waited for at the second, and 0.2 s is what both take."""
    phases = ((CONTROL_SYNC, 0.5), (CHECKPOINT, 1.0), (CONTROL_SYNC, 0.2), (COMPUTE, 2.0), (COMM, 0.5))
    line = step_of(tmp_path / "steps.jsonl", Together(ALONE), *phases)
    assert line["comm_wait_s"] == pytest.approx(0.3)
    assert line["comm_transfer_s"] == pytest.approx(0.5 + 0.2 + 0.2)
    assert (line["checkpoint_s"], line["compute_s"], line["other_s"]) == (1.0, 2.0, 0.0)
    assert line["step_s"] == pytest.approx(4.2)


class Together(CommSplit):
    """The split of a rank whose peer was as quick in the backward pass, and late to one meeting of two."""

    def submit(self, exposed_s, within=(), *, wait=False) -> None:
        theirs = [0.5, 0.2, 0.5]
        super().submit([[min(pair) for pair in zip(step, theirs, strict=True)] for step in exposed_s])


@dataclass(frozen=True)
class FourRanks(World):
    """A world of 2 x 2 ranks, seen from rank 0: its peers were in no call shorter than `peers` by group."""

    peers: dict[object, list[float]]

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM, group=None):
        assert op == dist.ReduceOp.MIN
        return tensor.copy_(torch.minimum(tensor, torch.tensor(self.peers[group], dtype=tensor.dtype)))


def test_a_call_within_a_group_is_compared_within_that_group(tmp_path):
    """Rank 0 waits 0.3 s for its neighbour in an all-gather, and 0.2 s for another node later."""
    peers = {None: [9.0], "node": [0.1, 0.4], "across": [0.5]}
    world = FourRanks(
        rank=0, size=4, local_rank=0, local_size=2, device=ALONE.device, backend=None, peers=peers
    )
    split = CommSplit(world, {"shard": "node", "replicate": "across"})
    phases = ((SHARD_SYNC, 0.4), (COMPUTE, 2.0), (SHARD_SYNC, 0.4), (REPLICATE_SYNC, 0.7), (COMM, 0.0))
    line = step_of(tmp_path / "steps.jsonl", split, *phases)
    assert line["comm_wait_s"] == pytest.approx(0.3 + 0.2)
    assert line["comm_transfer_s"] == pytest.approx(0.1 + 0.4 + 0.5)
    assert line["compute_s"] == pytest.approx(2.0)
