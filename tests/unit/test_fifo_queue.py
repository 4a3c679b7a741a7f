"""The queue of this host."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from jobs.schedulers.local import fifo_queue
from tests.support.jobs import in_a_fork, wait_for, wait_until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    return tmp_path / "queue"


def test_tickets_only_grow_also_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fifo_queue.take({})
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert fifo_queue.take({}) == first + 1


def test_the_folder_is_ours_alone(folder: Path) -> None:
    fifo_queue.take({})
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(fifo_queue.QueueFolderError, match="only user"):
        fifo_queue.take({})


def test_a_folder_that_cannot_be_used_is_bad_input(folder: Path) -> None:
    folder.mkdir()
    (folder / "counter").mkdir()
    with pytest.raises(ConfigError, match=r"cannot use .*: Is a directory"):
        fifo_queue.take({})
    (folder / "counter").rmdir()
    folder.rmdir()
    folder.touch()
    with pytest.raises(ConfigError, match=r"cannot use .*: File exists"):
        fifo_queue.find({})


def test_places() -> None:
    ticket = fifo_queue.take({"for": "a"})
    assert fifo_queue.ticket_state(ticket) == "expected"
    assert fifo_queue.find({"for": "a"}) is None, "nobody has shown up"
    with fifo_queue.hold(ticket) as held:
        assert held is not None
        assert fifo_queue.ticket_state(ticket) == "held"
        assert fifo_queue.find({"for": "a"}) == ticket
    assert fifo_queue.ticket_state(ticket) == "expired"


def test_a_ticket_thrown_away_cannot_be_held() -> None:
    ticket = fifo_queue.take({})
    fifo_queue.discard(ticket)
    with fifo_queue.hold(ticket) as held:
        assert held is None


def test_the_first_need_not_wait() -> None:
    with fifo_queue.hold(fifo_queue.take({})) as held:
        assert held is not None
        held.wait_turn()


def test_turns_come_in_the_order_of_tickets(tmp_path: Path) -> None:
    """Whatever the order in which the jobs show up."""
    tickets = [fifo_queue.take({}) for _ in range(4)]
    order = tmp_path / "order"

    def go(ticket: int) -> None:
        with fifo_queue.hold(ticket) as held:
            assert held is not None
            held.wait_turn()
            with open(order, "a") as file:
                file.write(f"{ticket}\n")

    pids = []
    for ticket in reversed(tickets):
        pids.append(in_a_fork(lambda ticket=ticket: go(ticket)))
    assert [wait_for(pid) for pid in pids] == [0] * 4
    assert [int(line) for line in order.read_text().split()] == tickets
    assert not list((tmp_path / "queue").glob("*.ticket"))


def test_a_dead_job_frees_the_queue() -> None:
    first, second = fifo_queue.take({}), fifo_queue.take({})

    def die() -> None:
        with fifo_queue.hold(first):
            os._exit(9)

    assert wait_for(in_a_fork(die)) == 9
    with fifo_queue.hold(second) as held:
        assert held is not None
        held.wait_turn()
    assert fifo_queue.ticket_state(first) == "expired"


def test_a_job_that_never_shows_up_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    absent, ticket = fifo_queue.take({}), fifo_queue.take({})
    monkeypatch.setattr(fifo_queue, "GRACE_S", -1.0)
    with fifo_queue.hold(ticket) as held:
        assert held is not None
        held.wait_turn()
    with fifo_queue.hold(absent) as held:
        assert held is None


def test_a_settled_job_is_not_waited_for_at_all(tmp_path: Path) -> None:
    fifo_queue.take({"settled_by": str(tmp_path / "claim")})
    ticket = fifo_queue.take({})

    def go() -> None:
        with fifo_queue.hold(ticket) as held:
            assert held is not None
            held.wait_turn()

    pid = in_a_fork(go)
    wait_until(lambda: fifo_queue.ticket_state(ticket) == "held")
    (tmp_path / "claim").touch()
    assert wait_for(pid) == 0
