"""Actions and limits of the requeue policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from disttrain.config.keys_and_defaults import JobConfig
from disttrain.records.exit_causes import Cause
from jobs.core import requeue_policy
from jobs.core.requeue_policy import RULES, JobStart, RequeueDecision, decide_requeue, job_exit_code

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "requeue.md"
SAVED = {"checkpoint_before": 10, "checkpoint_after": 20}
STUCK = {"checkpoint_before": 10, "checkpoint_after": 10}


def start(cause: str, **steps: int | None) -> JobStart:
    return JobStart(cause, **({"checkpoint_before": None, "checkpoint_after": None} | steps))


def after(*starts: JobStart, max_attempts: int = 3, max_requeues: int = 100) -> RequeueDecision:
    return decide_requeue(starts, max_attempts=max_attempts, max_requeues=max_requeues)


def test_every_cause_has_a_rule() -> None:
    assert set(RULES) == set(get_args(Cause))


def test_the_table_of_the_document_equals_the_rules() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([\w ]+) \| (yes|no) \|", DOCUMENT.read_text(), re.MULTILINE)
    said = {cause: requeue_policy.RequeueRule(then, again == "yes") for cause, then, again in rows}
    assert said == RULES
    for name in ("DONE", "FAILED", "LAUNCH_FAILED", "NOT_REQUEUED", "DO_NOT_REQUEUE"):
        assert f"| {getattr(requeue_policy, f'EXIT_{name}')} |" in DOCUMENT.read_text()


def test_a_plan_without_max_requeues_has_the_default() -> None:
    assert JobConfig().max_requeues == requeue_policy.DEFAULT_MAX_REQUEUES


@pytest.mark.parametrize("cause", [cause for cause, rule in RULES.items() if rule.action == "end"])
def test_a_cause_that_ends_the_job(cause: str) -> None:
    assert not after(start(cause, **SAVED)).requeue


@pytest.mark.parametrize("cause", [cause for cause, rule in RULES.items() if rule.action == "requeue"])
def test_requeued_as_often_as_needed(cause: str) -> None:
    assert after(*[start(cause, **SAVED)] * 50).requeue
    assert after(start(cause)).requeue, "once without progress may be bad luck"


@pytest.mark.parametrize("cause", [cause for cause, rule in RULES.items() if rule.action == "retry"])
def test_retried_within_max_attempts_after_a_checkpoint(cause: str) -> None:
    failed = start(cause, **SAVED)
    assert after(failed, failed).requeue
    assert after(failed, failed, failed) == RequeueDecision(
        False, "not requeued: job.max_attempts=3 reached", limit_reached=True
    )
    assert not after(start(cause)).requeue
    assert after(start(cause)).reason == "not requeued: this start wrote no checkpoint"


def test_graceful_stops_do_not_count_as_failures() -> None:
    assert after(*[start("deadline", **SAVED)] * 9, start("crashed", **SAVED)).requeue


def test_a_failed_launch_is_retried_if_the_run_has_a_checkpoint() -> None:
    assert after(start("deadline", **SAVED), start("launch_failed", **STUCK)).requeue
    assert not after(start("launch_failed")).requeue
    assert not after(start("deadline", **SAVED), start("crashed", **STUCK)).requeue


def test_three_starts_without_a_new_checkpoint_end_the_job() -> None:
    stuck = start("preempted", **STUCK)
    assert after(stuck, stuck).requeue
    assert after(stuck, stuck, start("preempted", **SAVED), stuck, stuck).requeue
    given_up = after(start("preempted", **SAVED), stuck, start("lost", **STUCK), stuck)
    assert given_up == RequeueDecision(
        False, "not requeued: 3 starts in a row without a newer checkpoint", limit_reached=True
    )


def test_requeues_are_bounded() -> None:
    saved = start("deadline", **SAVED)
    assert after(*[saved] * 2, max_requeues=2).requeue
    assert after(*[saved] * 3, max_requeues=2).reason == "not requeued: job.max_requeues=2 reached"
    assert not after(saved, max_requeues=0).requeue


@pytest.mark.parametrize(
    ("cause", "decision", "code"),
    [
        ("finished", RequeueDecision(False), 0),
        ("stopped", RequeueDecision(False), 0),
        ("deadline", RequeueDecision(True), 0),
        ("deadline", RequeueDecision(False, "not requeued: a limit", limit_reached=True), 93),
        ("refused", RequeueDecision(False), 93),
        ("out_of_memory", RequeueDecision(False), 93),
        ("launch_failed", RequeueDecision(False, "not requeued"), 69),
        ("crashed", RequeueDecision(False, "not requeued"), 1),
        ("cancelled", RequeueDecision(False), 1),
    ],
)
def test_exit_codes(cause: str, decision: RequeueDecision, code: int) -> None:
    assert job_exit_code(cause, decision) == code
