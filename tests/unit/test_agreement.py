"""Agreements of the ranks at step boundaries: when they communicate, stop, and take checkpoints."""

import math
from types import SimpleNamespace

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.engine import agreement
from disttrain.engine.agreement import MAX_STRIDE, SUPERSEDED_WITHIN_S, Agreement
from disttrain.errors import Superseded
from disttrain.records.metrics import EvalPoint
from disttrain.records.run_directory import RunDir
from disttrain.records.shared_folder import AttemptWatch
from disttrain.runtime.process_group import World
from disttrain.runtime.stop_signals import CAUSES
from disttrain.telemetry.step_clock import StepClock

STEPS = 12


def point(step, loss):
    return EvalPoint(step=step, loss=loss, metrics={}, samples=1, elapsed_s=0.0)


class Events(list):
    """What happened: the number of each step, views of the ranks that are sent and read, checkpoints."""

    step = 0

    def append(self, event):
        super().append(event)
        if isinstance(event, int):
            self.step = event


class TwoRanks(World):
    """A world whose other rank requests nothing."""

    events: Events

    def of_rank0(self, value):
        return value

    def start_all_reduce_max(self, values):
        self.events.append("sent")
        return lambda: self.events.append("read") or list(values)


class Saver:
    """Each checkpoint waits for its commit, and takes `writes_for` steps to write."""

    step = 0

    def __init__(self, events, writes_for):
        self.events, self.writes_for, self.pending = events, writes_for, False

    @property
    def writing(self):
        return self.pending and self.events.step - self.step < self.writes_for

    def save(self, step, loss):
        self.events.append(("save", step, loss))
        self.step, self.pending = step, self.writes_for > 0

    def commit(self):
        self.events.append("commit")
        self.pending = False

    def close(self): ...


@pytest.fixture
def events_of(monkeypatch):
    """Run steps of `step_s` seconds with validation losses by step, and give what happened."""

    def run(
        *, step_s=0.1, check_s=0.35, losses=(), known=None, stop_after=STEPS, writes_for=0, attempt=None,
        steps=STEPS, replicas_agree=lambda step: True, **checkpoint,
    ):  # fmt: skip
        events = TwoRanks.events = Events()
        monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: events.step * step_s))
        world = TwoRanks(0, 2, 0, 2, torch.device("cpu"), "gloo")
        clock = StepClock()
        clock.start()
        recorder = SimpleNamespace(
            config=Config.model_validate({"checkpoint": checkpoint, "job": {"stop_check_s": check_s}}),
            world=world, timed_world=world, clock=clock, eval_history=[point(1, None), point(2, known)],
            skipped_steps=lambda wait: (0, 0), set_pace=lambda step_s: events.append(("pace", step_s)),
            attempt_watch=attempt(events) if attempt else SimpleNamespace(superseded=lambda max_age_s: None),
        )  # fmt: skip
        requests = SimpleNamespace(pending=lambda: int(events.step > stop_after))
        saver = Saver(events, writes_for)
        made = Agreement(recorder, saver, steps, 0, requests, replicas_agree)
        for step in range(1, steps + 1):
            events.append(step)
            if step in losses:
                made.validated(point(step, losses[step]))
            if cause := made.boundary(step):
                return [*events, cause]
        made.end(steps)
        return list(events)

    return run


def without_pace(events):
    return [event for event in events if not isinstance(event, tuple) or event[0] != "pace"]


def saved(events):
    return [event[1:] for event in events if isinstance(event, tuple) and event[0] == "save"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, [1, "sent", "read", 2, 3, "sent", 4, "read", 5, 6, "sent", 7, "read", 8]),  # read a step later
        ({"stop_after": 4}, [5, 6, "sent", 7, "read", ("save", 7, None), CAUSES[0]]),
        ({"every_steps": 4}, [3, "sent", 4, "read", "sent", "read", ("save", 4, None), 5]),  # one of its own
        (
            {"replicas_agree": lambda step: step % 4 == 0},
            [1, 2, 3, 4, "sent", "read", 5, 6, 7, 8, "sent", "read"],
        ),
        ({"check_s": 1.15}, [11, "sent", 12, "read", "sent", "read"]),  # the end waits for the one under way
        ({"check_s": 0.1}, ["read", 2, "sent", "read", 3, "sent", "read", 4]),  # long steps: at once
    ],
)
def test_views_are_sent_and_read(events_of, options, found):
    events = without_pace(events_of(**options))
    places = [events[at : at + len(found)] for at in range(len(events))]
    assert found in places


