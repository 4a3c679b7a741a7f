"""Facts about one host and the runs folder, and the findings on them."""

from __future__ import annotations

import dataclasses
import fcntl
import shutil
import sys
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
42 22 0:52 / /dev/shm rw - tmpfs tmpfs rw
43 22 0:53 / /home rw - beegfs beegfs_nodev rw
"""
PACKAGES = {name: "2.0" for name in host_facts.PACKAGES}
HEALTHY = HostFacts(
    "n1", 100.0, "/opt/python", "3.12.1", PACKAGES, None, None, 2**34, False,
    "/home/runs", "/home/runs", "nfs4", "/home", ["rw"], 2**40, {}, 0.01, 0.0,
)  # fmt: skip


def keys(findings: object) -> list[str]:
    assert all(isinstance(each, Finding) for each in findings)  # type: ignore[attr-defined]
    return [f"{each.severity} {each.key}" for each in findings]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "kind", "point"),
    [
        ("/etc", "ext4", "/"),
        ("/home/ada/runs", "beegfs", "/home"),
        ("/homework", "ext4", "/"),
        ("/scratch one/runs", "lustre", "/scratch one"),
        ("/dev/shm/runs", "tmpfs", "/dev/shm"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str, point: str) -> None:
    assert mount_of(Path(path), MOUNTS)[:2] == (kind, point)


def test_a_healthy_host_and_folder_have_no_findings() -> None:
    assert keys(examine((*PYTHON, SUBMITIT, *HOST, *FOLDER, *REACH), HEALTHY, "n1")) == []


def test_findings_on_a_host() -> None:
    bad = dataclasses.replace(
        HEALTHY, shared_memory=64 * 2**20, remove_ipc=True, open_files=1024, python_version="3.9.2",
        packages={**PACKAGES, "torch": None, "submitit": None},
    )  # fmt: skip
    found = examine(HOST, bad, "n1")
    assert keys(found) == [
        "warning host.shared_memory", "warning host.remove_ipc", "warning host.open_files",
    ]  # fmt: skip
    assert "64 MiB" in found[0].evidence
    found = examine(PYTHON, bad, "n1")
    assert keys(found) == ["error python.version", "error python.packages"]
    assert found[1].problem == "torch missing on n1"


@pytest.mark.parametrize("operation", ["write", "lock", "exclusive", "rename", "link", "sync"])
def test_an_operation_that_fails_is_an_error(operation: str) -> None:
    bad = dataclasses.replace(HEALTHY, problems={operation: "No locks available"})
    (finding,) = examine(FOLDER, bad, "this host")
    assert (finding.severity, finding.key) == ("error", f"runs.{operation}")
    assert "No locks available" in finding.problem


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("tmpfs", "rw", ["error runs.memory"]),
        ("xfs", "rw", ["warning runs.not_shared"]),
        ("nfs", "rw,nolock", ["warning runs.local_locks"]),
        ("nfs", "rw,local_lock=none", []),
        ("lustre", "rw,localflock", ["warning runs.local_locks"]),
        ("lustre", "rw,flock", []),
        ("fuse.new", "rw", []),
    ],
)
def test_how_far_the_folder_and_its_locks_reach(kind: str, options: str, expected: list[str]) -> None:
    host = dataclasses.replace(HEALTHY, file_system=kind, mount_options=options.split(","))
    assert keys(examine(REACH, host)) == expected


def test_a_slow_full_file_system_with_a_clock_of_its_own() -> None:
    bad = dataclasses.replace(HEALTHY, sync_s=3.0, free=2**30, clock_offset_s=-60.0)
    found = examine(FOLDER, bad, "n1")
    assert keys(found) == ["warning runs.slow", "warning runs.space", "warning runs.clock"]
    assert "60 s behind that of n1" in found[2].problem


def test_the_probe_of_this_machine_leaves_nothing_behind(tmp_path: Path) -> None:
    facts = probe([sys.executable, *module_arguments(tmp_path / "not" / "there")])
    assert (facts.tested, facts.problems) == (str(tmp_path), {})
    assert facts.packages["torch"]
    assert abs(facts.clock_offset_s) < 5
    assert [*tmp_path.iterdir()] == []


def test_a_folder_without_locks_or_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("os.link", refuse)
    assert host_facts.host_facts(tmp_path).problems == dict.fromkeys(["lock", "link"], "No locks available")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert "exclusive" in host_facts.host_facts(tmp_path).problems


def test_a_lock_of_another_process_is_seen(tmp_path: Path) -> None:
    with locked_folder(tmp_path) as folder:
        here = host_facts.host_facts(tmp_path, folder)
        assert (here.shares_folder, here.shares_locks) == (True, True)
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        here = host_facts.host_facts(tmp_path, copy)
        assert (here.shares_folder, here.shares_locks) == (True, False)


def test_a_folder_that_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_facts, "_SEEN_WITHIN_S", 0.0)
    assert host_facts.host_facts(tmp_path, tmp_path / "elsewhere").shares_folder is False


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo srun: error: no partition >&2; exit 1", "no partition"),
        ("exit 3", "exit code 3 without a message"),
        ("echo '{}'", "exit code 0"),
        ("sleep 60", "no answer within 0.2 s"),
    ],
)
def test_a_probe_without_facts(script: str, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        probe(["sh", "-c", f"exec 9>&1; {script}"], timeout_s=0.2 if "sleep" in script else 20)
    with pytest.raises(ProbeError, match="No such file"):
        probe(["/nope/python"])


def node(**changes: object) -> HostFacts:
    return dataclasses.replace(HEALTHY, host="n2", shares_folder=True, **changes)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (node(), []),
        (node(python_version="3.11.2"), ["warning python.other_version"]),
        (node(packages={**PACKAGES, "torch": "2.1"}), ["warning python.other_version"]),
        (
            node(packages={**PACKAGES, "torch": None}),
            ["error python.packages", "warning python.other_version"],
        ),
        (node(time=40.0), ["warning node.clock"]),
        (node(time=160.0), ["warning node.clock"]),
        (node(time=119.0), []),
        (node(locked_memory=65536), ["warning node.locked_memory"]),
        (dataclasses.replace(node(), shares_folder=False), ["error runs.not_shared"]),
        (node(shares_locks=False), ["warning runs.local_locks"]),
    ],
)
def test_a_node_beside_the_submitting_host(other: HostFacts, expected: list[str]) -> None:
    assert keys(node_findings(HEALTHY, other, elapsed_s=20.0, gpus=True)) == expected


def test_a_node_of_processors_needs_no_locked_memory() -> None:
    assert keys(node_findings(HEALTHY, node(locked_memory=65536), elapsed_s=20.0, gpus=False)) == []
