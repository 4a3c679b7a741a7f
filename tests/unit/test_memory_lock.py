"""Limit of locked memory: the kernel ignores it for processes with CAP_IPC_LOCK."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.fabric.kernel_files import FileTree
from jobs.fabric.software import Process, effective_limit, limit_bytes, read_software

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max address space         unlimited            unlimited            bytes
Max locked memory         {limit}              {limit}              bytes
Max file locks            unlimited            unlimited            locks
"""
STATUS = """\
Name:\tpython3
CapInh:\t0000000000000000
CapPrm:\t{capabilities}
CapEff:\t{capabilities}
CapBnd:\t000001ffffffffff
"""
"""As Linux 6.8 and 5.14 print them."""
ROOT, CONTAINER, USER = "000001ffffffffff", "00000000a80425fb", "0000000000000000"
"""All capabilities; Docker's default ones, without CAP_IPC_LOCK; none."""
INITIAL, ROOTLESS = "         0          0 4294967295\n", "         0       1000          1\n"


@pytest.mark.parametrize(
    ("limit", "capabilities", "uid_map", "expected"),
    [
        ("65536", ROOT, INITIAL, "unlimited"),
        ("65536", "0000000000004000", INITIAL, "unlimited"),  # CAP_IPC_LOCK alone
        ("65536", ROOT, None, "unlimited"),  # a kernel without user namespaces
        ("65536", ROOT, ROOTLESS, "65536"),  # root of a container only
        ("65536", CONTAINER, INITIAL, "65536"),
        ("8388608", USER, INITIAL, "8388608"),
        ("unlimited", USER, INITIAL, "unlimited"),
    ],
)
def test_the_limit_has_no_effect_with_the_capability(
    limit: str, capabilities: str, uid_map: str | None, expected: str
) -> None:
    status = STATUS.format(capabilities=capabilities)
    assert effective_limit(LIMITS.format(limit=limit), status, uid_map) == expected
    assert limit_bytes(expected) == (None if expected == "unlimited" else int(expected))


def test_files_that_are_missing_leave_the_limit(tmp_path: Path) -> None:
    assert effective_limit(LIMITS.format(limit="65536"), None, None) == "65536"
    assert effective_limit(None, STATUS.format(capabilities=ROOT), INITIAL) is None
    assert limit_bytes(None) is None


def test_the_description_of_a_node_has_the_effective_limit(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "self"
    folder.mkdir(parents=True)
    (folder / "limits").write_text(LIMITS.format(limit="65536"))
    (folder / "uid_map").write_text(INITIAL)
    for capabilities, limit in ((USER, 65536), (ROOT, None)):
        (folder / "status").write_text(STATUS.format(capabilities=capabilities))
        assert read_software(FileTree(tmp_path), Process(), None).memory_lock_bytes == limit
