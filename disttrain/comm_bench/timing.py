"""Durations of operations that all ranks begin together, and the conditions that a result states."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from disttrain.config.config_tree import Config
from disttrain.records.comm_bench import Timing
from disttrain.runtime.device import device_name, nccl_version
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World

CONFIDENCE = 0.95


def parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Config]:
    """The command line with `--device`, and a config with the ranks of this job."""
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "shared"])
    given, info = parser.parse_args(), rank_info()
    resources = {"nodes": info.nodes, "gpus_per_node": info.local_size, "device": given.device}
    return given, Config.model_validate({"resources": resources, "precision": {"dtype": "fp32"}})


def conditions(world: World) -> dict[str, Any]:
    """Conditions of a measurement, as in `CommBench` and `FabricAb`."""
    return {
        "device": device_name(world.device),
        "backend": world.backend or "",
        "nodes": world.nodes,
        "ranks_per_node": world.local_size,
        "torch": torch.__version__,
        "nccl": nccl_version(),
    }


def timed(world: World, act: Callable[[], object]) -> float:
    """Seconds of `act` on this rank, from the instant at which all ranks had arrived to the end of the
    device's work. All ranks together."""
    _finish(world)
    world.all_reduce_max([0.0])  # between hosts: each rank leaves when the last one has come
    began = time.perf_counter()
    act()
    _finish(world)
    return time.perf_counter() - began


def last_to_arrive(world: World, seconds: Sequence[float]) -> list[float]:
    """The minimum over ranks of each repeat: the duration without waiting for a peer. All ranks together."""
    return [-value for value in world.all_reduce_max([-value for value in seconds])]


def summary(seconds: Sequence[float]) -> Timing:
    """The median of the repeats and its interval."""
    median, low, high = median_interval(seconds)
    return Timing(median_s=median, low_s=low, high_s=high, repeats=len(seconds))


def median_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The median, and the ends of its interval from order statistics, which are None for too few values."""
    from scipy.stats import quantile_test  # 1 s, which the pre-flight saves

    median = statistics.median(values)
    low, high = map(float, quantile_test(values, p=0.5).confidence_interval(CONFIDENCE))
    return (median, None, None) if math.isnan(low) else (median, low, high)


def _finish(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
