"""Checkpoints of a run at its step boundaries: the validation with the lowest loss so far is saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.engine import agreement
from disttrain.engine.agreement import SUPERSEDED_WITHIN_S, Agreement
from disttrain.errors import Superseded
from disttrain.records.metrics import EvalPoint
from disttrain.records.run_directory import RunDir
from disttrain.records.shared_folder import AttemptWatch
from disttrain.runtime.process_group import World
from disttrain.runtime.stop_signals import CAUSES
from disttrain.telemetry.step_clock import HostClock

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)
STEPS = 12


class Saver:
    """Records the steps at which a checkpoint is taken, each with its validation loss."""

    pending = writing = False

    def __init__(self) -> None:
        self.step = 0
        self.saved: list[tuple[int, float | None]] = []

    def save(self, step: int, loss: float | None) -> None:
        self.saved.append((step, loss))
        self.step = step

    def close(self) -> None: ...


class Undisturbed:
    """An attempt without a successor and without stop requests."""

    def superseded(self, max_age_s: float) -> None:
        return None

    def pending(self) -> int:
        return 0


def point(step: int, loss: float | None) -> EvalPoint:
    return EvalPoint(step=step, loss=loss, metrics={}, samples=1, elapsed_s=0.0)


def recorder(config: Config, world: World = ALONE, known: float | None = None, **parts: Any) -> Any:
    clock = HostClock()
    clock.start()
    given = {"attempt_watch": Undisturbed(), "set_pace": lambda step_s: None} | parts
    return SimpleNamespace(
        config=config, world=world, timed_world=world, clock=clock,
        eval_history=[point(1, None), point(2, known)],
        skipped_steps=lambda wait: (0, 0), **given,
    )  # fmt: skip


def saved(
    losses: dict[int, float | None], known: float | None = None, check_s: float = 1000.0, **checkpoint: Any
) -> list[tuple[int, float | None]]:
    """Checkpoints of a run with these validation losses by step; `known` is the best of earlier attempts."""
    config = Config.model_validate(
        {"checkpoint": {"every_steps": 100, **checkpoint}, "job": {"stop_check_s": check_s}}
    )
    saver = Saver()
    made = Agreement(recorder(config, known=known), saver, STEPS, 0, Undisturbed())
    made.boundary(0)
    for step in range(1, STEPS + 1):
        if step in losses:
            made.validated(point(step, losses[step]))
        made.boundary(step)
    made.end(STEPS)
    return saver.saved


@pytest.mark.parametrize("check_s", [0.0, 1000.0])
def test_each_lowest_loss_so_far_is_saved_once(check_s):
    losses = {2: 3.0, 4: 1.0, 6: 1.0, 8: 2.0, 10: 0.5}
    assert saved(losses, check_s=check_s) == [(2, 3.0), (4, 1.0), (10, 0.5), (12, None)]


def test_each_agreement_passes_on_the_seconds_of_a_step(monkeypatch):
    told: list[float] = []
    config = Config.model_validate({"job": {"stop_check_s": 2.0}})
    now = iter(range(0, 100, 3))
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    made = Agreement(recorder(config, set_pace=told.append), Saver(), STEPS, 0, Undisturbed())
    made.boundary(0)
    made.boundary(1)
    assert told == [0.0, 3.0]


record: list[Any] = []
"""What happened in `agreements`."""


class LateResults(World):
    """A world of two ranks, the other of which requests nothing. Records when views are sent and read."""

    def of_rank0(self, value: Any) -> Any:
        return value

    def start_all_reduce_max(self, values: Sequence[float]) -> Callable[[], list[float]]:
        own = list(values)
        record.append("sent")

        def wait() -> list[float]:
            record.append("read")
            return own

        return wait


class Requests:
    """Requests to stop: none up to the step `after`."""

    def __init__(self, after: int) -> None:
        self.after = after

    def pending(self) -> int:
        steps = [entry for entry in record if isinstance(entry, int)]
        return 1 if steps and steps[-1] > self.after else 0


def agreements(
    stop_after: int = STEPS,
    every_steps: int | None = None,
    check_s: float = 0.35,
    replicas_agree: Callable[[int], bool] = lambda step: True,
) -> list[Any]:
    """What happened in steps of 0.1 s, between which the ranks agree about every `check_s`: numbers are
    steps, a cause is the end."""
    config = Config.model_validate(
        {"checkpoint": {"every_steps": every_steps}, "job": {"stop_check_s": check_s}}
    )
    world = LateResults(
        rank=0, size=2, local_rank=0, local_size=2, device=torch.device("cpu"), backend="gloo"
    )
    made = Agreement(recorder(config, world), Saver(), STEPS, 0, Requests(stop_after), replicas_agree)
    for step in range(1, STEPS + 1):
        record.append(step)
        if cause := made.boundary(step):
            return [*record, cause]
    made.end(STEPS)
    return record


@pytest.fixture
def _steps_of_a_tenth_of_a_second(monkeypatch):
    record.clear()
    now = SimpleNamespace(monotonic=lambda: max((0, *(e for e in record if isinstance(e, int)))) / 10)
    monkeypatch.setattr(agreement, "time", now)


@pytest.mark.usefixtures("_steps_of_a_tenth_of_a_second")
def test_the_view_of_short_steps_is_read_one_step_later():
    first = [1, "sent", "read", 2, 3, "sent", 4, "read", 5, 6, "sent", 7, "read", 8]
    assert agreements()[: len(first)] == first


@pytest.mark.usefixtures("_steps_of_a_tenth_of_a_second")
def test_a_request_to_stop_is_followed_on_the_step_after_the_ranks_sent_it():
    *_, step, read, cause = agreements(stop_after=4)
    assert (step, read, cause) == (7, "read", CAUSES[0])


@pytest.mark.usefixtures("_steps_of_a_tenth_of_a_second")
def test_a_checkpoint_due_by_its_step_has_an_agreement_of_its_own():
    at_four = ["sent", 4, "read", "sent", "read", 5]
    assert agreements(every_steps=4)[5 : 5 + len(at_four)] == at_four


@pytest.mark.usefixtures("_steps_of_a_tenth_of_a_second")
def test_where_replicas_differ_after_the_next_step_the_view_is_read_at_once():
    found = agreements(replicas_agree=lambda step: step % 4 == 0)
    assert found[:9] == [1, 2, 3, 4, "sent", "read", 5, 6, 7]
    assert found[9:12] == [8, "sent", "read"]


@pytest.mark.usefixtures("_steps_of_a_tenth_of_a_second")
def test_the_end_waits_for_the_agreement_under_way():
    assert agreements(check_s=1.15)[-6:] == [11, "sent", 12, "read", "sent", "read"]


def test_a_newer_attempt_is_found_in_time_late_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now = RunDir(tmp_path), 1000.0
    run.attempt(0).path.mkdir(parents=True)
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: now))
    config = Config.model_validate({"job": {"stop_check_s": 1.0}})
    attempt = AttemptWatch(run.attempt(0), lambda: now)
    made = Agreement(recorder(config, attempt_watch=attempt), Saver(), 10**6, 0, Undisturbed())

    def train(first: int, last: int) -> None:
        nonlocal now
        for step in range(first, last + 1):
            now += 1.0
            made.boundary(step)

    train(1, 2000)
    run.attempt(1).path.mkdir()
    began = now
    with pytest.raises(Superseded, match="attempt 1 of this run has begun"):
        train(2001, 2100)
    assert now - began <= SUPERSEDED_WITHIN_S


def test_losses_before_a_resume_count():
    assert saved({2: 3.0, 4: 1.0, 10: 0.5}, known=1.0) == [(10, 0.5), (12, None)]


def test_the_last_checkpoint_holds_its_validation_loss():
    assert saved({12: 3.0}, known=1.0) == [(12, 3.0)]


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_never_the_best(loss):
    assert saved({2: loss, 4: 5.0}) == [(4, 5.0), (12, None)]


def test_a_loss_belongs_to_the_checkpoint_of_its_step_alone():
    assert saved({2: 1.0, 5: 2.0}, every_steps=6) == [(2, 1.0), (6, None), (12, None)]


def test_the_best_is_saved_only_on_request():
    losses = {2: 3.0, 4: 1.0}
    assert saved(losses, best=False) == [(12, None)]
    assert saved(losses, every_steps=None) == []


@pytest.mark.parametrize(
    ("checkpoint", "steps"),
    [
        ({"every_steps": None}, [9, 12]),  # every 900 s, and the end of a run that was longer
        ({"every_steps": None, "every_s": 300, "best": False}, [3, 6, 9, 12]),
        ({"every_steps": None, "every_s": 0}, []),
        ({"every_steps": 5, "best": False}, [5, 10, 12]),
        ({"every_steps": 5, "every_s": 200, "best": False}, [2, 4, 5, 7, 9, 10, 12]),
    ],
)
def test_intervals_in_seconds(checkpoint: dict, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 100 s. Only with an interval of the user does a validation save."""
    losses: dict[int, float | None] = {step: 1 / step for step in range(1, STEPS + 1)}
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: 100.0 * next_step[0]))
    next_step = [0]

    class Counting(dict[int, float | None]):
        def __contains__(self, step: object) -> bool:
            next_step[0] += 1
            return super().__contains__(step)

    found = saved(Counting(losses), check_s=0.0, **checkpoint)
    assert [step for step, _ in found] == steps
