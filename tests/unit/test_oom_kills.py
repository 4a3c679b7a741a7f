"""The OOM counter of a control group, versions 1 and 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records import process_limits
from disttrain.records.json_files import write_text

GROUPS = "sys/fs/cgroup"
SECOND = "low 0\nhigh 0\nmax 812\noom 4\noom_kill 3\noom_group_kill 1\n"
FIRST = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
OLD_FIRST = "oom_kill_disable 0\nunder_oom 0\n"  # before Linux 4.13


@pytest.mark.parametrize(
    ("own", "files", "kills"),
    [
        ("0::/slurm/job_7/task_0\n", {"slurm/job_7/task_0/memory.events": SECOND}, 3),
        ("0::/\n", {"memory.events": SECOND}, 3),
        ("0::/\n", {}, None),
        ("0::/gone\n", {"memory.events": SECOND}, None),
        ("5:cpu,cpuacct:/b\n4:memory:/job_7\n0::/a\n", {"memory/job_7/memory.oom_control": FIRST}, 2),
        ("4:blkio,memory:/job_7\n", {"memory/job_7/memory.oom_control": FIRST}, 2),
        ("4:memory:/docker/ab\n", {"memory/memory.oom_control": FIRST}, 2),
        ("4:memory:/job_7\n", {"memory/job_7/memory.oom_control": OLD_FIRST}, None),
        ("3:name=memory-like:/job_7\n", {"memory/job_7/memory.oom_control": FIRST}, None),
        (None, {}, None),
    ],
)
def test_the_count_of_this_processs_group(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str | None,
    files: dict[str, str],
    kills: int | None,
) -> None:
    monkeypatch.setattr(process_limits, "ROOT", tmp_path)
    if own is not None:
        write_text(tmp_path / "proc/self/cgroup", own)
    for name, text in files.items():
        write_text(tmp_path / GROUPS / name, text)
    assert process_limits.count_oom_kills() == kills
