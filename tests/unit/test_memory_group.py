"""The control group of tests, or the reason why there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.memory_group import NoMemoryGroup, make_memory_group


def machine(root: Path, groups: str, subtree: str | None = None) -> Path:
    """A machine with these control groups of its process; the folder of the groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    top = root / "sys/fs/cgroup"
    top.mkdir(parents=True)
    if subtree is not None:
        (top / "cgroup.subtree_control").write_text(subtree)
    return top


def test_version_1_makes_it_below_the_group_of_the_process(tmp_path: Path) -> None:
    top = machine(tmp_path, "9:name=systemd:/\n4:memory:/job/7\n0::/\n")
    (top / "memory/job/7").mkdir(parents=True)
    made = make_memory_group(5, tmp_path)
    assert made == top / f"memory/job/7/disttrain-test-{os.getpid()}"
    assert (made / "memory.limit_in_bytes").read_text() == "5"


@pytest.mark.parametrize("before", ["cpu memory", "cpu"])
def test_version_2_gives_children_the_memory_controller_if_they_have_none(
    tmp_path: Path, before: str
) -> None:
    top = machine(tmp_path, "0::/\n", before)
    assert (make_memory_group(5, tmp_path) / "memory.max").read_text() == "5"
    assert "memory" in (top / "cgroup.subtree_control").read_text()


def test_a_container_whose_processes_are_in_the_mounted_group_has_its_reason_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = machine(tmp_path, "0::/\n", "cpu")
    monkeypatch.setattr(Path, "write_text", refused(OSError(16, "Device or resource busy")))
    with pytest.raises(NoMemoryGroup) as caught:
        make_memory_group(5, tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{top}/cgroup.subtree_control: Device or resource busy: groups below {top} have")
    assert f"echo +memory > {top}/cgroup.subtree_control" in said
    assert [path.name for path in top.iterdir()] == ["cgroup.subtree_control"], "no group is left"


def test_a_read_only_tree_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = machine(tmp_path, "0::/\n", "memory")
    folder = top / f"disttrain-test-{os.getpid()}"
    error = OSError(30, "Read-only file system", str(folder))
    monkeypatch.setattr(Path, "mkdir", refused(error))
    with pytest.raises(NoMemoryGroup, match=r"Read-only file system; root and a writable .* are needed"):
        make_memory_group(5, tmp_path)


def refused(error: OSError):  # type: ignore[no-untyped-def]
    def refuse(*_: object) -> None:
        raise error

    return refuse
