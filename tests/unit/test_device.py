"""Facts about the machine of a rank."""

from __future__ import annotations

import os

import pytest

from disttrain.records.process_limits import usable_processors
from disttrain.records.run_directory import PROCESSORS
from disttrain.runtime.device import usable_cpus


def test_processors_of_the_job_are_those_of_all_bound_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert usable_processors({PROCESSORS: "0-2,5"}) == {0, 1, 2, 5}
    assert usable_cpus({PROCESSORS: "0-2,5"}) == 4
    assert usable_processors({PROCESSORS: ""}) == usable_processors({}) == {0, 1}
