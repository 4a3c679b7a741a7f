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
    """A run with one submission, of number 0."""
    run = RunDir(tmp_path / "sweep" / "run")
    assert journal.entries(run) == []
    journal.write_intent(run, {"cluster": "local"})
    return run


def claim(run: RunDir, number: int = 0, restart: int = 0) -> int | None:
    return journal.claim(run, number, process=ME, job_id="7", code_hash="c0de", restart=restart)


def restarts(run: RunDir) -> list[int]:
    return [each["restart"] for each in journal.entry(run, 0).claims()]


def test_entries_in_order_with_their_parts(run: RunDir) -> None:
    assert journal.write_intent(run, {}) == 1
    journal.write_receipt(run, 0, "host:12")
    (run.submissions / "0000.log").touch()
    (run.submissions / "submitit").mkdir()
    first, second = journal.entries(run)
    assert [(each.number, each.parts) for each in (first, second)] == [
        (0, {"intent", "receipt"}),
        (1, {"intent"}),
    ]
    assert (first.read("receipt") or {})["job_id"] == "host:12"
    assert second.read("receipt") is None
    first.path("intent").write_text("{")
    with pytest.raises(CorruptFile, match=str(first.path("intent"))):
        first.read("intent")


def test_a_claim_or_a_revocation_is_made_once_and_excludes_the_other(run: RunDir) -> None:
    assert [claim(run), claim(run)] == [0, None]
    assert not journal.revoke(run, 0, "lost", "too late")
    journal.write_intent(run, {})
    assert [journal.revoke(run, 1, cause, "why") for cause in ("cancelled", "lost")] == [True, True]
    assert claim(run, 1) is None
    assert journal.entry(run, 1).claims()[0]["cause"] == "cancelled", "a second revocation changes nothing"
    assert [journal.is_revoked(journal.entry(run, number).claims()) for number in (0, 1)] == [False, True]


def test_each_start_of_a_job_has_a_claim_and_older_copies_are_superseded(run: RunDir) -> None:
    assert [claim(run, restart=restart) for restart in (1, 0, 1, 2, 5)] == [0, None, None, 1, 2]
    (entry,) = journal.entries(run)
    assert entry.parts == {"intent", "claim", "claim-001", "claim-002"}
    assert restarts(run) == [each["restart"] for each in entry.claims()] == [1, 2, 5]


def test_a_job_that_waits_for_its_requeue_can_be_revoked_unless_it_was_started_again(run: RunDir) -> None:
    claim(run)
    journal.write_intent(run, {})
    claim(run, 1)
    claim(run, 1, restart=1)
    assert [journal.revoke(run, number, "cancelled", "why", starts=1) for number in (0, 0, 1)] == [
        True,
        True,
        False,
    ]
    assert claim(run, restart=1) is None
    assert claim(run, 1, restart=2) == 3


def test_two_starts_never_get_the_same_claim(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start claims between the reading of the claims and the claim."""
    real = journal.create_exclusive
    claimed: list[bool] = []

    def overtaken(path: Path, value: Any) -> bool:
        if not claimed:
            claimed.append(True)
            assert claim(run, restart=0) == 0
        return real(path, value)

    monkeypatch.setattr(journal, "create_exclusive", overtaken)
    assert claim(run, restart=1) == 1
    assert restarts(run) == [0, 1]


def test_attempts_count_claims_and_folders_and_not_submissions(run: RunDir) -> None:
    for _ in range(2):
        journal.write_intent(run, {})
    assert claim(run, 0) == 0
    journal.revoke(run, 1, "lost", "never started")
    assert claim(run, 2) == 1
    assert journal.next_attempt(run) == 2
    run.attempt(4).path.mkdir(parents=True)
    assert journal.next_attempt(run) == 5
