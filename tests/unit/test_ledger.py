"""The submission journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.rundir import CorruptFile, RunDir
from jobs import ledger

ME = {"host": "here", "boot": "b", "pid": 1, "start_ticks": 1}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "sweep" / "run")


def claim(run: RunDir, number: int) -> int | None:
    return ledger.claim(run, number, process=ME, job_id="7", code_hash="c0de")


def test_an_empty_run_has_no_entries(run: RunDir) -> None:
    assert ledger.entries(run) == []


def test_entries_in_order_with_their_parts(run: RunDir) -> None:
    assert [ledger.write_intent(run, {"cluster": "local"}) for _ in range(2)] == [0, 1]
    ledger.write_receipt(run, 0, "host:12")
    (run.submissions / "0000.log").touch()
    (run.submissions / "submitit").mkdir()
    first, second = ledger.entries(run)
    assert (first.number, first.parts) == (0, {"intent", "receipt"})
    assert (second.number, second.parts) == (1, {"intent"})
    assert first.read("receipt")["job_id"] == "host:12"  # type: ignore[index]
    assert second.read("receipt") is None


def test_a_claim_is_made_once(run: RunDir) -> None:
    number = ledger.write_intent(run, {})
    assert claim(run, number) == 0
    assert claim(run, number) is None


def test_a_revoked_submission_cannot_be_claimed(run: RunDir) -> None:
    number = ledger.write_intent(run, {})
    assert ledger.revoke(run, number, "cancelled", "by the user")
    assert claim(run, number) is None
    assert ledger.revoke(run, number, "lost", "again"), "a second revocation changes nothing"
    assert ledger.entry(run, number).read("claim")["cause"] == "cancelled"  # type: ignore[index]


def test_a_claimed_submission_cannot_be_revoked(run: RunDir) -> None:
    number = ledger.write_intent(run, {})
    claim(run, number)
    assert not ledger.revoke(run, number, "lost", "too late")


def test_attempts_count_claims_not_submissions(run: RunDir) -> None:
    for _ in range(3):
        ledger.write_intent(run, {})
    assert claim(run, 0) == 0
    ledger.revoke(run, 1, "lost", "never showed up")
    assert claim(run, 2) == 1
    assert ledger.next_attempt(run) == 2


def test_an_attempt_folder_counts_even_if_its_claim_is_gone(run: RunDir) -> None:
    run.attempt(4).path.mkdir(parents=True)
    assert ledger.next_attempt(run) == 5


def test_a_corrupt_part_names_its_file(run: RunDir) -> None:
    number = ledger.write_intent(run, {})
    path = ledger.entry(run, number).path("intent")
    path.write_text("{")
    with pytest.raises(CorruptFile, match=str(path)):
        ledger.entry(run, number).read("intent")
