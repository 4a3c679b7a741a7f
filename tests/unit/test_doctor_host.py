"""Facts about one host and the runs folder, and the findings on them."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from jobs.schedulers.doctor import probe
from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.doctor.folder_checks import folder_findings
from jobs.schedulers.doctor.host_checks import host_findings, python_findings
from jobs.schedulers.doctor.mounts import Mount, mount_of
from jobs.schedulers.doctor.node_checks import node_findings
from jobs.schedulers.doctor.probe import FolderFacts, HostFacts, ProbeFacts, SharedFolderFacts
from jobs.schedulers.doctor.run_probe import ProbeError, run_probe

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
40 22 0:50 / /home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2
41 22 0:51 / /scratch\\040one rw - lustre mgs@o2ib:/scratch rw,localflock
42 22 0:52 / /dev/shm rw - tmpfs tmpfs rw
43 22 0:53 / /home rw - beegfs beegfs_nodev rw
"""
PACKAGES = {name: "2.0" for name in probe.PACKAGES}
HOST = HostFacts(
    "n1", 100.0, "/opt/python", "3.12.1", (1, 1.0), None, PACKAGES, None, None, 2**34, None, 8, 8
)
NFS = Mount("/home", "nfs4", "server:/home", "rw")
FOLDER = FolderFacts("/home/runs", "/home/runs", NFS, 2**40, {}, 0.01, 0.0)


def keys(findings: object) -> list[str]:
    assert all(isinstance(each, Finding) for each in findings)  # type: ignore[attr-defined]
    return [f"{each.severity} {each.key}" for each in findings]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "shown", "reach"),
    [
        ("/etc", "ext4 on /", "disk"),
        ("/home/ada/runs", "beegfs on /home", "network"),
        ("/homework", "ext4 on /", "disk"),
        ("/scratch one/runs", "lustre on /scratch one", "network"),
        ("/dev/shm/runs", "tmpfs on /dev/shm", "memory"),
    ],
)
def test_the_file_system_of_a_path(path: str, shown: str, reach: str) -> None:
    mount = mount_of(Path(path), MOUNTS)
    assert mount is not None
    assert (str(mount), mount.reach) == (shown, reach)


def test_a_file_system_that_is_not_known() -> None:
    assert mount_of(Path("/x"), "") is None
    assert Mount("/x", "fuse.new", "new", "rw").reach == "unknown"


def test_a_healthy_host_and_folder_have_no_findings() -> None:
    assert keys(list(python_findings(HOST, "n1", needs_submitit=True))) == []
    assert keys(list(host_findings(HOST, "n1"))) == []
    assert keys(list(folder_findings(FOLDER, "n1", several_hosts=True))) == []


def test_findings_on_a_host() -> None:
    bad = dataclasses.replace(
        HOST, shared_memory=64 * 2**20, remove_ipc=True, open_files=1024, python_version="3.9.2",
        packages={**PACKAGES, "torch": None, "submitit": None},
    )  # fmt: skip
    assert keys(list(host_findings(bad, "n1"))) == [
        "warning host.shared_memory", "warning host.remove_ipc", "warning host.open_files",
    ]  # fmt: skip
    assert "64 MiB" in next(iter(host_findings(bad, "n1"))).evidence
    found = list(python_findings(bad, "n1", needs_submitit=True))
    assert keys(found) == ["error python.version", "error python.packages"]
    assert found[1].problem.startswith("torch, submitit missing")
    assert "submitit" not in list(python_findings(bad, "n1", needs_submitit=False))[1].problem


