"""Fixtures of several test folders, and how `pytest -n` divides the tests among processes."""

from __future__ import annotations

import functools
import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from jobs.core import code_copy
from tests.support.installed import build
from tests.support.linked_code import LinkedCode
from tests.support.ranks import Ranks
from tests.support.skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401

SLOW_TIMEOUT_S = 600
"""Time limit of a test that is marked slow."""
REAL_TIMEOUT_S = 300
"""Time limit of another test with several ranks or a real Slurm, which other work on the machine slows down
most; of all other tests it is `timeout` in pyproject.toml."""

pytest.register_assert_rewrite("tests.support.injected_delays", "tests.support.requeued")
# Other work may slow an example down.
settings.register_profile(
    "any speed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any speed")


_ROOT = Path(__file__).parents[1]
_RANKS = re.compile(r"\b(?:two|three|four)_ranks\b")


@functools.cache
def scope_of(file: str) -> str:
    """Tests of one scope run in one process, one after the other: those of all files that share ranks, which
    come up once; else those of a file.

    Args:
        file: path of the test file from the root of the repository.
    """
    folder = file.rpartition("/")[0]
    shares = folder == "tests/multiprocess" and _RANKS.search((_ROOT / file).read_text())
    return folder if shares else file


class SharedFixtureScheduling(LoadScopeScheduling):
    """Divide the tests by `scope_of`; an idle process takes the next scope in the order of collection."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # else scopes of few tests come last; some take long
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid.partition("::")[0])


def _start_order(item: pytest.Item) -> int:
    """Long scopes first. Tests that wait for Slurm run beside ranks, which use several processors."""
    file = item.nodeid.partition("::")[0]
    limit = item.get_closest_marker("timeout")
    if limit and limit.args[0] > SLOW_TIMEOUT_S:
        return 0
    waits = file.startswith("tests/slurm/") or scope_of(file) != file
    return 3 if file.startswith("tests/unit/") else 1 if waits else 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give long tests their time limit, unless they have one. Sort the tests by the order of their start."""
    for item in items:
        if item.get_closest_marker("timeout"):
            continue
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
        elif item.nodeid.startswith(("tests/multiprocess/", "tests/slurm/")):
            item.add_marker(pytest.mark.timeout(REAL_TIMEOUT_S))
    items.sort(key=_start_order)


@pytest.hookimpl(optionalhook=True)  # collection works under `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedFixtureScheduling:
    """The scheduler of `pytest -n`, in place of pytest-xdist's own."""
    return SharedFixtureScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def own_queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A queue of local runs that no other process of this user waits in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path_factory.mktemp("queue")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_forced_colours() -> Iterator[None]:
    """Text without colours, also where continuous integration sets `FORCE_COLOR`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FORCE_COLOR", raising=False)
        yield


@pytest.fixture(scope="session")
def linked_code(tmp_path_factory: pytest.TempPathFactory) -> LinkedCode:
    return LinkedCode(tmp_path_factory.mktemp("code"))


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and source archive of the project."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(autouse=True)
def quick_snapshots(
    request: pytest.FixtureRequest, linked_code: LinkedCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submissions within this process link their snapshot of the code, except where snapshots or their
    progress are tested."""
    if request.path.stem not in ("test_code_copy", "test_progress_bar"):
        monkeypatch.setattr(code_copy, "_write", linked_code)


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
