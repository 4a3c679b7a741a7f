"""Exposed communication is divided into waiting and transfer without losing any of it."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.telemetry.reductions import Reductions
from disttrain.telemetry.step_clock import (
    CHECKPOINT,
    COMM,
    COMPUTE,
    CONTROL_SYNC,
    REPLICATE_SYNC,
    SHARD_SYNC,
    HostClock,
)
from disttrain.telemetry.steps import UNMEASURED, StepResult
from tests.support.step_logs import peers, step_log


def recorded(path, exposed, others, look_ups=(), unseen=(), full=100):
    """The lines of a run of one second of compute and `exposed` communication in each step, which is not seen
    in those of `unseen`."""
    now = [0.0]
    clock = HostClock(lambda: now[0])
    recorder = step_log(path, clock, peers({None: list(others)}), full_records=full)
    clock.start()
    for step, seconds in enumerate(exposed, 1):
        clock.switch(COMPUTE)
        now[0] += 1
        clock.switch(COMM)
        now[0] += seconds
        reason = "an unshard was asynchronous" if step in unseen else None
        recorder.record(StepResult(step, torch.tensor(0.0), 0.1, comm_reason=reason))
        clock.end_step()
        if step in look_ups:
            recorder.reduce()
    return recorder


seconds = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=30)


@given(seconds, st.sets(st.integers(1, 30)))
def test_transfer_is_the_least_of_all_ranks_and_waiting_the_rest(tmp_path_factory, pairs, look_ups):
    path = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    exposed, others = ([pair[i] / 1000 for pair in pairs] for i in range(2))
    recorder = recorded(path, exposed, others, look_ups)
    recorder.reduce(wait=True)
    recorder.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(pairs) + 1))
    for line, mine, theirs in zip(lines, exposed, others, strict=True):
        assert line["comm_transfer_s"] == pytest.approx(min(mine, theirs), abs=1e-6)
        assert line["comm_wait_s"] == pytest.approx(max(0.0, mine - theirs), abs=1e-6)
        assert line["comm_exposed_s"] == pytest.approx(mine, abs=1e-6)
    assert sum(recorder.measured) == pytest.approx(len(pairs) + sum(exposed))
    assert sum(recorder.series["step_s"].values) == pytest.approx(sum(recorder.measured))


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after the call"])
def test_a_run_that_breaks_off_keeps_what_was_never_compared(tmp_path, monkeypatch, late):
    too_early, collect = iter([late]), Reductions.collect
    monkeypatch.setattr(
        Reductions, "collect", lambda self, wait=False: next(too_early, False) or collect(self, wait)
    )
    recorder = recorded(tmp_path / "steps.jsonl", [0.25] * 5, [0.25] * 5, look_ups={3})
    recorder.abandon()
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["comm_transfer_s"] for line in lines] == [0.25] * 3 + [None] * 2
    assert [line["comm_exposed_s"] for line in lines] == [0.25] * 5
    assert len(recorder.series["step_s"]) == 3, "figures are of steps that are divided"


@pytest.mark.parametrize(
    ("others", "unseen"), [([0.5] * 3, {2}), ([0.5, UNMEASURED, 0.5], ())], ids=["this rank", "another rank"]
)
def test_what_one_rank_did_not_see_is_null_on_all(tmp_path, others, unseen):
    recorder = recorded(tmp_path / "steps.jsonl", [0.25] * 3, others, unseen=unseen)
    recorder.reduce(wait=True)
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["comm_transfer_s"] for line in lines] == [0.25, None, 0.25]
    assert [line["comm_exposed_s"] for line in lines] == [0.25, None, 0.25]
    assert [line["other_s"] for line in lines] == [0.0, 0.25, 0.0]
    assert recorder.comm_unmeasured
    assert [point["step"] for point in recorder.series["ratio"].points(dict, "ratio")] == [1, 3]
    assert sum(recorder.measured) == pytest.approx(3 * 1.25)


def test_steps_with_and_without_their_communication_are_never_put_together(tmp_path):
    recorder = recorded(tmp_path / "steps.jsonl", [0.25] * 5, [0.25] * 5, unseen={2, 3}, full=0)
    recorder.reduce(wait=True)
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(line["first"], line["last"]) for line in lines] == [(1, 1), (2, 3), (4, 5)]
    assert [line["comm_transfer_s"] for line in lines] == [0.25, None, 0.5]
    assert [line["comm_exposed_s"] for line in lines] == [0.25, None, 0.5]


def step_of(path, theirs, *phases: tuple[int, float], groups=None) -> dict[str, float]:
    """The record of one step with these seconds in its phases, in order."""
    now = [0.0]
    clock = HostClock(lambda: now[0])
    recorder = step_log(path, clock, peers(theirs), groups=groups)
    clock.start()
    for phase, seconds in phases:
        clock.switch(phase)
        now[0] += seconds
    recorder.record(StepResult(1, torch.tensor(0.0), 0.1))
    clock.end_step()
    recorder.reduce(wait=True)
    recorder.close()
    return json.loads(path.read_text())


def test_each_meeting_is_compared_on_its_own(tmp_path):
    """This rank waits 0.3 s at the first and is waited for at the second, and 0.2 s is what both take."""
    phases = ((CONTROL_SYNC, 0.5), (CHECKPOINT, 1.0), (CONTROL_SYNC, 0.2), (COMPUTE, 2.0), (COMM, 0.5))
    line = step_of(tmp_path / "steps.jsonl", {None: [0.5, 0.2, 0.5]}, *phases)
    assert line["comm_wait_s"] == pytest.approx(0.3)
    assert line["comm_transfer_s"] == pytest.approx(0.5 + 0.2 + 0.2)
    assert (line["checkpoint_s"], line["compute_s"], line["other_s"]) == (1.0, 2.0, 0.0)
    assert line["step_s"] == pytest.approx(4.2)


def test_a_call_within_a_group_is_compared_within_that_group(tmp_path):
    """Rank 0 waits 0.3 s for its neighbour in an all-gather, and 0.2 s for another node later."""
    theirs = {None: [9.0], "node": [0.1, 0.4], "across": [0.5]}
    groups = {"shard": "node", "replicate": "across"}
    phases = ((SHARD_SYNC, 0.4), (COMPUTE, 2.0), (SHARD_SYNC, 0.4), (REPLICATE_SYNC, 0.7), (COMM, 0.0))
    line = step_of(tmp_path / "steps.jsonl", theirs, *phases, groups=groups)
    assert line["comm_wait_s"] == pytest.approx(0.3 + 0.2)
    assert line["comm_transfer_s"] == pytest.approx(0.1 + 0.4 + 0.5)
    assert line["compute_s"] == pytest.approx(2.0)
