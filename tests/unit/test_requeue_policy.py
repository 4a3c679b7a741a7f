"""Actions and limits of the requeue policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from disttrain.config.sections.job import JobConfig
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
def test_requeued_once_without_progress(cause: str) -> None:
    assert after(start(cause)).requeue


CONTINUED = [cause for cause, rule in RULES.items() if rule.action in ("requeue", "retry")]


@pytest.mark.parametrize("cause", [cause for cause, rule in RULES.items() if rule.action == "retry"])
def test_retried_once_the_run_has_a_checkpoint(cause: str) -> None:
    assert after(start(cause, **STUCK)).requeue, "a start before this one wrote it"
    assert after(start(cause)) == RequeueDecision(False, "not requeued: the run has no checkpoint yet")


@pytest.mark.parametrize("cause", CONTINUED)
def test_failures_between_which_the_run_progresses_never_end_it(cause: str) -> None:
    assert after(*[start(cause, **SAVED)] * 50).requeue
    assert after(*[start(cause, **SAVED), start(cause, **STUCK), start(cause, **STUCK)] * 20).requeue


@pytest.mark.parametrize("cause", [cause for cause in CONTINUED if cause != "preempted"])
def test_max_attempts_in_a_row_without_a_newer_checkpoint_end_the_job(cause: str) -> None:
    saved, stuck = start(cause, **SAVED), start(cause, **STUCK)
    assert after(saved, stuck, stuck).requeue
    assert after(saved, stuck, stuck, stuck) == RequeueDecision(
        False, "not requeued: job.max_attempts=3 in a row without a newer checkpoint", limit_reached=True
    )
    assert not after(stuck, max_attempts=1).requeue


def test_requeued_once_without_the_nodes_at_fault() -> None:
    common, bad = start("preflight_failed"), JobStart("preflight_failed", None, None, excludes=True)
    assert after(common) == RequeueDecision(False, "not requeued: no node is at fault")
    assert after(bad).requeue
    again = RequeueDecision(False, "not requeued: the job was requeued for this before")
    assert after(bad, bad) == again
    assert after(bad, start("preempted"), bad) == again
    assert after(bad, start("preempted", **SAVED), bad).requeue, "the run has progressed since"
    assert not after(bad, max_attempts=1).requeue


@pytest.mark.parametrize("saved", [None, 10])
def test_preemptions_never_use_up_the_attempts(saved: int | None) -> None:
    preempted = start("preempted", checkpoint_before=saved, checkpoint_after=saved)
    lost = start("lost", checkpoint_before=saved, checkpoint_after=saved)
    assert after(*[preempted] * 50).requeue
    assert after(*[preempted, lost, preempted, preempted, lost, preempted]).requeue
    assert not after(*[lost, preempted, lost, preempted, lost]).requeue
    assert after(*[preempted] * 3, max_requeues=2).reason == "not requeued: job.max_requeues=2 reached"


def test_the_delay_doubles_with_each_preemption_without_progress() -> None:
    stuck, saved = start("preempted", **STUCK), start("preempted", **SAVED)
    delays_s = [after(*[stuck] * count).delay_s for count in range(1, 8)]
    assert delays_s == [0, 300, 600, 1200, 2400, 3600, 3600]
    assert after(stuck, stuck, saved).delay_s == 0
    assert after(stuck, saved, stuck).delay_s == 0
    assert after(stuck, start("lost", **STUCK)).delay_s == 0


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
        ("preflight_failed", RequeueDecision(False, "not requeued"), 69),
        ("preflight_failed", RequeueDecision(True), 0),
        ("crashed", RequeueDecision(False, "not requeued"), 1),
        ("cancelled", RequeueDecision(False), 1),
    ],
)
def test_exit_codes(cause: str, decision: RequeueDecision, code: int) -> None:
    assert job_exit_code(cause, decision) == code
