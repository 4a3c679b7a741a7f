"""Fixtures of several test folders, and how `pytest -n 2` divides the tests among two processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.ranks import Ranks

SLOW_TIMEOUT_S = 300
"""Time limit of a test that is marked slow; of all others it is `timeout` in pyproject.toml."""

pytest.register_assert_rewrite("tests.support.injected_delays", "tests.support.requeued")


class FolderScheduling(LoadScopeScheduling):
    """Run the tests of a folder one after the other in one process, those of tests/unit file by file.

    Session fixtures, that is clusters and ranks, then come up once, and tests that wait for Slurm run beside
    tests that compute.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return file if folder == "tests/unit" else folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests their time limit, unless they have one of their own."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


@pytest.hookimpl(optionalhook=True)  # collection works under `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FolderScheduling:
    """The scheduler of `pytest -n 2`, in place of pytest-xdist's own."""
    return FolderScheduling(config, log)


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
