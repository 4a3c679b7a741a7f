"""Fixtures that several test modules share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from tests.support.ranks import Ranks

pytest.register_assert_rewrite("tests.support.truth")


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
