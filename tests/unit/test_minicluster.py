"""Mini-cluster: text of its files and commands, and the reasons against a cluster on this machine."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from disttrain.errors import ConfigError
from jobs.minicluster import config, discovery, init_protocol, network, packages, services
from jobs.minicluster.config import ClusterFolder, ClusterSpec, Subnet, checked
from jobs.minicluster.init_protocol import ServiceError
from jobs.minicluster.lifecycle import Cluster, shell_environment
from tests.support.golden import golden
from tests.support.minicluster import need

FOLDER = ClusterFolder(Path("/run/disttrain-mini"))


def files(version: tuple[int, int] = (22, 5), **spec: Any) -> dict[str, str]:
    cluster, subnet = ClusterSpec(**spec), Subnet(7)
    conf = config.slurm_conf(cluster, subnet, FOLDER, version=version, first_job=5000, memory_mb=4096)
    return {
        "slurm.conf": conf,
        "gres.conf": config.gres_conf(cluster, FOLDER),
        "cgroup.conf": config.cgroup_conf(version),
        "slurmdbd.conf": config.slurmdbd_conf(cluster, FOLDER),
        "hosts": config.hosts(cluster, subnet),
        "mail": config.mail_program(FOLDER),
    }


def test_the_files_of_a_cluster():
    """With all options, with none, and the settings that moved between versions of Slurm."""
    bare = files(nodes=1, gpus_per_node=0, accounting=False)
    texts = [
        f"== {name}\n{text}" for made in (files(short_timeouts=True), bare) for name, text in made.items()
    ]
    for version in ((23, 2), (23, 11)):
        made = files(version)
        moved = [line for line in made["slurm.conf"].splitlines() if "send_user_signal" in line]
        texts.append(f"== Slurm {version}\n{moved}\n{made['cgroup.conf']}")
    golden("minicluster.txt", "".join(texts))


@pytest.mark.parametrize(
    "change",
    [
        *({"name": name} for name in ("Mini", "a/../b", "abcdefghijklm")),
        *({"nodes": nodes} for nodes in (0, 65)),
        *({"gpus_per_node": gpus} for gpus in (-1, 65)),
        *({"grace_s": grace_s} for grace_s in (-1, 65534)),
        *({"link": link} for link in ("1gibt", "10kbit", "0.9mbit")),
    ],
)
def test_bad_options_are_refused(change):
    (name,) = change
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')}"):
        checked(dataclasses.replace(ClusterSpec(), **change))


@pytest.mark.parametrize(
    ("link", "shaped"),
    [
        ("1mbit", "rate 1000000bit burst 131072 "),  # two segments of the largest size
        ("2.5gbit", "rate 2500000000bit burst 312500 "),  # of a millisecond
        ("none", None),
    ],
)
def test_the_rate_and_the_burst_of_a_link(link, shaped):
    commands = network.shaping_commands("eth0", checked(ClusterSpec(link=link)).link_bits_per_s)
    assert shaped in commands[0] if shaped else commands == []


def test_a_cluster_takes_the_first_subnet_without_a_route_or_another_cluster(commands):
    routes = '[{"dst": "default"}, {"dst": "10.213.0.0/23"}]'
    taken = "case $(cat) in *disttrain2*) echo 'RTNETLINK answers: File exists' >&2; exit 2;; esac"
    commands.add("ip", f"case $* in *route*) echo '{routes}';; *) {taken};; esac")
    assert network.link_to_machine(1) == Subnet(3)
    commands.add("ip", "echo 'Operation not permitted' >&2; exit 2")
    with pytest.raises(network.NetworkError, match=r"^ip: Operation not permitted"):
        network.link_to_machine(1)


@contextmanager
def as_namespace_init(folder: ClusterFolder, *users: int) -> Iterator[int]:
    """The pid of a process with the same last arguments as a namespace init of node 3.

    `users` are its real, effective and saved user id.
    """
    need(None if os.geteuid() == 0 else "processes of a cluster are those of root")
    arguments = discovery.init_command(folder, "3")[-3:]
    started = ["sh", "-p", "-c", "echo; read line", *arguments]  # -p: keep the effective user id
    become = functools.partial(os.setresuid, *users) if users else None
    pipe = subprocess.PIPE
    with subprocess.Popen(started, stdin=pipe, stdout=pipe, preexec_fn=become, cwd="/") as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def test_a_cluster_is_found_by_the_command_lines_of_its_processes(tmp_path):
    folder = ClusterFolder(tmp_path)
    with as_namespace_init(folder) as pid:
        (found,) = discovery.namespace_processes(folder)
        assert (found.pid, found.host, found.is_init) == (pid, "3", True)
        assert discovery.namespace_processes(ClusterFolder(tmp_path / "other")) == []
    assert discovery.namespace_processes(folder) == []


@pytest.mark.parametrize("users", [(65534, 65534, 65534), (65534, 0, 0)], ids=["user", "set-user-id program"])
def test_a_process_of_another_user_is_not_of_a_cluster(tmp_path, users):
    folder = ClusterFolder(tmp_path)
    with as_namespace_init(folder, *users):
        assert discovery.init_pid(folder, "3") is None


def test_a_shell_of_a_cluster_has_no_variables_of_another_one():
    inherited = {
        "PATH": "/bin",
        "SLURM_JOB_ID": "5",
        "SBATCH_PARTITION": "x",
        "HOME": "/h",
        "SLURM_CONF": "y",
    }
    env = shell_environment(Cluster("mini", "up", FOLDER, None, None), inherited)
    assert env.pop("PATH").startswith(f"{Path(sys.executable).parent}:/bin:")
    assert env == {"HOME": "/h", "SLURM_CONF": "/run/disttrain-mini/slurm.conf"}


def test_the_reason_against_a_cluster(monkeypatch, commands):
    def reason(**names: bool) -> str:
        return str(packages.unavailable_reason(**names))

    monkeypatch.setattr(packages, "PATH", f"{commands.folder}:/bin")
    monkeypatch.setattr(packages, "_is_debian", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("slurmctld", "sbatch", "munged", "ip", "tc", "unshare", "nsenter", "mount"):
        commands.add(name, "echo unshare failed: Operation not permitted >&2; exit 1")
    assert reason(accounting=False).startswith("slurmd not found; install with: apt-get install ")
    assert ["mariadb" in reason(accounting=accounting) for accounting in (False, True)] == [False, True]
    monkeypatch.setattr(packages, "_is_debian", lambda: False)
    assert "apt-get" not in reason()
    commands.add("slurmd", "")
    assert reason(accounting=False).endswith(": unshare failed: Operation not permitted")
    commands.add("unshare", "")
    assert reason(accounting=False) == "None"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in reason()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "needs Linux" in reason()


def test_only_root_on_debian_gets_packages(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(packages, "PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(subprocess, "run", None)  # nothing may be run
    assert packages.install() == 0
    assert "are skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "limit_s", "orphan", "error", "message"),
    [
        ("echo first; echo no key; echo; exit 3", 60, False, ServiceError, "^munged exited with 3: no key$"),
        ("exec sleep 60", 0, False, ServiceError, "^munged did not start within 0 s"),
        ("exec sleep 60", 60, True, EOFError, "the process that started this cluster"),
    ],
)
def test_a_service_that_does_not_start(tmp_path, monkeypatch, command, limit_s, orphan, error, message):
    folder = ClusterFolder(tmp_path)
    folder.logs.mkdir()
    monkeypatch.setattr(init_protocol, "parent_has_ended", lambda: orphan)
    monkeypatch.setattr(services, "_START_LIMIT_S", limit_s)
    munged = services.start("munged", ["sh", "-c", command], folder, host="mini-2")
    try:
        with pytest.raises(error, match=message):
            services.wait_for_munged(munged, folder, "mini-2")
    finally:
        munged.kill()
        munged.wait()


def test_a_process_that_ends_between_two_looks_may_be_ready_by_its_end(tmp_path):
    process = subprocess.Popen(["true"])
    process.wait()
    looks = iter([False, True])
    services.wait_for("install", process, lambda: next(looks), ClusterFolder(tmp_path))


@pytest.mark.parametrize(
    ("printed", "says"), [("failed mount: not permitted", "mount: not permitted"), ("", "ended")]
)
def test_a_failed_namespace_init_is_one_line(printed, says):
    with (
        subprocess.Popen(["echo", printed], stdout=subprocess.PIPE, text=True) as init,
        pytest.raises(ServiceError, match=f"^mini-2: .*{says}"),
    ):
        init_protocol.expect_from_init(init, init_protocol.UP, "mini-2")