def test_short_steps_may_become_slower_so_agreements_follow_a_largest_number_of_them(events_of):
    events = events_of(step_s=1e-4, check_s=5.0, steps=3 * MAX_STRIDE, stop_after=3 * MAX_STRIDE)
    assert events.count("sent") >= 3


def test_each_agreement_passes_on_the_seconds_of_a_step(events_of):
    assert ("pace", 3.0) in events_of(step_s=3.0, check_s=2.0)


BEST = {2: 3.0, 4: 1.0, 6: 1.0, 8: 2.0, 10: 0.5}


@pytest.mark.parametrize(
    ("losses", "options", "checkpoints"),
    [
        (BEST, {}, [(2, 3.0), (4, 1.0), (10, 0.5), (12, None)]),
        (BEST, {"check_s": 0.0}, [(2, 3.0), (4, 1.0), (10, 0.5), (12, None)]),
        (BEST, {"known": 1.0}, [(10, 0.5), (12, None)]),
        (BEST, {"best": False}, [(12, None)]),
        (BEST, {"every_steps": None}, []),
        ({12: 3.0}, {"known": 1.0}, [(12, 3.0)]),
        ({2: None, 3: math.nan, 4: math.inf, 5: 5.0}, {}, [(5, 5.0), (12, None)]),
        ({2: 1.0, 5: 2.0}, {"every_steps": 6}, [(2, 1.0), (6, None), (12, None)]),
    ],
)
def test_each_lowest_loss_so_far_is_saved_once_with_its_step(events_of, losses, options, checkpoints):
    options = {"check_s": 1000.0, "every_steps": 100, **options}
    assert saved(events_of(losses=losses, **options)) == checkpoints


@pytest.mark.parametrize(
    ("checkpoint", "steps"),
    [
        ({}, [9, 12]),  # every 900 s, and the end of a run that was longer
        ({"every_s": 300, "best": False}, [3, 6, 9, 12]),
        ({"every_s": 0}, []),
        ({"every_steps": 5, "best": False}, [5, 10, 12]),
        ({"every_steps": 5, "every_s": 200, "best": False}, [2, 4, 5, 7, 9, 10, 12]),
    ],
)
def test_intervals_of_checkpoints(events_of, checkpoint, steps):
    """Only with an interval of the user does a validation save."""
    losses = {step: 1 / step for step in range(1, STEPS + 1)}
    found = saved(events_of(step_s=100.0, check_s=0.0, losses=losses, **checkpoint))
    assert [step for step, _ in found] == steps


def test_a_checkpoint_is_committed_once_no_rank_writes(events_of):
    events = without_pace(events_of(check_s=0.0, every_steps=5, best=False, writes_for=3))
    kinds = [event for event in events if event not in ("sent", "read")]
    assert kinds == [
        *range(1, 6), ("save", 5, None), 6, 7, 8, "commit", 9, 10, ("save", 10, None), 11, 12,
        ("save", 12, None),
    ]  # fmt: skip


def test_a_newer_attempt_is_found_in_time_late_in_a_run(events_of, tmp_path):
    run, times = RunDir(tmp_path), {}
    run.attempt(0).path.mkdir(parents=True)

    def watch(events):
        def now():
            if events.step >= 2000:
                run.attempt(1).path.mkdir(exist_ok=True)
            times["now"] = float(events.step)
            return times["now"]

        return AttemptWatch(run.attempt(0), now)

    with pytest.raises(Superseded, match="attempt 1 of this run has begun"):
        events_of(step_s=1.0, check_s=1.0, attempt=watch, steps=10**6, stop_after=10**6)
    assert times["now"] - 2000 <= SUPERSEDED_WITHIN_S
