"""Idle gaps of a device in a profiled step: the time between its kernels, from the trace of the step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from disttrain.telemetry.profiled.step_trace import END, MARK, merged

_LONGEST = 10
"""Number of gaps that are listed."""


def idle_gaps(trace: Path) -> dict[str, Any]:
    """Of each step in the trace of a rank: its seconds, seconds without a kernel (on a CPU, without an
    operator of the training thread or a collective), number of gaps, and the longest gaps as (start in the
    step, length) in seconds."""
    with gzip.open(trace, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    marks = [e for e in events if e["name"].startswith(MARK) and e.get("cat") == "user_annotation"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    thread = marks[0].get("tid")
    busy = kernels or [
        event
        for event in events
        if (event.get("cat") == "cpu_op" and event.get("tid") == thread) or event["name"].startswith("gloo:")
    ]
    steps, start = [], None
    for mark in sorted(marks, key=lambda event: event["ts"]):
        start = mark["ts"] if start is None else start
        if mark["name"] == f"{MARK}{END}":
            steps.append(_gaps(busy, start, mark["ts"]))
            start = None
    return {"steps": steps}


def _gaps(busy: list[dict[str, Any]], start: float, end: float) -> dict[str, Any]:
    """Gaps between these events in a step, whose ends are in microseconds."""
    spans = [(e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in busy if start <= e["ts"] < end]
    gaps, at = [], start / 1e6
    for begin, until in [*merged(spans), (end / 1e6, end / 1e6)]:
        if begin > at:
            gaps.append((at - start / 1e6, begin - at))
        at = max(at, until)
    longest = sorted(gaps, key=lambda gap: gap[1], reverse=True)[:_LONGEST]
    idle_s = sum(length for _, length in gaps)
    step_s = (end - start) / 1e6
    return {"step_s": step_s, "idle_s": idle_s, "gaps": len(gaps), "longest_gaps_s": longest}
