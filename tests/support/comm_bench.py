"""A result of the communication benchmark, made up."""

from __future__ import annotations

from typing import Any

from disttrain.records.comm_bench import CollectiveTiming, CommBench, StepTiming, Timing


def timing(median_s: float) -> Timing:
    return Timing(median_s=median_s, low_s=0.9 * median_s, high_s=1.2 * median_s, repeats=15)


def step(name: str, step_s: float, speed_up: float, sent: int) -> StepTiming:
    values: dict[str, Any] = {
        "speed_up": speed_up,
        "speed_up_low": speed_up - 0.1,
        "speed_up_high": speed_up + 0.1,
    }
    return StepTiming(
        name=name,
        options="",
        step=timing(step_s),
        exposed_s=step_s - 0.01,
        exposed_low_s=step_s - 0.012,
        exposed_high_s=step_s - 0.009,
        bytes=sent,
        **values,
    )


def result(**changed: Any) -> CommBench:
    """2 x 2 ranks; 8 MB of gradients take 40 ms beside 10 ms of compute."""
    timed = CollectiveTiming(
        kind="all_reduce", bytes=2**20, time=timing(0.01), algorithm_bytes_per_s=1e8, bus_bytes_per_s=1.5e8
    )
    steps = [
        step("baseline", 0.05, 1.0, 8_000_000),
        step("topk", 0.02, 2.5, 160_000),
        StepTiming(name="hierarchical", options="scheme=hierarchical", reason="1 x 2 ranks"),
    ]
    fields: dict[str, Any] = {
        "device": "cpu", "backend": "gloo", "nodes": 2, "ranks_per_node": 2, "one_machine": True,
        "cpu_count": 2, "torch": "2", "nccl": None, "width": 1000, "layers": 2, "rows": 4,
        "gradient_bytes": 8_000_000, "compute": timing(0.01), "collectives": [timed], "steps": steps,
    }  # fmt: skip
    return CommBench(**fields | changed)
