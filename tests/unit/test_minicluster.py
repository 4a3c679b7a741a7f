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

import pytest

from disttrain.errors import ConfigError
from jobs.minicluster import config, discovery, init_protocol, network, packages, services
from jobs.minicluster.config import ClusterFolder, ClusterSpec, Subnet, checked
from jobs.minicluster.init_protocol import ServiceError
from jobs.minicluster.lifecycle import Cluster, shell_environment
from tests.support.minicluster import need

GOLDEN = Path(__file__).parents[1] / "golden" / "minicluster.txt"
FOLDER = ClusterFolder(Path("/run/disttrain-mini"))


def files(spec: ClusterSpec, version: tuple[int, int] = (22, 5)) -> dict[str, str]:
    subnet = Subnet(7)
    conf = config.slurm_conf(spec, subnet, FOLDER, version=version, first_job=5000, memory_mb=4096)
    return {
        "slurm.conf": conf,
        "gres.conf": config.gres_conf(spec, FOLDER),
        "cgroup.conf": config.cgroup_conf(version),
        "slurmdbd.conf": config.slurmdbd_conf(spec, FOLDER),
        "hosts": config.hosts(spec, subnet),
        "mail": config.mail_program(FOLDER),
    }


def test_the_files_of_a_cluster() -> None:
    text = "".join(
        f"== {name}\n{content}" for name, content in files(ClusterSpec(short_timeouts=True)).items()
    )
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_options_that_are_off_are_absent_from_the_files() -> None:
    made = files(ClusterSpec(nodes=1, gpus_per_node=0, accounting=False))
    assert made["gres.conf"] == ""
    for word in ("gpu:", "GresTypes", "Accounting", "KillWait", "cred_expire"):
        assert word not in made["slurm.conf"]
    assert "CPUs=4 " in made["slurm.conf"]


def test_settings_that_moved_between_versions_of_slurm() -> None:
    old, new = files(ClusterSpec()), files(ClusterSpec(), version=(24, 11))
    assert "SlurmctldParameters=preempt_send_user_signal\n" in old["slurm.conf"]
    assert "PreemptParameters=send_user_signal\n" in new["slurm.conf"]
    assert (old["cgroup.conf"], new["cgroup.conf"]) == ("", "CgroupPlugin=disabled\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Mini"}, "--name: 'Mini' cannot name a cluster"),
        ({"name": "a/../b"}, "cannot name a cluster"),
        ({"name": "abcdefghijklm"}, "cannot name a cluster"),
        ({"nodes": 0}, "--nodes=0 is not between 1 and 64"),
        ({"nodes": 65}, "--nodes=65 is not between 1 and 64"),
        ({"gpus_per_node": -1}, "--gpus-per-node=-1 is not between 0 and 64"),
        ({"grace_s": -1}, "--grace-s=-1 is not between"),
        ({"link": "1gibt"}, "--link='1gibt' is not a rate"),
        ({"link": "10kbit"}, "--link='10kbit' is not a rate of 1mbit or more"),
    ],
)
def test_bad_options_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        checked(dataclasses.replace(ClusterSpec(), **change))


@pytest.mark.parametrize(
    ("link", "bits"), [("1gbit", 10**9), ("400mbit", 4 * 10**8), ("2.5gbit", 25 * 10**8), ("none", None)]
)
def test_links(link: str, bits: int | None) -> None:
    spec = checked(ClusterSpec(link=link))
    assert spec.link_bits_per_s == bits
    assert bool(network.shaping_commands("eth0", bits)) is (bits is not None)


def test_a_burst_holds_two_of_the_largest_segments_and_a_millisecond() -> None:
    assert "rate 1000000bit burst 131072 " in network.shaping_commands("eth0", 10**6)[0]
    assert "rate 100000000000bit burst 12500000 " in network.shaping_commands("eth0", 10**11)[0]


def test_addresses_differ() -> None:
    subnet = Subnet(3)
    addresses = [subnet.head, subnet.machine, *(subnet.node(number) for number in range(1, 65))]
    assert len(set(addresses)) == 66
    assert all(address.startswith("10.213.3.") for address in addresses)


