"""The statistics that benchmarks compute from raw numbers."""

from __future__ import annotations

import math

import pytest

from benchmarks import (
    checkpoint_plan,
    commands,
    fabric_telemetry,
    file_system_calls,
    memory,
    memory_ranks,
    trainer,
)
from disttrain.hardware.links import find_links


def test_a_ratio_is_a_geometric_mean_over_launches_with_a_t_interval():
    half = 4.302653 * 0.002 / math.sqrt(3)  # t of 2 degrees of freedom, standard deviation 0.002
    ratio, interval = trainer.mean_ratio([0.001, 0.003, 0.005])
    assert ratio == pytest.approx(math.exp(0.003))
    assert interval == pytest.approx([math.exp(0.003 - half), math.exp(0.003 + half)])


def test_added_time_is_a_mean_over_launches_of_medians_over_rounds():
    launches = [
        {"seconds": {"bare": [1.0, 1.0, 1.0], "disttrain": [1.0 + added, 9.0, 1.0]}, "steps": 1000}
        for added in (0.001, 0.003)
    ]
    found = trainer.beside(launches, "bare", "disttrain")
    assert found["added_us"] == pytest.approx(2.0)
    low, high = found["added_us_95"]
    assert low < 2.0 < high


def test_a_command_has_medians_and_the_extremes_of_its_wall_time():
    raw = {"help": {"wall_s": [0.1, 0.6, 0.2], "processor_s": [0.1, 0.3, 0.2], "peak_mb": [50.0, 52.0, 51.0]}}
    expected = {"wall_s": 0.2, "processor_s": 0.2, "peak_mb": 51.0, "least_wall_s": 0.1, "most_wall_s": 0.6}
    assert commands.figures(raw)["help"] == expected


STRACE = """\
7 100.0 openat(AT_FDCWD</x>, "/runs/a/exits", O_RDONLY|O_DIRECTORY) = 3</runs/a/exits>
7 100.5 getdents64(3</runs/a/exits>, 0x5 /* 2 entries */, 32768) = 48
7 101.0 newfstatat(AT_FDCWD</x>, "/elsewhere/file", {st_mode=S_IFREG|0644}, 0) = 0
9 101.5 write(5</runs/a/steps-00000.jsonl>, "{}", 2) = 2
9 102.0 newfstatat(AT_FDCWD</x>, "/runs/a/STOP", 0x7, 0) = -1 ENOENT (No such file or directory)
9 102.5 +++ exited with 0 +++
""".splitlines()


def test_calls_below_the_runs_folder_are_counted():
    counts = file_system_calls.count_calls(STRACE, "/runs/", 100.2, 102.2)
    assert counts == {"getdents64": 1, "write": 1, "newfstatat": 1}
    raw = {"seconds": 30.0, "steps": 9, "calls": [{}, dict(counts)]}
    found = file_system_calls.figures(raw)
    assert (found["node_0_metadata_calls"], found["other_node_metadata_calls"]) == (0.0, 4.0)
    assert found["other_node_data_calls"] == 2.0


def test_planning_a_checkpoint_at_many_ranks_is_a_sum_of_parts():
    raw = checkpoint_plan.measure(ranks=8, layers=1, repeats=3)
    raw["taken_s"] = {"share": [0.3, 0.1, 0.2], "receive": [0.01] * 3, "metadata": [0.02] * 3}
    found = checkpoint_plan.figures(raw)
    assert (found["ranks"], found["tensors"], found["share_s"]) == (8, 4 * 19 + 8 * 4, 0.2)
    assert found["total_s"] == pytest.approx(0.23)


def test_memory_is_compared_with_no_option_and_with_the_estimate():
    cases = {
        "none": {"peak_bytes": 200 << 20, "allocated_bytes": 190 << 20, "estimate_bytes": 190 << 20},
        "full": {"peak_bytes": 100 << 20, "allocated_bytes": 50 << 20, "estimate_bytes": 40 << 20},
    }
    found = memory.figures({"device": "cpu", "cases": cases})
    assert found["cases"]["full"] == {
        "peak_mib": 100.0,
        "allocated_mib": 50.0,
        "reduction_percent": 50.0,
        "estimate_error_percent": -20.0,
    }
    assert found["largest_estimate_error_percent"] == 20.0


def test_the_memory_of_ranks_is_compared_with_the_estimate_and_with_gloo():
    mib = 1 << 20
    on_gloo = [(60 * mib, 50 * mib), (55 * mib, 51 * mib)]
    case = {"peak": 50 * mib, "gathered": 2, "model": 8, "peaks_on_gloo": on_gloo, "estimate": 55 * mib}
    found = memory_ranks.figures({"cases": {"fsdp": case}})
    assert found["cases"]["fsdp"] == {
        "peak_bytes": 50 << 20,
        "estimate_error_percent": 10.0,
        "gathered_percent": 25.0,
        "transport_percent": 6.0,
        "transport_least_percent": 0.0,
        "transport_most_percent": 20.0,
    }
    assert (found["largest_estimate_error_percent"], found["repeats"]) == (10.0, 2)


def test_telemetry_of_the_network_is_timed_in_each_call():
    raw = fabric_telemetry.measure(adapters=2, interfaces=3, lines=50, repeats=4)
    assert (len(raw["sample_s"]), len(raw["log_s"])) == (4, 3)
    found = fabric_telemetry.figures(raw | {"sample_s": [0.001, 0.002, 0.009], "log_s": [0.05]})
    assert (found["sample_ms"], found["sample_percent"], found["log_ms"]) == (2.0, 0.2, 50.0)
    assert len(fabric_telemetry.log_lines(50)) == 50


def test_a_sample_reads_all_links_of_the_node(tmp_path):
    fabric_telemetry.write_node(tmp_path, 2, 3)
    assert len(find_links("nccl", {}, tmp_path)[0]) == 5
