"""The submission journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import CorruptFile
from disttrain.records.run_directory import RunDir
from jobs.core import journal

ME = {"host": "here", "boot": "b", "pid": 1, "start_ticks": 1}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "sweep" / "run")


def claim(run: RunDir, number: int, restart: int = 0) -> int | None:
    return journal.claim(run, number, process=ME, job_id="7", code_hash="c0de", restart=restart)


def test_an_empty_run_has_no_entries(run: RunDir) -> None:
    assert journal.entries(run) == []


def test_entries_in_order_with_their_parts(run: RunDir) -> None:
    assert [journal.write_intent(run, {"cluster": "local"}) for _ in range(2)] == [0, 1]
    journal.write_receipt(run, 0, "host:12")
    (run.submissions / "0000.log").touch()
    (run.submissions / "submitit").mkdir()
    first, second = journal.entries(run)
    assert (first.number, first.parts) == (0, {"intent", "receipt"})
    assert (second.number, second.parts) == (1, {"intent"})
    assert first.read("receipt")["job_id"] == "host:12"  # type: ignore[index]
    assert second.read("receipt") is None


def test_a_claim_is_made_once(run: RunDir) -> None:
    number = journal.write_intent(run, {})
    assert claim(run, number) == 0
    assert claim(run, number) is None


def test_a_revoked_submission_cannot_be_claimed(run: RunDir) -> None:
    number = journal.write_intent(run, {})
    assert journal.revoke(run, number, "cancelled", "by the user")
    assert claim(run, number) is None
    assert journal.revoke(run, number, "lost", "again"), "a second revocation changes nothing"
    assert journal.entry(run, number).read("claim")["cause"] == "cancelled"  # type: ignore[index]


def test_a_claimed_submission_cannot_be_revoked(run: RunDir) -> None:
    number = journal.write_intent(run, {})
    claim(run, number)
    assert not journal.revoke(run, number, "lost", "too late")


def test_each_start_of_a_job_has_a_claim(run: RunDir) -> None:
    number = journal.write_intent(run, {})
    assert [claim(run, number, restart) for restart in (0, 1, 3)] == [0, 1, 2]
    (entry,) = journal.entries(run)
    assert entry.parts == {"intent", "claim", "claim-001", "claim-002"}
    assert [made["restart"] for made in entry.claims()] == [0, 1, 3]
    assert journal.entry(run, number).claims() == entry.claims()


def test_an_older_copy_of_a_job_is_superseded(run: RunDir) -> None:
    number = journal.write_intent(run, {})
    assert claim(run, number, restart=1) == 0
    assert claim(run, number, restart=0) is None  # it was frozen before it could claim
    assert claim(run, number, restart=1) is None
    assert claim(run, number, restart=2) == 1


def test_a_job_that_waits_for_its_requeue_can_be_revoked(run: RunDir) -> None:
    number = journal.write_intent(run, {})
    claim(run, number)
    assert journal.revoke(run, number, "cancelled", "by the user", starts=1)
    assert claim(run, number, restart=1) is None
    assert journal.revoke(run, number, "lost", "again", starts=1), "a second revocation changes nothing"


def test_a_job_that_was_started_again_meanwhile_cannot_be_revoked(run: RunDir) -> None:
    number = journal.write_intent(run, {})
    claim(run, number)
    claim(run, number, restart=1)
    assert not journal.revoke(run, number, "cancelled", "too late", starts=1)
    assert not journal.is_revoked(journal.entry(run, number).claims())


def test_two_starts_never_get_the_same_claim(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody claims between the look at the claims and the claim."""
    number = journal.write_intent(run, {})
    real, claimed = journal.create_exclusive, []

    def overtaken(path: Path, value: Any) -> bool:
        if not claimed:
            claimed.append("restart 0")
            assert claim(run, number, restart=0) == 0
        return real(path, value)

    monkeypatch.setattr(journal, "create_exclusive", overtaken)
    assert claim(run, number, restart=1) == 1
    assert [made["restart"] for made in journal.entry(run, number).claims()] == [0, 1]


def test_attempts_count_claims_not_submissions(run: RunDir) -> None:
    for _ in range(3):
        journal.write_intent(run, {})
    assert claim(run, 0) == 0
    journal.revoke(run, 1, "lost", "never showed up")
    assert claim(run, 2) == 1
    assert journal.next_attempt(run) == 2


def test_an_attempt_folder_counts_without_its_claim(run: RunDir) -> None:
    run.attempt(4).path.mkdir(parents=True)
    assert journal.next_attempt(run) == 5


def test_a_corrupt_part_names_its_file(run: RunDir) -> None:
    number = journal.write_intent(run, {})
    path = journal.entry(run, number).path("intent")
    path.write_text("{")
    with pytest.raises(CorruptFile, match=str(path)):
        journal.entry(run, number).read("intent")
