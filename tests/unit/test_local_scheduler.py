"""The local cluster without a job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from disttrain.records.run_directory import RunDir
from jobs.core import journal, processes
from jobs.schedulers.interface import Submission
from jobs.schedulers.local import fifo_queue
from jobs.schedulers.local.scheduler import LocalScheduler, ticket_label


def test_a_job_that_ends_while_it_is_cancelled_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    run = RunDir(tmp_path / "demo" / "a")
    ended = processes.current_process().as_dict() | {"pid": 2**22 + 1}  # no pid is as high
    journal.write_holder(run, 0, ended)
    monkeypatch.setattr(processes, "is_alive", lambda recorded: True)  # so it was a moment ago
    LocalScheduler().cancel({f"{processes.host()}:{fifo_queue.take(ticket_label(run, 0))}": None})


def test_a_command_of_older_code_waits_in_the_queue_and_imports_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    older = tmp_path / "code"
    (older / "jobs").mkdir(parents=True)
    (older / "jobs" / "__init__.py").touch()  # without the modules of this code
    (older / "submit.py").write_text(
        "import jobs, pathlib, sys\npathlib.Path(sys.argv[1]).write_text(jobs.__file__)\n"
    )
    journal_dir, written = RunDir(tmp_path / "demo" / ".report"), tmp_path / "written"
    journal_dir.submissions.mkdir(parents=True)
    job = Submission(journal_dir, 0, "tag")
    LocalScheduler().submit_after(job, [str(older / "submit.py"), str(written)], [], None)
    deadline = time.monotonic() + 60
    while list((tmp_path / "queue").glob("*.ticket")) and time.monotonic() < deadline:
        time.sleep(0.05)
    log = (journal_dir.submissions / "0000.log").read_text()
    assert written.exists(), log
    assert written.read_text() == str(older / "jobs" / "__init__.py")
