"""Idle gaps of a device in a profiled step: the time between its kernels, from the trace of the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.trace_steps import operators, spans, traced_steps
from disttrain.telemetry.profiled.step_trace import merged

_LONGEST = 10
"""Number of gaps that are listed."""


def idle_gaps(trace: Path) -> dict[str, Any]:
    """Of each step in the trace of a rank: its seconds, seconds without a kernel (on a CPU, without an
    operator of the training thread or a collective), number of gaps, and the longest gaps as (start in the
    step, length) in seconds."""
    found = []
    for events, mark in traced_steps(trace):
        kernels = [event for event in events if event.get("cat") == "kernel"]
        gloo = [event for event in events if event["name"].startswith("gloo:")]
        start, end = events[0]["ts"] / 1e6, mark["ts"] / 1e6
        gaps, at = [], start
        for begin, until in [*merged(spans(kernels or operators(events, mark) + gloo)), (end, end)]:
            if begin > at:
                gaps.append((at - start, begin - at))
            at = max(at, until)
        longest = sorted(gaps, key=lambda gap: gap[1], reverse=True)[:_LONGEST]
        idle_s = sum(length for _, length in gaps)
        found.append({"step_s": end - start, "idle_s": idle_s, "gaps": len(gaps), "longest_gaps_s": longest})
    return {"steps": found}
