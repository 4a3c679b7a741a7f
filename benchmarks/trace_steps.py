"""The steps in a trace that a run wrote on request (`profile.steps`)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from disttrain.telemetry.profiled.step_trace import END, MARK, Interval

Event = dict[str, Any]


def traced_steps(trace: Path) -> Iterator[tuple[list[Event], Event]]:
    """The events of each step from its first mark on, and its last mark."""
    with gzip.open(trace, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    events.sort(key=lambda event: float(event["ts"]))
    start = None
    for mark in events:
        if mark["name"].startswith(MARK) and mark.get("cat") == "user_annotation":
            start = mark["ts"] if start is None else start
            if mark["name"] == f"{MARK}{END}":
                yield [event for event in events if start <= event["ts"] <= mark["ts"]], mark
                start = None


def spans(events: Iterable[Event]) -> list[Interval]:
    """Begin and end in seconds."""
    return [(event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6) for event in events]


def operators(events: Iterable[Event], mark: Event) -> list[Event]:
    """Those of the training thread, which made the mark."""
    return [event for event in events if event.get("cat") == "cpu_op" and event.get("tid") == mark.get("tid")]
