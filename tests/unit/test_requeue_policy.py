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
CONTINUED = [cause for cause, rule in RULES.items() if rule.action in ("requeue", "retry")]


def saved(cause: str) -> JobStart:
    return JobStart(cause, 10, 20)


def stuck(cause: str) -> JobStart:
    return JobStart(cause, 10, 10)


def without(cause: str, excludes: bool = False) -> JobStart:
    """A start of a run that has no checkpoint."""
    return JobStart(cause, None, None, excludes)


def after(*starts: JobStart, max_attempts: int = 3, max_requeues: int = 100) -> RequeueDecision:
    return decide_requeue(starts, max_attempts=max_attempts, max_requeues=max_requeues)


def test_the_table_of_the_document_equals_the_rules():
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([\w ]+) \| (yes|no) \|", text, re.MULTILINE)
    assert {cause: requeue_policy.RequeueRule(then, again == "yes") for cause, then, again in rows} == RULES
    assert set(RULES) == set(get_args(Cause))
    for name in ("DONE", "FAILED", "LAUNCH_FAILED", "NOT_REQUEUED", "DO_NOT_REQUEUE"):
        assert f"| {getattr(requeue_policy, f'EXIT_{name}')} |" in text


def test_a_plan_without_max_requeues_has_the_default():
    assert JobConfig().max_requeues == requeue_policy.DEFAULT_MAX_REQUEUES


@pytest.mark.parametrize("cause", RULES)
def test_the_action_of_each_cause(cause):
    decisions = [after(start(cause)).requeue for start in (without, stuck, saved)]
    expected = {"requeue": [True] * 3, "retry": [False, True, True]}
    assert decisions == expected.get(RULES[cause].action, [False] * 3)


@pytest.mark.parametrize("cause", CONTINUED)
def test_only_failures_in_a_row_without_a_newer_checkpoint_use_up_the_attempts(cause):
    progress, failure = saved(cause), stuck(cause)
    assert after(*[progress, failure, failure] * 20).requeue
    assert after(progress, failure, failure, failure) == (
        RequeueDecision(True, delay_s=600.0)
        if cause == "preempted"
        else RequeueDecision(
            False, "not requeued: job.max_attempts=3 in a row without a newer checkpoint", limit_reached=True
        )
    )


def test_preemptions_among_failures_neither_count_nor_end_the_sequence():
    preempted, lost = without("preempted"), without("lost")
    assert after(preempted, lost, preempted, preempted, lost, preempted).requeue
    assert not after(lost, preempted, lost, preempted, lost).requeue


def test_requeued_once_without_the_nodes_at_fault():
    bad = without("preflight_failed", excludes=True)
    assert after(bad).requeue
    assert not after(bad, bad).requeue
    assert not after(bad, stuck("preempted"), bad).requeue
    assert after(bad, saved("preempted"), bad).requeue, "the run has progressed since"
    assert not after(bad, max_attempts=1).requeue


def test_the_delay_doubles_with_each_preemption_without_progress():
    failure, progress = stuck("preempted"), saved("preempted")
    assert [after(*[failure] * count).delay_s for count in range(1, 8)] == [
        0,
        300,
        600,
        1200,
        2400,
        3600,
        3600,
    ]
    for starts in ([failure, failure, progress], [failure, progress, failure], [failure, stuck("lost")]):
        assert after(*starts).delay_s == 0


def test_requeues_are_bounded():
    for start in (saved("deadline"), without("preempted")):
        assert after(*[start] * 2, max_requeues=2).requeue
        limited = after(*[start] * 3, max_requeues=2)
        assert (limited.requeue, limited.limit_reached) == (False, True)


@pytest.mark.parametrize(
    ("cause", "decision", "code"),
    [
        ("finished", RequeueDecision(False), 0),
        ("stopped", RequeueDecision(False), 0),
        ("deadline", RequeueDecision(True), 0),
        ("deadline", RequeueDecision(False, limit_reached=True), 93),
        ("refused", RequeueDecision(False), 93),
        ("launch_failed", RequeueDecision(False), 69),
        ("preflight_failed", RequeueDecision(False), 69),
        ("preflight_failed", RequeueDecision(True), 0),
        ("crashed", RequeueDecision(False), 1),
        ("cancelled", RequeueDecision(False), 1),
    ],
)
def test_exit_codes(cause, decision, code):
    assert job_exit_code(cause, decision) == code
