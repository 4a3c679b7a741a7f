"""The steps of a rank in its file: single lines and aggregates, and communication compared over ranks."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.records.json_files import read_jsonl
from disttrain.records.steps import PHASES, RESOLUTION, Step, StepAggregate, bin_of, durations
from disttrain.runtime.process_group import World
from disttrain.telemetry.reductions import Reductions
from disttrain.telemetry.step_clock import (
    CHECKPOINT,
    COMM,
    COMPUTE,
    CONTROL_SYNC,
    OPTIMIZER,
    REPLICATE_SYNC,
    SHARD_SYNC,
    StepClock,
)
from disttrain.telemetry.step_log import AGGREGATE_STEPS
from disttrain.telemetry.steps import UNMEASURED, StepResult
from tests.support.step_logs import ALONE, peers, step_log


def record(
    path, steps, world=ALONE, *, values=lambda step: {}, after=0, aggregate=None, reduce_after=(), **options
):
    """The log of these steps, each a list of phases and their seconds, and by step the aggregate that a
    checkpoint would hold. The log goes on from the one of the step `after`."""
    now = [0.0]
    clock = StepClock(lambda: now[0])
    log = step_log(path, clock, world, samples_per_step=4, **options)
    if after:
        _, own = log.state()
        log.resume(after, own=own | {"aggregate": aggregate})
    aggregates = {after: aggregate}
    clock.start()
    for step, phases in enumerate(steps, after + 1):
        for phase, seconds in phases:
            clock.switch(phase)
            now[0] += seconds
        log.record(
            StepResult(**{"step": step, "loss": torch.tensor(float(step)), "lr": step / 10} | values(step))
        )
        clock.end_step()
        if world is ALONE:
            log.collect()
        elif step in reduce_after:
            log.reduce()
        log.lines.flush()
        aggregates[step] = log.open_aggregate()
    return log, aggregates


def lines_of(path, steps, world=ALONE, **options):
    """The log of these steps once it is closed, and its lines."""
    log, _ = record(path, steps, world, **options)
    log.reduce(wait=True)
    log.close()
    return log, read_jsonl(path)


def computing(seconds):
    return [[(COMPUTE, 0.9 * step_s), (OPTIMIZER, 0.1 * step_s)] for step_s in seconds]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "steps.jsonl"


@given(st.lists(st.floats(1e-4, 100), min_size=1, max_size=400), st.integers(0, 150))
def test_aggregates_lose_no_sum_no_extreme_and_keep_the_distribution(tmp_path_factory, seconds, full):
    path = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    _, lines = lines_of(path, computing(seconds), compares=False, full_records=full)
    alone = [Step.model_validate(line) for line in lines[:full]]
    aggregates = [StepAggregate.model_validate(line) for line in lines[full:]]
    for line in (*alone, *aggregates):
        assert sum(getattr(line, name) or 0 for name in PHASES) == pytest.approx(line.step_s, abs=1e-5)
    first = len(alone) + 1
    for found in aggregates:
        steps = range(first, first + found.steps)
        own = np.array(seconds)[first - 1 : steps[-1]]
        first += found.steps
        assert (found.first, found.last, found.samples) == (steps[0], steps[-1], 4 * len(steps))
        assert (found.step_s, found.optimizer_s) == pytest.approx((own.sum(), 0.1 * own.sum()), abs=1e-5)
        assert (found.shortest_s, found.longest_s) == pytest.approx((own.min(), own.max()), abs=1e-6)
        assert seconds[found.longest_step - 1] == pytest.approx(own.max(), abs=1e-6)
        assert seconds[found.shortest_step - 1] == pytest.approx(own.min(), abs=1e-6)
        assert np.sort(durations(found.bins)) == pytest.approx(np.sort(own), rel=RESOLUTION - 1)
        assert (found.loss, found.lr) == (pytest.approx(np.mean(steps)), steps[-1] / 10)
    assert first == len(seconds) + 1
    assert all(found.steps == AGGREGATE_STEPS for found in aggregates[:-1])


@given(st.floats(1e-8, 1e5))
def test_a_duration_lies_in_its_bin(seconds):
    place = bin_of(seconds)
    assert RESOLUTION**place <= seconds * (1 + 1e-9)
    assert seconds < RESOLUTION ** (place + 1) * (1 + 1e-9)
    assert bin_of(0.0) < place


def test_profiled_steps_and_those_of_the_warm_up_share_no_line_with_others_and_are_not_measured(path):
    options = {"compares": False, "full_records": 1, "profiled": {2, 12}, "warmup_steps": 4}
    log, lines = lines_of(path, computing([0.1] * 20), **options)
    ranges = [(line.get("first", line.get("step")), line.get("last")) for line in lines]
    assert ranges == [(1, None), (2, None), (3, 4), (5, 11), (12, None), (13, 20)]
    assert (log.left_out, log.profiled_after_warmup) == ([(1, 4), (12, 12)], 1)
    assert len(log.series["step_s"]) == 15
    assert sum(log.measured) == pytest.approx(sum(log.series["step_s"].values))


def test_an_aggregate_of_an_earlier_attempt_is_the_first_line_of_the_next(path):
    options = {"compares": False, "full_records": 0}
    _, aggregates = record(path.with_name("before"), computing([0.1] * 130), **options)
    _, lines = lines_of(path, computing([0.2] * 20), after=130, aggregate=aggregates[130], **options)
    ranges = [(line["first"], line["last"], line["start_s"]) for line in lines]
    assert ranges == [(101, 130, None), (131, 150, 0.0)], "the clock of the first attempt is gone"


def test_values_that_are_not_finite_or_not_measured_are_null(path):
    losses = [math.nan, math.inf, 2.0]
    options = {"compares": False, "values": lambda step: {"loss": torch.tensor(losses[step - 1])}}
    log, _ = lines_of(path, computing([1.0] * 3), **options)
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert columns(lines, "loss", "comm_wait_s", "comm_exposed_s") == [
        [None, None, 2.0],
        [None] * 3,
        [None] * 3,
    ]
    assert log.series["loss"].newest == (3, 2.0)
    _, [shared] = lines_of(path.with_name("shared"), computing([1.0] * 3), full_records=0, **options)
    assert shared["loss"] == 2.0, "the mean of the finite ones"


def test_a_further_value_is_in_the_line_and_in_a_series_of_its_name(path):
    log, lines = lines_of(
        path, computing([1.0] * 3), full_records=1, compares=False,
        values=lambda step: {"extra": {"norm": torch.tensor(float(step))}},
    )  # fmt: skip
    assert log.series["norm"].newest == (3, 3.0)
    assert [line["extra"] for line in lines] == [{"norm": 1.0}, {"norm": 2.5}]


def exchanging(exposed):
    """Steps of one second of compute and of exposed communication."""
    return [[(COMPUTE, 1.0), (COMM, seconds)] for seconds in exposed]


def columns(lines, *names):
    return [[line[name] for line in lines] for name in names]


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=30),
    st.sets(st.integers(1, 30)),
)
def test_transfer_is_the_minimum_over_ranks_and_waiting_the_rest(tmp_path_factory, pairs, reduce_after):
    path = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    own, theirs = ([pair[i] / 1000 for pair in pairs] for i in range(2))
    log, lines = lines_of(path, exchanging(own), peers({None: list(theirs)}), reduce_after=reduce_after)
    transfer, wait, exposed = columns(lines, "comm_transfer_s", "comm_wait_s", "comm_exposed_s")
    assert transfer == pytest.approx(list(map(min, own, theirs)), abs=1e-6)
    assert wait == pytest.approx([max(0.0, a - b) for a, b in zip(own, theirs, strict=True)], abs=1e-6)
    assert exposed == pytest.approx(own, abs=1e-6)
    assert sum(log.measured) == pytest.approx(len(pairs) + sum(own))
    assert sum(log.series["step_s"].values) == pytest.approx(sum(log.measured))


def test_a_run_that_breaks_off_writes_steps_that_were_not_compared(path):
    log, _ = record(path, exchanging([0.25] * 5), peers({None: [0.25] * 5}), reduce_after={3})
    log.abandon()
    log.close()
    found = columns(read_jsonl(path), "comm_transfer_s", "comm_exposed_s")
    assert found == [[0.25] * 3 + [None] * 2, [0.25] * 5]
    assert len(log.series["step_s"]) == 3, "figures are of steps that are divided"


@pytest.mark.parametrize("full_records", [100, 0])
@pytest.mark.parametrize(
    ("theirs", "untimed"), [([0.5] * 3, {2}), ([0.5, UNMEASURED, 0.5], ())], ids=["this rank", "another rank"]
)
def test_communication_that_one_rank_did_not_measure_is_null_on_all(path, theirs, untimed, full_records):
    log, lines = lines_of(
        path, exchanging([0.25] * 3), peers({None: list(theirs)}), full_records=full_records,
        values=lambda step: {"comm_reason": "asynchronous" if step in untimed else None},
    )  # fmt: skip
    found = columns(lines, "comm_transfer_s", "comm_exposed_s", "other_s")
    assert found == [[0.25, None, 0.25], [0.25, None, 0.25], [0.0, 0.25, 0.0]], (
        "never in one line with others"
    )
    assert log.comm_unmeasured
    assert [point["step"] for point in log.series["ratio"].points(dict, "ratio")] == [1, 3]
    assert sum(log.measured) == pytest.approx(3 * 1.25)


@pytest.mark.parametrize(
    ("phases", "theirs", "groups", "wait_s", "transfer_s"),
    [
        (
            [(CONTROL_SYNC, 0.5), (CHECKPOINT, 1.0), (CONTROL_SYNC, 0.2), (COMPUTE, 2.0), (COMM, 0.5)],
            {None: [0.5, 0.2, 0.5]}, None, 0.3, 0.5 + 0.2 + 0.2,
        ),
        (
            [(SHARD_SYNC, 0.4), (COMPUTE, 2.0), (SHARD_SYNC, 0.4), (REPLICATE_SYNC, 0.7), (CHECKPOINT, 1.0)],
            {None: [9.0], "node": [0.1, 0.4], "across": [0.5]}, {"shard": "node", "replicate": "across"},
            0.3 + 0.2, 0.1 + 0.4 + 0.5,
        ),
    ],
    ids=["of all ranks", "within groups"],
)  # fmt: skip
def test_each_call_is_compared_on_its_own(path, phases, theirs, groups, wait_s, transfer_s):
    _, [line] = lines_of(path, [phases], peers(theirs), groups=groups)
    assert (line["comm_wait_s"], line["comm_transfer_s"]) == pytest.approx((wait_s, transfer_s))
    assert (line["checkpoint_s"], line["compute_s"], line["other_s"]) == (1.0, 2.0, 0.0)
    assert line["step_s"] == pytest.approx(sum(seconds for _, seconds in phases))


def test_a_step_without_compute_has_no_ratio(path):
    log, _ = lines_of(path, [[(COMM, 1.0)]], peers({None: [1.0]}))
    assert (len(log.series["step_s"]), len(log.series["ratio"])) == (1, 0)


def test_a_reduction_that_failed_raises_where_its_result_is_needed():
    class Lost(World):
        def start_all_reduce(self, *_):
            return SimpleNamespace(is_completed=lambda: True, wait=wait)

    def wait():
        raise RuntimeError("a peer is gone")

    reductions = Reductions(Lost(**vars(ALONE)))
    reductions.submit(torch.zeros(1), None, pytest.fail)
    reductions.collect()
    with pytest.raises(RuntimeError, match="a peer is gone"):
        reductions.collect(wait=True)
