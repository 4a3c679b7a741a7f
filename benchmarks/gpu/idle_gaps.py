"""Idle gaps of a device in a profiled step: the time between its kernels, from the trace of the step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from disttrain.telemetry.trace_parsing import merged, parse_trace

_LONGEST = 10
"""Number of gaps that are listed."""


def idle_gaps(trace: Path) -> dict[str, Any]:
    """Of each step in the trace of a rank: its seconds, seconds without a kernel (on a CPU, without an
    operator), number of gaps, and the longest gaps as (start in the step, length) in seconds."""
    with gzip.open(trace, "rt") as file:
        steps = parse_trace(json.load(file))
    found = []
    for step in steps:
        start, end = step.step
        used = merged([*step.device, *(each.interval for each in step.collectives)])
        gaps, at = [], start
        for begin, until in used:
            if begin > at:
                gaps.append((at - start, begin - at))
            at = max(at, until)
        if end > at:
            gaps.append((at - start, end - at))
        longest = sorted(gaps, key=lambda gap: gap[1], reverse=True)[:_LONGEST]
        idle_s = sum(length for _, length in gaps)
        found.append({"step_s": end - start, "idle_s": idle_s, "gaps": len(gaps), "longest_gaps_s": longest})
    return {"steps": found}
