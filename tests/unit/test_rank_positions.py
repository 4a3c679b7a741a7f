"""The rank that the other ranks wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.core.rank_positions import RankPosition, describe_hang, silent_rank

WAITS = RankPosition(0, "step", 56, 65.0, 60.0, waiting=True, stopped=False, where="trainer.py:9 in backward")
ELSEWHERE = replace(WAITS, rank=3, waiting=False, where="loader.py:57 in __next__")
STOPPED = replace(WAITS, rank=5, stopped=True)
NOT_DETERMINED = "of step 57 for 65 s; the rank that hung is not determined"


@pytest.mark.parametrize(
    ("positions", "silent", "says"),
    [
        ([WAITS, replace(WAITS, rank=1)], None, "all ranks waited for each other in a collective of step 57"),
        ([WAITS, ELSEWHERE], 3, "rank 3 was in step 57 for 65 s, at loader.py:57 in __next__"),
        ([WAITS, ELSEWHERE, STOPPED], 5, "rank 5 stopped: no heartbeat for 65 s, in step 57"),
        ([WAITS, replace(WAITS, rank=7, step=55)], 7, "rank 7 was in step 56"),
        ([WAITS, ELSEWHERE, replace(ELSEWHERE, rank=2, step=55)], 2, "rank 2 was in step 56"),
        (
            [WAITS, ELSEWHERE, replace(ELSEWHERE, rank=2)],
            None,
            f"2 ranks were outside of a collective {NOT_DETERMINED}",
        ),
        (
            [STOPPED, ELSEWHERE, replace(STOPPED, rank=4)],
            None,
            "2 ranks stopped: no heartbeat for 65 s, in step 57",
        ),
        (
            [WAITS, replace(WAITS, rank=6, step=55), replace(WAITS, rank=7, step=55)],
            None,
            "2 ranks were in a collective of step 56 for 65 s",
        ),
        ([replace(WAITS, phase="checkpoint"), replace(ELSEWHERE, phase="checkpoint")], 3, "checkpoint after"),
    ],
)
def test_the_silent_rank(positions: list[RankPosition], silent: int | None, says: str) -> None:
    found = silent_rank(positions)
    assert (found and found.rank) == silent
    assert says in describe_hang(positions)


def test_a_node_without_any_sign() -> None:
    assert describe_hang([WAITS], [2, 1]).startswith("node 1 gave no sign, while the other ranks waited in a")
    assert "rank 3" in describe_hang([WAITS, ELSEWHERE], [2]), "a rank that is known to hang comes first"
    either = [ELSEWHERE, replace(ELSEWHERE, rank=2)]
    assert describe_hang(either, [1]).endswith("gave no sign, while the other ranks were in step 57 for 65 s")
