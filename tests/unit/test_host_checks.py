"""Facts about one host and the runs folder, and the findings on them."""

from __future__ import annotations

import fcntl
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.checks import host_facts
from jobs.checks.finding import Finding, examine
from jobs.checks.host_checks import FOLDER, HOST, PYTHON, REACH, SUBMITIT, node_findings
from jobs.checks.host_facts import HostFacts, ProbeError, locked_folder, module_arguments, mount_of, probe

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
40 22 0:50 / /home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2
41 22 0:51 / /scratch\\040one rw - lustre mgs@o2ib:/scratch rw,localflock
43 22 0:53 / /home rw - beegfs beegfs_nodev rw
"""
PACKAGES = {name: "2.0" for name in host_facts.PACKAGES}
HEALTHY = HostFacts(
    "n1", 100.0, "/opt/python", "3.12.1", PACKAGES, None, None, 2**34, False,
    "/home/runs", "/home/runs", "nfs4", "/home", ["rw"], 2**40, {}, 0.01, 0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/etc", ("ext4", "/", ["rw", "relatime", "rw", "errors=remount-ro"])),
        ("/home/ada/runs", ("beegfs", "/home", ["rw", "rw"])),  # the last of several at one point
        ("/homework", ("ext4", "/", ["rw", "relatime", "rw", "errors=remount-ro"])),
        ("/scratch one/runs", ("lustre", "/scratch one", ["rw", "rw", "localflock"])),
    ],
)
def test_the_file_system_of_a_path(path, mount):
    assert mount_of(Path(path), MOUNTS) == mount


def keys(findings: list[Finding]) -> list[str]:
    return [f"{each.severity} {each.key}" for each in findings]


OPERATIONS = ("write", "lock", "exclusive", "rename", "link", "sync")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"python_version": "3.9.2"}, ["error python.version"]),
        ({"packages": PACKAGES | {"PyYAML": None, "submitit": None}}, ["error python.packages"] * 2),
        ({"rank_python": "job.python='x' is Python 3.9.2 without torch"}, ["warning python.ranks"]),
        ({"shared_memory": 64 * 2**20}, ["warning host.shared_memory"]),
        ({"shared_memory": None}, ["warning host.shared_memory"]),
        ({"remove_ipc": True}, ["warning host.remove_ipc"]),
        ({"open_files": 1024}, ["warning host.open_files"]),
        *(({"problems": {name: "No locks available"}}, [f"error runs.{name}"]) for name in OPERATIONS),
        ({"sync_s": 3.0}, ["warning runs.slow"]),
        ({"free": 2**30}, ["warning runs.space"]),
        ({"clock_offset_s": -60.0}, ["warning runs.clock"]),
        ({"file_system": "tmpfs"}, ["error runs.memory"]),
        ({"file_system": "xfs"}, ["warning runs.not_shared"]),
        ({"file_system": "nfs", "mount_options": ["rw", "nolock"]}, ["warning runs.local_locks"]),
        ({"file_system": "lustre", "mount_options": ["localflock"]}, ["warning runs.local_locks"]),
        ({"file_system": "fuse.new", "mount_options": ["nolock"]}, []),
    ],
)
def test_findings_on_a_host_and_its_folder(changes, expected):
    rows = (*PYTHON, SUBMITIT, *HOST, *FOLDER, *REACH)
    assert keys(examine(rows, replace(HEALTHY, **changes), "n1")) == expected


def test_the_evidence_is_part_of_a_problem():
    bad = replace(HEALTHY, problems={"lock": "No locks available"}, clock_offset_s=-60.0)
    lock, clock = examine(FOLDER, bad, "n1")
    assert "(No locks available, /home/runs (nfs4 on /home))" in lock.problem
    assert "60 s behind that of n1" in clock.problem


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"python_version": "3.11.2"}, ["warning python.other_version"]),
        ({"packages": PACKAGES | {"torch": None}}, ["warning python.other_version"]),
        ({"remove_ipc": True}, ["warning host.remove_ipc"]),
        ({"time": 98.0}, ["warning node.clock"]),
        ({"time": 122.0}, ["warning node.clock"]),
        ({"time": 119.0}, []),  # within the job, which took 20 s
        ({"locked_memory": 65536}, ["warning node.locked_memory"]),
        ({"shares_folder": False}, ["error runs.not_shared"]),
        ({"shares_locks": False}, ["warning runs.local_locks"]),
    ],
)
def test_a_node_beside_the_submitting_host(changes, expected):
    node = replace(HEALTHY, **({"host": "n2", "shares_folder": True} | changes))
    assert keys(node_findings(HEALTHY, node, elapsed_s=20.0, gpus=True)) == expected
    if "locked_memory" in changes:  # processors need none
        assert node_findings(HEALTHY, node, elapsed_s=20.0, gpus=False) == []


def test_the_probe_of_this_machine_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv(host_facts.PYTHON_VARIABLE, str(tmp_path / "none"))
    facts = probe([sys.executable, *module_arguments(tmp_path / "not" / "there")])
    assert (facts.tested, facts.problems) == (str(tmp_path), {})
    assert facts.packages["torch"]
    assert str(facts.rank_python).endswith("/none' cannot be started: No such file or directory")
    assert abs(facts.clock_offset_s) < 5
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("seconds", "offset"), [(3600.0, -3600.0), (-3600.0, 3600.0)])
def test_the_clock_of_the_file_server(seconds, offset, tmp_path, monkeypatch):
    """This host's clock is an hour ahead of it, or behind."""
    now = host_facts.time.time
    monkeypatch.setattr(host_facts.time, "time", lambda: now() + seconds)
    assert host_facts.host_facts(tmp_path).clock_offset_s == pytest.approx(offset, abs=60)


def test_a_folder_without_locks_or_links(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("os.link", refuse)
    assert host_facts.host_facts(tmp_path).problems == dict.fromkeys(["lock", "link"], "No locks available")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert "exclusive" in host_facts.host_facts(tmp_path).problems


def test_a_folder_and_a_lock_of_another_process_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(host_facts, "_SEEN_WITHIN_S", 0.0)
    with locked_folder(tmp_path) as folder:
        copy = shutil.copytree(folder, tmp_path / "copy")
        shared = [host_facts.host_facts(tmp_path, path) for path in (folder, copy, tmp_path / "elsewhere")]
    assert [(each.shares_folder, each.shares_locks) for each in shared] == [
        (True, True), (True, False), (False, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["sh", "-c", "echo srun: error: no partition >&2; exit 1"], "no partition"),
        (["sh", "-c", "exit 3"], "exit code 3 without a message"),
        (["sh", "-c", "echo '{}'"], "exit code 0"),
        (["sh", "-c", "exec sleep 60"], "no answer within 0.2 s"),
        (["/nope/python"], "No such file"),
    ],
)
def test_a_probe_without_facts(command, message):
    with pytest.raises(ProbeError, match=message):
        probe(command, timeout_s=0.2 if "sleep" in command[-1] else 20)
