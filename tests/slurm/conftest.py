"""Two real Slurm clusters of each test process: one with accounting, and one without."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disttrain.records.run_directory import RunDir
from jobs.minicluster import discovery, packages
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from tests.support import requeued
from tests.support.jobs import SMALL, STANDIN, ended_afterwards
from tests.support.minicluster import MiniCluster, cluster_verb, need
from tests.support.ordinary_user import readable_python
from tests.support.small_disk import mounted


@pytest.fixture(scope="session")
def can_have_clusters() -> None:
    need(packages.unavailable_reason())


@contextmanager
def _cluster(name: str, *flags: str) -> Iterator[MiniCluster]:
    """Four nodes with four GPUs each, Slurm's own delays cut short."""
    try:
        yield MiniCluster.up(name, "--short-timeouts", *flags)
    finally:
        if name in discovery.cluster_names():
            cluster_verb("down", "--name", name)


@pytest.fixture(scope="session")
def python_for_all(can_have_clusters: None) -> Iterator[Path]:
    """Folder with a Python that every user can run, also on the nodes."""
    with readable_python() as folder:
        yield folder


@pytest.fixture(scope="session")
def accounted(python_for_all: Path) -> Iterator[MiniCluster]:
    with _cluster(f"t{os.getpid()}") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def small_disk(can_have_clusters: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own, which all nodes of the cluster without accounting see."""
    with mounted(tmp_path_factory.mktemp("disk") / "disk", "256m") as path:
        yield path


@pytest.fixture(scope="session")
def unaccounted(small_disk: Path) -> Iterator[MiniCluster]:
    with _cluster(f"n{os.getpid()}", "--no-accounting") as cluster:
        yield cluster


@pytest.fixture
def slurm(accounted: MiniCluster) -> Iterator[MiniCluster]:
    """The cluster with accounting, which no test leaves a job on for the next."""
    try:
        yield accounted
    finally:
        accounted.empty()


@pytest.fixture
def plain(unaccounted: MiniCluster) -> Iterator[MiniCluster]:
    """The one without."""
    try:
        yield unaccounted
    finally:
        unaccounted.empty()


@pytest.fixture
def on_slurm(slurm: MiniCluster, monkeypatch: pytest.MonkeyPatch) -> MiniCluster:
    """The cluster, as this process's own Slurm too."""
    return _as_own(slurm, monkeypatch)


@pytest.fixture
def on_plain(plain: MiniCluster, monkeypatch: pytest.MonkeyPatch) -> MiniCluster:
    return _as_own(plain, monkeypatch)


def _as_own(cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch) -> MiniCluster:
    env = cluster.env
    for name in [name for name in os.environ if name not in env]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return cluster


@pytest.fixture
def faulty(on_slurm: MiniCluster) -> Iterator[MiniCluster]:
    """The cluster, to be given faults: afterwards it is whole and idle again."""
    try:
        yield on_slurm
    finally:
        on_slurm.mend()


@pytest.fixture
def faulty_plain(plain: MiniCluster) -> Iterator[MiniCluster]:
    try:
        yield plain
    finally:
        plain.mend()


@pytest.fixture
def three_nodes(faulty_plain: MiniCluster) -> MiniCluster:
    """The cluster without accounting, of whose nodes the first three are in use; it may be given faults."""
    faulty_plain.ask("scontrol", "update", f"nodename={faulty_plain.name}-4", "state=drain", "reason=test")
    return faulty_plain


@pytest.fixture
def root(on_slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the runs of stand-in launchers lie, in the working directory, with a config."""
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    with ended_afterwards(tmp_path / "runs", SlurmScheduler()):
        yield tmp_path / "runs"


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """What a run that is taken from its nodes has to come to; one for all processes of this session."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with open(folder / "reference.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = RunDir(folder / "undisturbed")
        return run if run.metrics.exists() else requeued.undisturbed(folder)
