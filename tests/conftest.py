"""Fixtures of several test folders, and the lanes in which `pytest -n 2 --dist loadgroup` runs the tests."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from tests.support.ranks import Ranks

pytest.register_assert_rewrite("tests.support.truth")

SHARED = {
    "accounted": "accounted-cluster",
    "unaccounted": "plain-cluster",
    "two_ranks": "ranks",
    "three_ranks": "ranks",
    "four_ranks": "ranks",
    "can_have_clusters": "own-cluster",
}
"""Fixtures that take seconds to set up, and the group of the tests that use each; the first match counts."""
LONGEST_FIRST = ["accounted-cluster", "ranks", "plain-cluster", "own-cluster", "tests/multiprocess"]


def pytest_configure(config: pytest.Config) -> None:
    """Register pytest-xdist's marker, which is missing under `-p no:xdist`."""
    config.addinivalue_line("markers", "xdist_group(name): tests that share a process under pytest-xdist")


def group_of(item: pytest.Item) -> str:
    """Tests of a group run one after the other in one process, so that what they share is set up once."""
    names = getattr(item, "fixturenames", ())
    module = item.nodeid.partition("::")[0]
    return next((group for fixture, group in SHARED.items() if fixture in names), module)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its group, and put long groups first: a long one begun last would run alone."""

    def place(item: pytest.Item) -> int:
        group = groups[item]
        return next(
            (n for n, start in enumerate(LONGEST_FIRST) if group.startswith(start)), len(LONGEST_FIRST)
        )

    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def own_queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A queue of local runs that no other process of this user waits in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path_factory.mktemp("queue")))
        yield


def _ranks(size: int, nodes: int) -> Iterator[Ranks]:
    ranks = Ranks(size, nodes)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two gloo ranks, standing for two nodes of one rank."""
    yield from _ranks(2, nodes=2)


@pytest.fixture(scope="session")
def three_ranks() -> Iterator[Ranks]:
    """Three gloo ranks on one node: the fewest at which the order of summation shows."""
    yield from _ranks(3, nodes=1)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four gloo ranks, standing for four nodes of one rank."""
    yield from _ranks(4, nodes=4)


def pytest_sessionfinish() -> None:
    """End loader processes that a failed test left: they ignore SIGTERM, and Python would wait for them."""
    for child in multiprocessing.active_children():
        child.kill()
