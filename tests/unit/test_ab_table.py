"""Text of an A/B comparison, compared with a golden file: UPDATE_GOLDEN=1 rewrites it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from disttrain.records.comm_bench import AbComparison, FabricAb
from jobs.arms.result import NONE, lines_to_keep, progress_line
from jobs.cli.bench import render, sweep_name
from sweeps.overrides import parse_set
from tests.support.golden import golden

RING, SOCKETS = {"NCCL_ALGO": "Ring"}, {"NCCL_NSOCKS_PERTHREAD": "4"}


def comparison(variables: dict[str, str], verdict: str, ratio: float | None, **changed: Any) -> AbComparison:
    fields: dict[str, Any] = {
        "variables": variables, "verdict": verdict, "reason": None, "ratio": ratio,
        "low": ratio and ratio - 0.006, "high": ratio and ratio + 0.008, "pairs": 24, "alpha": 0.0125,
        "duration_s": 61.0, "without_s": [0.05] * 24, "with_s": [0.05] * 24,
    }  # fmt: skip
    return AbComparison(**fields | changed)


def result(**changed: Any) -> FabricAb:
    """Five variables, of which two gain."""
    alone = [
        comparison(RING, "gain", 1.042),
        comparison({"NCCL_BUFFSIZE": "8388608"}, "equivalent", 1.001),
        comparison(SOCKETS, "gain", 1.11),
        comparison(
            {"NCCL_PROTO": "LL"}, "undecided", 0.994, pairs=200, reason="largest number of pairs: 200"
        ),
        comparison(
            {"NCCL_SOCKET_IFNAME": "ib9"}, "failed", None, pairs=0, reason="no interface 'ib9'", without_s=[]
        ),
    ]
    fields: dict[str, Any] = {
        "device": "NVIDIA H100", "backend": "nccl", "nodes": 2, "ranks_per_node": 8, "torch": "2.9",
        "nccl": "2.27.5", "step": "DDP step of 8 layers 1024 x 1024, 16 samples a rank, 33.6 MB of gradients "
        "in buckets of 25 MiB", "steps_per_block": 40, "margin": 0.01, "level": 0.05,
        "removed": ["NCCL_ALGO"], "alone": alone, "together": comparison(RING | SOCKETS, "gain", 1.16),
        "complete": True,
    }  # fmt: skip
    return FabricAb(**fields | changed)


def test_the_printed_result():
    golden("fabric-ab.txt", render(result()) + "\n")
    assert "has not ended" in render(result(complete=False))


def test_the_lines_to_keep_are_part_of_a_profile():
    lines = lines_to_keep(result())
    variables = yaml.safe_load("\n".join(lines[1:-1]))["environment"]
    assert {name: each["value"] for name, each in variables.items()} == RING | SOCKETS
    assert "1.042 times the steps/s (1.036 to 1.050) on 2 x 8 ranks, nccl" in variables["NCCL_ALGO"]["reason"]
    assert set_words(lines) == RING | SOCKETS


def set_words(lines: list[str]) -> dict[str, str]:
    """The values that `--set` gives the variables, as a shell reads the line."""
    overrides = [parse_set(word) for word in shlex.split(lines[-1].partition("--set ")[2])]
    assert all(len(each.values) == 1 for each in overrides)
    return {each.key.removeprefix("job.env."): each.values[0] for each in overrides}


@pytest.mark.parametrize("value", ["Ring,Tree", "022", "=mlx5_0,mlx5_1", "a b'c", "$HOME", "true", ""])
def test_the_option_for_a_sweep_gives_the_same_text(value):
    gain = comparison({"NCCL_ALGO": value}, "gain", 1.04)
    assert set_words(lines_to_keep(result(alone=[gain], together=gain))) == {"NCCL_ALGO": value}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"alone": [comparison(RING, "equivalent", 1.0)], "together": None}, "nothing to keep: none gained"),
        ({"together": None}, "nothing to keep: not compared again"),
        ({"together": comparison(RING, "undecided", 1.01)}, "nothing to keep: did not gain again"),
        ({"alone": [], "together": None}, "nothing to compare"),
        ({"alone": [], "together": None, "complete": False}, "nothing to keep: none gained"),
    ],
)
def test_without_a_gain_nothing_is_to_be_kept(changed, line):
    (text,) = lines_to_keep(result(**changed))
    assert text.startswith(line)


def test_progress_has_the_state_of_the_comparison():
    text = progress_line(comparison(RING, "undecided", 1.02, low=None, pairs=3))
    assert text == f"NCCL_ALGO=Ring: 3 pairs, ratio 1.020 ({NONE}): undecided"


def test_a_sweep_is_named_after_its_variables():
    assert sweep_name({"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "A": ""}) == "ab-NCCL_IB_HCA-mlx5_0-mlx5_1-A"
    assert len(sweep_name({"A" * 300: "1"})) <= 60