@contextmanager
def as_namespace_init(folder: ClusterFolder, *users: int) -> Iterator[int]:
    """The pid of a process with the same last arguments as a namespace init of node 3.

    `users` are its real, effective and saved user id.
    """
    need(None if os.geteuid() == 0 else "processes of a cluster are those of root")
    arguments = discovery.init_command(folder, "3")[-3:]
    started = ["sh", "-p", "-c", "echo; read line", *arguments]  # -p: keep the effective user id
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    become = functools.partial(os.setresuid, *users) if users else None
    with subprocess.Popen(started, **pipes, preexec_fn=become, cwd="/") as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def test_a_cluster_is_found_by_the_command_lines_of_its_processes(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    with as_namespace_init(folder) as pid:
        (found,) = discovery.namespace_processes(folder)
        assert (found.pid, found.host, found.is_init) == (pid, "3", True)
        assert discovery.namespace_processes(ClusterFolder(tmp_path / "other")) == []
    assert discovery.namespace_processes(folder) == []


@pytest.mark.parametrize("users", [(65534, 65534, 65534), (65534, 0, 0)], ids=["user", "set-user-id program"])
def test_a_process_of_another_user_is_not_of_a_cluster(tmp_path: Path, users: tuple[int, int, int]) -> None:
    folder = ClusterFolder(tmp_path)
    with as_namespace_init(folder, *users):
        assert discovery.init_pid(folder, "3") is None
        assert discovery.namespace_processes(folder) == []


def test_the_environment_of_a_shell() -> None:
    cluster = Cluster("mini", "up", FOLDER, ClusterSpec(), Subnet(0))
    inherited = {
        "PATH": "/bin",
        "SLURM_JOB_ID": "5",
        "SBATCH_PARTITION": "x",
        "HOME": "/h",
        "SLURM_CONF": "y",
    }
    env = shell_environment(cluster, inherited)
    assert {name for name in env if name.startswith(("SLURM", "SBATCH"))} == {"SLURM_CONF"}
    assert env["SLURM_CONF"] == "/run/disttrain-mini/slurm.conf"
    assert env["PATH"].split(":")[:2] == [str(Path(sys.executable).parent), "/bin"]


def test_the_reason_against_a_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(packages, "PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(packages, "missing_commands", lambda *, accounting: ["slurmd"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(packages, "_is_debian", lambda: True)
    reason = str(packages.unavailable_reason(accounting=False))
    assert reason.startswith(
        "slurmd not found; install with: apt-get install --no-install-recommends slurmctld "
    )
    assert "mariadb" not in reason
    assert "mariadb-server" in str(packages.unavailable_reason())
    monkeypatch.setattr(packages, "_is_debian", lambda: False)
    assert packages.unavailable_reason() == (
        "slurmd not found; the mini-cluster needs Debian or Ubuntu packages, and this machine runs neither"
    )
    monkeypatch.setattr(packages, "missing_commands", lambda *, accounting: [])
    assert str(packages.unavailable_reason()).endswith(": unshare failed: Operation not permitted")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in str(packages.unavailable_reason())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "needs Linux network namespaces" in str(packages.unavailable_reason())


def test_missing_commands_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "PATH", str(tmp_path))
    assert {"slurmctld", "slurmd", "munged", "tc"} <= set(packages.missing_commands(accounting=False))
    assert "mariadbd" in packages.missing_commands()


def test_only_root_on_debian_gets_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "missing_commands", lambda: ["slurmd"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(subprocess, "run", None)  # nothing may be run
    assert packages.install() == 0
    assert "are skipped" in capsys.readouterr().out


def test_a_test_without_its_cluster_is_skipped() -> None:
    need(None)
    with pytest.raises(pytest.skip.Exception, match="no munge"):
        need("no munge")


def test_a_service_that_exits_is_reported_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ClusterFolder(tmp_path)
    folder.logs.mkdir()
    monkeypatch.setattr(init_protocol, "parent_has_ended", lambda: False)
    munged = services.start("munged", ["sh", "-c", "echo no key; exit 3"], folder, host="mini-2")
    with pytest.raises(ServiceError, match=r"^munged exited with 3: no key$"):
        services.wait_for_munged(munged, folder, "mini-2")


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("failed mount: not permitted", "mini-2: mount: not permitted"),
        ("", "mini-2: its namespace init ended without a reason"),
    ],
)
def test_a_failed_namespace_init_is_one_line(printed: str, message: str) -> None:
    with (
        subprocess.Popen(["echo", printed], stdout=subprocess.PIPE, text=True) as init,
        pytest.raises(ServiceError) as raised,
    ):
        init_protocol.expect_from_init(init, init_protocol.UP, "mini-2")
    assert str(raised.value) == message
