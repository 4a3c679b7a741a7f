"""The local cluster without a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.run_directory import RunDir
from jobs.core import journal, processes
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
    LocalScheduler().cancel([f"{processes.host()}:{fifo_queue.take(ticket_label(run, 0))}"])
