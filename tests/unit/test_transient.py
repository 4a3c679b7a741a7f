"""Trouble that passes, and limits, as Slurm words them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from jobs.schedulers.base import SubmitError, SubmitQuota, Unreachable
from jobs.schedulers.slurm import submit_quota
from jobs.schedulers.slurm.sbatch import Backoff, is_transient, submit_with_backoff
from jobs.schedulers.slurm.submit_quota import ControllerLimits, exceeded_limit, parse_config

BUSY = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@pytest.mark.parametrize(
    "message",
    [
        BUSY,
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Slurm backup controller in standby mode",
    ],
)
def test_what_passes(message: str) -> None:
    assert is_transient(message)


@pytest.mark.parametrize(
    "message",
    [
        "sbatch: error: invalid partition specified: nowhere",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
        "user's size and/or time limits)",
    ],
)
def test_what_does_not(message: str) -> None:
    assert not is_transient(message)


@dataclass
class Slurm:
    """Answers in turn: `sbatch` with a refusal or an id, `find` with a job, nothing or silence."""

    sbatch: list[str]
    found: list[str | None] = field(default_factory=list)
    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def submit(self) -> str:
        answer = self.sbatch.pop(0)
        if " " in answer:
            raise SubmitError(answer)
        return answer

    def find(self) -> str | None:
        answer = self.found.pop(0)
        if answer == "silence":
            raise Unreachable("the Slurm controller does not answer")
        return answer

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now += pause_s

    def patiently(self, within_s: float = 100.0) -> str:
        patience = Backoff(within_s, 1.0, 8.0, clock=lambda: self.now, sleep=self.sleep)
        return submit_with_backoff(self.submit, self.find, patience)


def test_what_passes_is_tried_again_ever_more_slowly(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm([BUSY] * 5 + ["42"], [None] * 5)
    assert slurm.patiently() == "42"
    for pause_s, most_s in zip(slurm.pauses, [1, 2, 4, 8, 8], strict=True):
        assert most_s / 2 <= pause_s <= most_s
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 5
    assert "Socket timed out" in said[0]
    assert "trying again in" in said[0]


def test_a_job_that_is_there_after_all_is_not_made_again() -> None:
    assert Slurm([BUSY], ["42"]).patiently() == "42"


def test_nothing_is_submitted_while_nobody_says_whether_there_is_a_job() -> None:
    assert Slurm([BUSY], ["silence", "silence", "42"]).patiently() == "42"


def test_a_final_refusal_is_not_tried_again() -> None:
    slurm = Slurm(["invalid partition specified"])
    with pytest.raises(SubmitError, match="partition"):
        slurm.patiently()
    assert slurm.pauses == []
    slurm = Slurm([BUSY, "invalid partition specified"], [None])
    with pytest.raises(SubmitError, match="partition"):
        slurm.patiently()


def test_patience_has_an_end() -> None:
    slurm = Slurm([BUSY] * 100, [None] * 100)
    with pytest.raises(Unreachable, match="Socket timed out"):
        slurm.patiently(within_s=60)
    assert 40 < slurm.now <= 60


CONFIG = """\
Configuration data as of 2026-11-21T04:58:20
AccountingStorageEnforce = associations,limits
ClusterName             = big
MaxArraySize            = 1001
MaxJobCount             = 10000
SchedulerParameters     = bf_interval=2,max_array_tasks=200
"""


def test_what_the_controller_says_of_its_limits() -> None:
    assert parse_config(CONFIG) == ControllerLimits(array=200, jobs=10000)
    without = CONFIG.replace(",max_array_tasks=200", "")
    assert parse_config(without) == ControllerLimits(array=1001, jobs=10000)
    assert parse_config("") == ControllerLimits()


ANSWERS = {"scontrol show config": CONFIG, "squeue --noheader --array --states=all": "1\n2_0\n2_1\n"}


def answer(command: list[str]) -> str | None:
    return next((said for start, said in ANSWERS.items() if " ".join(command).startswith(start)), None)


@pytest.mark.parametrize(
    ("answers", "ask", "quota"),
    [
        (True, answer, SubmitQuota(200, 9997, "the limit of 10000 jobs (MaxJobCount of the cluster)")),
        (True, lambda command: None, SubmitQuota()),
        (False, answer, SubmitQuota(submit_quota.DEFAULT_ARRAY)),
    ],
    ids=["answered", "no answer to a query", "no controller"],
)
def test_the_quota_is_what_the_controller_says(
    answers: bool, ask: Callable[[list[str]], str | None], quota: SubmitQuota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_quota.commands, "answers", lambda: answers)
    monkeypatch.setattr(submit_quota.commands, "ask", ask)
    assert submit_quota.quota() == quota


POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("named", "limit"),
    [
        ("AssocMaxSubmitJobLimit", "the limit of jobs (AssocMaxSubmitJobLimit)"),
        ("QOSMaxSubmitJobPerUserLimit", "the limit of jobs (QOSMaxSubmitJobPerUserLimit)"),
        ("QOSGrpSubmitJobsLimit", "the limit of jobs (QOSGrpSubmitJobsLimit)"),
        ("QOSMaxWallDurationPerJobLimit", None),
        ("AssocMaxCpuPerJobLimit", None),
        ("QOSMinGRES", None),
    ],
)
def test_a_refusal_that_speaks_of_a_limit(named: str, limit: str | None) -> None:
    said = f"sbatch: error: {named} sbatch: error: Batch job submission failed: {POLICY}"
    assert exceeded_limit(said) == limit


def test_a_refusal_without_the_name_of_a_limit() -> None:
    assert exceeded_limit(f"sbatch: error: Batch job submission failed: {POLICY}") == "the limit of jobs"
    assert exceeded_limit("sbatch: error: invalid partition specified: nowhere") is None
