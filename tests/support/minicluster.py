"""A mini-cluster as the tests see it, and what one may have left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import submit
from jobs.minicluster import network, places
from jobs.minicluster.lifecycle import Cluster, find, shell_environment

SUBMIT = Path(submit.__file__)


def need(why_not: str | None, environ: Mapping[str, str] = os.environ) -> None:
    """Skip the test for want of a cluster; in continuous integration that is a failure."""
    if why_not is None:
        return
    if environ.get("CI") == "true":
        pytest.fail(f"no Slurm test may be skipped here: {why_not}")
    pytest.skip(why_not)


def cluster_verb(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`python submit.py cluster ...`, as a user would."""
    command = [sys.executable, str(SUBMIT), "cluster", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@dataclass(frozen=True)
class MiniCluster:
    """A cluster that is up."""

    cluster: Cluster

    @classmethod
    def up(cls, name: str, *flags: str) -> MiniCluster:
        cluster_verb("up", "--name", name, *flags)
        return cls(find(name))

    @property
    def name(self) -> str:
        return self.cluster.name

    @property
    def env(self) -> dict[str, str]:
        """An environment whose Slurm commands use this cluster."""
        return shell_environment(self.cluster, dict(os.environ))

    def ask(self, *command: str, cwd: Path | None = None, timeout_s: float = 120) -> str:
        """What a command says that succeeds."""
        done = subprocess.run(
            command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def on_node(self, number: int, *command: str) -> str:
        """What a command says on a node."""
        return self.ask(*node_prefix(self.name, number), *command)

    def submit(self, *arguments: str, cwd: Path) -> str:
        """`python submit.py ...` on this cluster."""
        return self.ask(sys.executable, str(SUBMIT), *arguments, cwd=cwd)


def node_prefix(name: str, number: int) -> list[str]:
    return [sys.executable, str(SUBMIT), "cluster", "shell", "--name", name, "--node", str(number), "--"]


def traces(name: str) -> list[str]:
    """What there is of a cluster on this machine: processes, mounts, its folder, its address."""
    path = str(places.folder_of(name).path)
    found = [f"process {pid}" for pid in _processes(path)]
    found += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if path in line]
    if Path(path).exists():
        found.append(f"folder {path}")
    if name in Path("/etc/hosts").read_text():
        found.append("hosts")
    return found


def _processes(path: str) -> list[int]:
    """The processes whose command line or environment names the cluster's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if path.encode() in words:
            found.append(int(entry.name))
    return found


def links() -> set[str]:
    """The links and named namespaces of this machine, less those of other clusters that are up."""
    named = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    others = {
        network.interface_on_machine(cluster.subnet)
        for cluster in map(find, places.names())
        if cluster.subnet and cluster.state == "up"
    }
    return ({entry.name for entry in Path("/sys/class/net").iterdir()} | set(named)) - others
