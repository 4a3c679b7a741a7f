"""Parts of benchmarks that the committed records do not recompute (`test_claims`)."""

from __future__ import annotations

from pathlib import Path

from benchmarks import checkpoint_plan, fabric_telemetry, file_system_calls
from disttrain.hardware.links import find_links

STRACE = """\
7 100.0 openat(AT_FDCWD</x>, "/runs/a/exits", O_RDONLY|O_DIRECTORY) = 3</runs/a/exits>
7 100.5 getdents64(3</runs/a/exits>, 0x5 /* 2 entries */, 32768) = 48
7 101.0 newfstatat(AT_FDCWD</x>, "/elsewhere/file", {st_mode=S_IFREG|0644}, 0) = 0
9 101.5 write(5</runs/a/steps-00000.jsonl>, "{}", 2) = 2
9 102.0 newfstatat(AT_FDCWD</x>, "/runs/a/STOP", 0x7, 0) = -1 ENOENT (No such file or directory)
9 102.5 +++ exited with 0 +++
""".splitlines()


def test_calls_below_the_runs_folder_are_counted() -> None:
    counts = file_system_calls.count_calls(STRACE, "/runs/", 100.2, 102.2)
    assert counts == {"getdents64": 1, "write": 1, "newfstatat": 1}


def test_a_checkpoint_is_planned_for_the_tensors_of_all_ranks() -> None:
    raw = checkpoint_plan.measure(ranks=8, layers=1, repeats=1)
    assert (raw["ranks"], raw["tensors"]) == (8, 4 * 19 + 8 * 4)


def test_telemetry_of_the_network_is_timed_over_all_links_of_a_node(tmp_path: Path) -> None:
    fabric_telemetry.write_node(tmp_path, 2, 3)
    assert len(find_links("nccl", {}, tmp_path)[0]) == 5
    raw = fabric_telemetry.measure(adapters=2, interfaces=3, lines=50, repeats=4)
    assert (len(raw["sample_s"]), len(raw["log_s"])) == (4, 3)
    found = fabric_telemetry.figures(raw | {"sample_s": [0.001, 0.002, 0.009], "log_s": [0.05]})
    assert (found["sample_ms"], found["sample_percent"], found["log_ms"]) == (2.0, 0.2, 50.0)
