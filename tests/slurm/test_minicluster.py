"""Clusters start as requested, side by side, and leave no trace, also after a crash."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.minicluster import discovery, lifecycle, packages
from jobs.minicluster.config import ClusterFolder, ClusterSpec
from jobs.minicluster.init_protocol import ServiceError
from tests.support.jobs import in_a_fork, wait_for, wait_until
from tests.support.minicluster import MiniCluster, cluster_verb, links, traces

NAME = f"x{os.getpid()}"
SMALL = ("--nodes", "2", "--gpus-per-node", "1", "--no-accounting")


@pytest.fixture
def name(can_have_clusters: None) -> Iterator[str]:
    """Name of a cluster that the test brings up; the cluster is taken down afterwards."""
    hosts, before = Path("/etc/hosts").read_bytes(), links()
    yield NAME
    if NAME in discovery.cluster_names():
        cluster_verb("down", "--name", NAME)
    assert Path("/etc/hosts").read_bytes() == hosts
    wait_until(lambda: not traces(NAME) and links() <= before)


def test_a_cluster_goes_without_a_trace(name: str) -> None:
    before = links()
    said = cluster_verb("up", "--name", name).stdout
    assert re.match(rf"cluster {name} is up after \d+\.\d s: ", said)
    cluster = MiniCluster(lifecycle.find_cluster(name))
    assert len(traces(name)) > 10
    job = cluster.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 1000").strip()
    wait_until(lambda: cluster.ask("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")
    assert "is down" in cluster_verb("down", "--name", name).stdout
    assert traces(name) == []
    wait_until(lambda: links() <= before)  # another lane may bring a cluster up or down at the same time


@pytest.fixture
def slurmctld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace slurmctld by a script, for clusters that this process brings up."""

    def replace(script: str) -> None:
        path = tmp_path / "bin" / "slurmctld"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\n[ "$1" != -V ] || {{ echo "slurm-wlm 22.05.8"; exit; }}\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setattr(packages, "PATH", f"{path.parent}:{packages.PATH}")

    return replace


@pytest.mark.parametrize(
    "reached",
    [
        pytest.param(lambda folder: folder.logs.exists(), id="folder"),
        pytest.param(lambda folder: folder.database_socket.exists(), id="database"),
        pytest.param(lambda folder: (folder.path / "at slurmctld").exists(), id="controller"),
    ],
)
def test_a_crash_half_way_leaves_only_files_and_down_removes_them(
    name: str, reached: Callable[[ClusterFolder], bool], slurmctld: Callable[[str], None]
) -> None:
    before, folder = links(), discovery.folder_of(name)
    slurmctld(f'touch "{folder.path}/at slurmctld"; exec sleep 1000')  # slurmctld never listens
    going_up = in_a_fork(lambda: lifecycle.up(ClusterSpec(name, nodes=2)))
    wait_until(lambda: reached(folder))
    os.kill(going_up, signal.SIGKILL)
    assert wait_for(going_up) == -signal.SIGKILL
    # a namespace that was just being made shows no trace yet
    wait_until(lambda: lifecycle.find_cluster(name).state == "left over")
    wait_until(lambda: traces(name) == [f"folder {folder.path}"] and links() <= before)
    cluster_verb("down", "--name", name)
    assert traces(name) == []


