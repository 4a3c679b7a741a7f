"""Transient errors of sbatch, and retries after them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from jobs.schedulers.interface import SubmitError, Unreachable
from jobs.schedulers.slurm.executor import TRANSIENT, Backoff, submit_with_backoff

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
    assert TRANSIENT.search(message)


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
    assert not TRANSIENT.search(message)


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
