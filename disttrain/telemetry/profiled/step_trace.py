"""The trace of a profiled step, read as one `CommSample`.

On a device, collectives are NCCL's kernels, and compute is the union of all other kernels except those of the
optimizer. On a CPU, collectives are gloo's annotations, and compute is the time in phase `compute` of the
step clock, which marks its phases in the trace. Collectives may overlap, so intervals are merged before they
are measured, never summed.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.profiler import profile

from disttrain.records.communication import CommSample, SampledCollective
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.telemetry.step_clock import COMMUNICATION, COMPUTE, REPLICATE_SYNC, SHARD_SYNC

MARK = "disttrain::phase-"
"""Prefix of the names of the step clock's marks; the phase that begins there follows."""
END = -1
"""In place of a phase: the end of the step."""

Interval = tuple[float, float]
"""Begin and end in seconds."""
Event = Mapping[str, Any]

_HOST_EVENT = re.compile('"cat": "(?:cpu_op|cuda_runtime|cuda_driver|python_function|ac2g|fwdbwd)"')
_BEGIN = "\n  {\n"
"""Begin of an event in Kineto's file."""
_GLOO = "gloo:"
_OPTIMIZER = "Optimizer."
_BYTES = {
    "double": 8, "float": 4, "bfloat16": 2, "half": 2, "long int": 8, "long": 8, "int": 4,
    "unsigned char": 1, "byte": 1, "char": 1, "bool": 1,
}  # fmt: skip
"""By the names of gloo (`c10::BFloat16`) and NCCL (`BFloat16`), in lower case without namespace."""
_NCCL_KINDS = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_to_allv": "all_to_all",
}
_DIMENSIONS: dict[int, Dimension] = {SHARD_SYNC: "shard", REPLICATE_SYNC: "replicate"}
_MESH_GROUPS: dict[str, Dimension] = {"mesh_shard": "shard", "mesh_replicate": "replicate"}
"""Description that a `DeviceMesh` gives to the process group of a dimension."""