def test_a_killed_cluster_is_left_over_and_its_name_can_be_used_again(name: str) -> None:
    cluster = MiniCluster.up(name, *SMALL)
    head = next(
        process
        for process in discovery.namespace_processes(cluster.cluster.folder)
        if process.host == discovery.HEAD
    )
    os.kill(head.pid, signal.SIGKILL)
    wait_until(lambda: lifecycle.find_cluster(name).state == "left over")
    assert "left over" in cluster_verb("status", "--name", name).stdout
    refused = cluster_verb("shell", "--name", name, "--", "true", check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    again = MiniCluster.up(name, *SMALL)
    assert again.ask("sinfo", "-h", "-p", "gpu", "-o", "%t|%D").split() == ["idle|2"]


def test_a_service_that_does_not_come_up_is_one_line_and_leaves_nothing(
    name: str, slurmctld: Callable[[str], None]
) -> None:
    slurmctld("echo no room >&2; exit 3")
    with pytest.raises(ServiceError, match=r"^\w+-head: slurmctld exited with 3: no room$"):
        lifecycle.up(ClusterSpec(name, nodes=1, accounting=False))
    assert traces(name) == []


@pytest.mark.parametrize("mask", ["0", "077"])
def test_the_umask_of_root_does_not_change_the_modes_of_a_cluster(name: str, mask: str) -> None:
    ahead = ("sh", "-c", f'umask {mask}; exec "$@"', "sh")
    folder = MiniCluster.up(name, *SMALL, ahead=ahead).cluster.folder
    modes = {
        path: stat.S_IMODE(path.stat().st_mode) for path in folder.path.rglob("*") if not path.is_socket()
    }
    assert not [path for path, mode in modes.items() if mode & 0o022]
    assert (stat.S_IMODE(folder.path.stat().st_mode), modes[folder.slurm_conf]) == (0o711, 0o644)
    assert modes[folder.run] & modes[folder.spool(f"{name}-1")] & 0o001, (
        "a user passes, to munge and to his job"
    )


def test_two_clusters_are_independent(slurm: MiniCluster, name: str) -> None:
    other = MiniCluster.up(name, *SMALL)
    assert cluster_verb("up", "--name", name, check=False).returncode == 2
    one, two = slurm.cluster, other.cluster
    assert one.subnet != two.subnet
    assert one.folder.munge_key.read_bytes() != two.folder.munge_key.read_bytes()
    job = other.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 1000").strip()
    assert job in other.ask("squeue", "-h", "-o", "%i")
    assert job not in slurm.ask("squeue", "-h", "-o", "%i")
    told = {facts["name"]: facts for facts in json.loads(cluster_verb("status", "--json").stdout)["clusters"]}
    assert len(told[slurm.name]["nodes"]) == 4
    assert [node["node"] for node in told[name]["nodes"]] == [f"{name}-1", f"{name}-2"]
    assert "--name is needed to choose a cluster" in cluster_verb("down", check=False).stderr
    cluster_verb("down", "--name", name)
    assert slurm.ask("scontrol", "ping").count(" is UP") == 1


def test_nodes_gpus_and_partitions_are_as_requested(slurm: MiniCluster) -> None:
    (told,) = json.loads(cluster_verb("status", "--json", "--name", slurm.name).stdout)["clusters"]
    assert (told["state"], told["link_bits_per_s"]) == ("up", 10**9)
    assert [(node["node"], node["gres"]) for node in told["nodes"]] == [
        (f"{slurm.name}-{number}", "gpu:4") for number in (1, 2, 3, 4)
    ]
    assert [(row["partition"], row["tier"], row["preempt_mode"]) for row in told["partitions"]] == [
        ("gpu", "1", "REQUEUE"),
        ("urgent", "10", "OFF"),
    ]
    for number in (1, 4):
        assert "rate 1Gbit" in slurm.on_node(number, "tc", "qdisc", "show", "dev", "eth0")
    assert "GraceTime=30 " in slurm.ask("scontrol", "show", "partition", "gpu")
    config = slurm.ask("scontrol", "show", "config")
    assert "KillWait                = 5 sec" in config
    text = cluster_verb("status", "--name", slurm.name).stdout
    assert "4 nodes with 4 GPUs each, 1gbit links, accounting" in text


def test_a_job_on_two_nodes_sees_two_machines(slurm: MiniCluster, tmp_path: Path) -> None:
    say = 'echo "$(hostname) $CUDA_VISIBLE_DEVICES $(ls /sys/class/net | tr "\\n" " ")$(nproc --all)"'
    script = tmp_path / "hello.sh"
    script.write_text(f"#!/bin/sh\nsrun sh -c '{say}'\n")
    out = tmp_path / "out"
    slurm.ask("sbatch", "--wait", "--nodes=2", "--gpus-per-node=2", f"--output={out}", str(script))
    words = sorted(line.split()[:2] for line in out.read_text().splitlines())
    assert [gpus for _, gpus in words] == ["0,1", "0,1"]
    names = [host for host, _ in words]
    assert len(set(names)) == 2
    assert set(names) < {f"{slurm.name}-{number}" for number in (1, 2, 3, 4)}


def test_a_shell_command_runs_with_the_cluster_as_its_slurm(slurm: MiniCluster) -> None:
    done = cluster_verb(
        "shell", "--name", slurm.name, "--", "sh", "-c", "sinfo -h -o %R; exit 7", check=False
    )
    assert (done.returncode, sorted(done.stdout.split())) == (7, ["gpu", "urgent"])
    assert cluster_verb("shell", "--name", slurm.name, "--node", "3", "--", "hostname").stdout == (
        f"{slurm.name}-3\n"
    )
    refused = cluster_verb("shell", "--name", slurm.name, "--node", "9", "--", "true", check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
