"""One real Slurm cluster for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.minicluster import packages, places
from jobs.slurm.cluster import SlurmCluster
from tests.support.jobs import STANDIN, ended_afterwards
from tests.support.links import real_time
from tests.support.minicluster import MiniCluster, cluster_verb, need


@pytest.fixture(scope="session")
def can_have_clusters() -> None:
    need(packages.why_not())


@pytest.fixture(scope="session")
def ahead() -> list[str]:
    """What a cluster is brought up with, and its links are measured with, for timings to be its own."""
    return real_time()


@pytest.fixture(scope="session")
def slurm(can_have_clusters: None) -> Iterator[MiniCluster]:
    """Four nodes with four GPUs each, accounting on, Slurm's own delays cut short."""
    name = f"t{os.getpid()}"
    try:
        yield MiniCluster.up(name, "--short-timeouts")
    finally:
        if name in places.names():
            cluster_verb("down", "--name", name)


@pytest.fixture
def on_slurm(slurm: MiniCluster, monkeypatch: pytest.MonkeyPatch) -> MiniCluster:
    """The cluster, as this process's own Slurm too."""
    for name in [name for name in os.environ if name not in slurm.env]:
        monkeypatch.delenv(name)
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    return slurm


@pytest.fixture
def faulty(on_slurm: MiniCluster) -> Iterator[MiniCluster]:
    """The cluster, to be given faults: afterwards it is whole and idle again."""
    try:
        yield on_slurm
    finally:
        on_slurm.mend()


@pytest.fixture
def root(on_slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the runs of stand-in launchers lie."""
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    with ended_afterwards(tmp_path / "runs", SlurmCluster()):
        yield tmp_path / "runs"