@pytest.mark.parametrize("operation", ["write", "lock", "exclusive", "rename", "link", "sync"])
def test_an_operation_that_fails_is_an_error(operation: str) -> None:
    bad = dataclasses.replace(FOLDER, problems={operation: "No locks available"})
    (finding,) = folder_findings(bad, "this host", several_hosts=True)
    assert (finding.severity, finding.key) == ("error", f"runs.{operation}")
    assert "No locks available" in finding.problem


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        (Mount("/dev/shm", "tmpfs", "tmpfs", "rw"), ["error runs.memory"]),
        (Mount("/", "xfs", "/dev/sda1", "rw"), ["warning runs.not_shared"]),
        (Mount("/home", "nfs", "s:/home", "rw,nolock"), ["warning runs.local_locks"]),
        (Mount("/home", "nfs", "s:/home", "rw,local_lock=none"), []),
        (Mount("/lus", "lustre", "mgs:/lus", "rw,localflock"), ["warning runs.local_locks"]),
        (Mount("/lus", "lustre", "mgs:/lus", "rw,flock"), []),
    ],
)
def test_how_far_the_folder_and_its_locks_reach(mount: Mount, expected: list[str]) -> None:
    folder = dataclasses.replace(FOLDER, mount=mount)
    assert keys(list(folder_findings(folder, "this host", several_hosts=True))) == expected
    assert keys(list(folder_findings(folder, "this host", several_hosts=False))) == []


def test_a_slow_full_file_system_with_a_clock_of_its_own() -> None:
    bad = dataclasses.replace(FOLDER, sync_s=3.0, free=2**30, clock_offset_s=-60.0)
    assert keys(list(folder_findings(bad, "n1", several_hosts=False))) == [
        "warning runs.slow", "warning runs.space", "warning runs.clock",
    ]  # fmt: skip


def test_the_probe_of_this_machine_leaves_nothing_behind(tmp_path: Path) -> None:
    runs = tmp_path / "not" / "there"
    facts = run_probe([sys.executable, "-m", probe.__name__, str(runs)])
    assert (facts.folder.tested, facts.folder.problems) == (str(tmp_path), {})
    assert facts.host.packages["torch"]
    assert facts.host.processors > 0
    assert facts.folder.sync_s is not None
    assert facts.folder.mount is not None
    assert abs(facts.folder.clock_offset_s or 0.0) < 5
    assert [*tmp_path.iterdir()] == []
    assert probe.parsed(json.loads(json.dumps(asdict(facts)))) == facts


def test_a_folder_without_locks_or_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("os.link", refuse)
    assert probe.folder_facts(tmp_path).problems == dict.fromkeys(["lock", "link"], "No locks available")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert "exclusive" in probe.folder_facts(tmp_path).problems


def test_a_lock_of_another_process_is_seen(tmp_path: Path) -> None:
    with probe.locked_folder(tmp_path) as folder:
        assert probe.shared_folder_facts(folder) == SharedFolderFacts(seen=True, locked=True)
        with open(folder / probe.LOCKED) as file:
            fcntl.flock(file, fcntl.LOCK_UN)
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in (probe.MARK, probe.LOCKED):
            (copy / name).touch()
        assert probe.shared_folder_facts(copy) == SharedFolderFacts(seen=True, locked=False)


def test_a_folder_that_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SEEN_WITHIN_S", 0.0)
    assert probe.shared_folder_facts(tmp_path / "elsewhere") == SharedFolderFacts(seen=False, locked=None)


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
        run_probe(["sh", "-c", f"exec 9>&1; {script}"], timeout_s=0.2 if "sleep" in script else 20)
    with pytest.raises(ProbeError, match="No such file"):
        run_probe(["/nope/python"])


def node(**host: object) -> ProbeFacts:
    return ProbeFacts(dataclasses.replace(HOST, host="n2", **host), FOLDER, SharedFolderFacts(True, True))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (node(), []),
        (node(python_identity=(2, 1.0)), ["note python.other_file"]),
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
        (dataclasses.replace(node(), shared=SharedFolderFacts(False, None)), ["error runs.not_shared"]),
        (dataclasses.replace(node(), shared=SharedFolderFacts(True, False)), ["warning runs.local_locks"]),
    ],
)
def test_a_node_beside_the_submitting_host(other: ProbeFacts, expected: list[str]) -> None:
    here = ProbeFacts(HOST, FOLDER)
    assert keys(list(node_findings(here, other, elapsed_s=20.0, gpus=True))) == expected


def test_a_node_of_processors_needs_no_locked_memory() -> None:
    found = node_findings(ProbeFacts(HOST, FOLDER), node(locked_memory=65536), elapsed_s=20.0, gpus=False)
    assert keys(list(found)) == []
