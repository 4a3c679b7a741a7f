"""Pytest hooks by which no test is skipped in continuous integration, except of those that need a GPU or pip.

A skip hides that an environment lost a package, a device file or a privilege that the tests had before.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

_OF_NETWORK = "test_other_pythons.py"


def is_refused(path: Path) -> bool:
    """Whether a skip of a test in this file is a failure: under `CI=true`, outside tests/gpu."""
    return os.environ.get("CI") == "true" and path.parent.name != "gpu" and path.name != _OF_NETWORK


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"no test may be skipped under CI=true: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and is_refused(item.path):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips itself as a whole, as by `pytest.importorskip`."""
    report = yield
    if report.skipped and is_refused(collector.path):
        _fail(report)
    return report