def read_trace(profiler: profile) -> dict[str, Any]:
    """The trace of a profiler that has stopped (see `decode_trace`).

    Raises `OSError`, `ValueError` or `RuntimeError`.
    """
    with tempfile.TemporaryDirectory(prefix="disttrain-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return decode_trace(path.read_text())


def decode_trace(text: str) -> dict[str, Any]:
    """The trace in a file that Kineto wrote, without operators, calls of the CUDA runtime, and links between
    events: a step of a large model has a hundred thousand of them, which take seconds to decode. Raises
    `ValueError` if it is not JSON."""
    head, *events = text.split(_BEGIN)
    kept = [event for event in events[:-1] if not _HOST_EVENT.search(event)]
    last = events[-1:]  # has the end of the file
    return dict(json.loads(_BEGIN.join([head, *kept, *last])))


def comm_sample(step: int, trace: Event, sizes: Mapping[Dimension, int] | None = None) -> CommSample:
    """One rank's communication in the step of a trace. Raises `ValueError` for a trace without marks.

    A device is idle at the first and the last mark. `sizes`: ranks of this rank's group of each dimension of
    the mesh, which gloo's annotations lack.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    origin, phases = _phases(events)
    step_s = phases[-1][0][1]
    ranks = trace.get("distributedInfo", {}).get("world_size", 1)
    kernels, updates, on_device, on_host = [], [], [], []
    for event in events:
        name, category, begin = event["name"], event.get("cat"), event["ts"] / 1e6 - origin
        span = (begin, begin + event["dur"] / 1e6)
        if not 0 <= begin < step_s:
            continue
        if category == "kernel" and "nccl" in name.lower():
            on_device.append((span, _nccl(event, ranks)))
        elif category == "kernel":
            kernels.append(span)
        elif category == "gpu_user_annotation" and name.startswith(_OPTIMIZER):
            updates.append(span)
        elif name.startswith(_GLOO):
            phase = next(phase for (_, until), phase in phases if begin < until)
            on_host.append((span, _gloo(event, ranks, _DIMENSIONS.get(phase), sizes or {})))
    if kernels or on_device:
        calls, ends = on_device, [step_s]
        compute = merged(
            span for span in kernels if not any(begin <= span[0] < end for begin, end in updates)
        )
    else:
        calls, compute = on_host, [span for span, phase in phases if phase == COMPUTE]
        # gloo's annotation ends with the work of its thread, up to milliseconds after backward() continued
        ends = [until for (_, until), phase in phases if phase in COMMUNICATION] + [step_s]
    calls.sort(key=lambda call: call[0])
    # a collective ends no later than this rank stopped waiting for it
    intervals = [(begin, min(until, next(at for at in ends if at > begin))) for (begin, until), _ in calls]
    union = merged(intervals)
    total_s, hidden_s = length(union), sum(covered(union, compute))
    kinds = [call["kind"] for _, call in calls]
    collectives = [
        SampledCollective(
            **call,
            bucket=kinds[:index].count(call["kind"]),
            start_s=begin,
            duration_s=until - begin,
            hidden_s=under_s,
            exposed_s=until - begin - under_s,
        )
        for index, ((begin, until), under_s, (_, call)) in enumerate(
            zip(intervals, covered(intervals, compute), calls, strict=True)
        )
    ]
    return CommSample(
        step=step, step_s=step_s, compute_s=length(compute),
        total_s=total_s, hidden_s=hidden_s, exposed_s=total_s - hidden_s, collectives=collectives,
    )  # fmt: skip


def _phases(events: list[Event]) -> tuple[float, list[tuple[Interval, int]]]:
    """The first instant at which the step clock switched, and the phases as seconds from it on."""
    marks = sorted(
        (event["ts"] / 1e6, int(event["name"][len(MARK) :]))
        for event in events
        # a device trace contains each annotation a second time, for the kernels
        if event["name"].startswith(MARK) and event.get("cat") == "user_annotation"
    )
    if END not in (phase for _, phase in marks):
        raise ValueError("the trace has no marks of the step clock")
    origin = marks[0][0]
    return origin, [
        ((begin - origin, until - origin), phase) for (begin, phase), (until, _) in itertools.pairwise(marks)
    ]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Union of intervals, as disjoint intervals in order."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def length(intervals: Iterable[Interval]) -> float:
    """Total seconds of disjoint intervals."""
    return sum(end - begin for begin, end in intervals)


def covered(intervals: Iterable[Interval], by: Sequence[Interval]) -> list[float]:
    """Seconds of each interval that lie in one of `by`, which are disjoint and in order."""
    edges = np.array([(0.0, 0.0), *by]).ravel()
    parts = np.diff(edges, prepend=0.0)
    parts[::2] = 0.0  # between two of them
    before = np.interp(np.array([*intervals]).reshape(-1, 2), edges, np.cumsum(parts))
    seconds: list[float] = (before[:, 1] - before[:, 0]).tolist()
    return seconds


def _width(dtype: str) -> int | None:
    return _BYTES.get(dtype.removeprefix("c10::").lower())


def _gloo(
    event: Event, ranks: int, dimension: Dimension | None, sizes: Mapping[Dimension, int]
) -> dict[str, Any]:
    """Kind, size and group of a collective of gloo; the trace has the size of the input."""
    arguments, kind = event.get("args", {}), event["name"][len(_GLOO) :]
    ranks = ranks if dimension is None else sizes.get(dimension, ranks)
    shapes, dtypes = arguments.get("Input Dims", []), arguments.get("Input type", [])
    size = sum(math.prod(dims) * (_width(dtype) or 0) for dims, dtype in zip(shapes, dtypes, strict=False))
    size *= ranks if kind == "all_gather" else 1
    return {"kind": kind, "bytes": size or None, "ranks": ranks, "dimension": dimension or "world"}


def _nccl(event: Event, ranks: int) -> dict[str, Any]:
    """Kind, size and group of a collective of NCCL."""
    arguments = event.get("args", {})
    name, width = arguments.get("Collective name", ""), _width(arguments.get("dtype", ""))
    sizes = [arguments[key] for key in ("In msg nelems", "Out msg nelems") if key in arguments]
    return {
        "kind": _NCCL_KINDS.get(name, name or "nccl"),
        "bytes": max(map(int, sizes)) * width if sizes and width else None,
        "ranks": int(arguments.get("Group size", ranks)),
        "dimension": _MESH_GROUPS.get(arguments.get("Process Group Description", ""), "world"),
    }
