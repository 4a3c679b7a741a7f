"""Parse a profiler trace: intervals of collectives and of compute in each step. Pure functions.

A trace is the JSON that `torch.profiler` exports. On a device, collectives are NCCL's kernels, and compute is
the union of all other kernels except those of the optimizer. On a CPU, collectives are gloo's annotations,
and compute is the time in phase `compute` of the step clock, which marks its phases in the trace. Collectives
may overlap, so intervals are merged before they are measured, never summed.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.telemetry.step_clock import COMMUNICATION, COMPUTE, REPLICATE_SYNC, SHARD_SYNC

MARK = "disttrain::phase-"
"""Prefix of the names of the step clock's marks; the phase that begins there follows."""
END = -1
"""In place of a phase: the end of the step."""

Interval = tuple[float, float]
"""Begin and end in seconds."""

_GLOO = "gloo:"
_BACKWARD = "autograd::engine::evaluate_function"
_LOADING = "enumerate(DataLoader)"
_OPTIMIZER = "Optimizer."
_BYTES = {
    "double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4,
    "unsigned char": 1, "bool": 1,  # gloo's, then NCCL's
    "Double": 8, "Float": 4, "BFloat16": 2, "Half": 2, "Long": 8, "Int": 4, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip
_NCCL_KINDS = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
}
_DIMENSIONS: dict[int, Dimension] = {SHARD_SYNC: "shard", REPLICATE_SYNC: "replicate"}
_MESH_GROUPS: dict[str, Dimension] = {"mesh_shard": "shard", "mesh_replicate": "replicate"}
"""Description that a `DeviceMesh` gives to the process group of a dimension."""


@dataclass(frozen=True)
class Collective:
    """One collective operation on this rank."""

    kind: str
    bytes: int | None
    """Size of the larger of input and output, as nccl-tests counts; None where the trace has no sizes."""
    ranks: int
    """Ranks of its process group."""
    dimension: Dimension | None
    """Dimension of the mesh over which it runs; None: another group, such as that of all ranks."""
    interval: Interval
    """Interval including queueing and waiting for peers."""


@dataclass(frozen=True)
class StepTrace:
    """One step; times in seconds since its first mark."""

    step: Interval
    compute: list[Interval]
    busy: list[Interval] | None
    """Compute by the profiler alone: kernels, or operators on a CPU. None where the trace has none."""
    collectives: list[Collective]
    """Collectives in order of start; none lasts longer than the step."""
    device: list[Interval]
    """All kernels, those of the optimizer and of collectives included; on a CPU, all operators of
    the training thread."""


def parse_trace(trace: Mapping[str, Any], sizes: Mapping[Dimension, int] | None = None) -> list[StepTrace]:
    """The steps in a trace, divided at the marks `END`. Raises `ValueError` for a trace without marks.

    `sizes`: ranks of this rank's group of each dimension of the mesh, which gloo's annotations lack.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    marks = sorted((_begin(event), int(event["name"][len(MARK) :])) for event in events if _is_mark(event))
    ends = [place for place, (_, phase) in enumerate(marks) if phase == END]
    if not ends:
        raise ValueError("the trace has no marks of the step clock")
    begins = [0, *(end + 1 for end in ends[:-1])]
    thread = next(_thread(event) for event in events if _is_mark(event))
    return [
        _step(trace, events, marks[begin : end + 1], thread, sizes or {})
        for begin, end in zip(begins, ends, strict=True)
    ]


def _step(
    trace: Mapping[str, Any],
    all_events: list[Any],
    marks: list[tuple[float, int]],
    thread: object,
    sizes: Mapping[Dimension, int],
) -> StepTrace:
    """The step of `marks`, which were made by the training `thread`. A device is idle at the first and the
    last mark."""
    origin, end = marks[0][0], marks[-1][0]
    ranks = trace.get("distributedInfo", {}).get("world_size", 1)
    events = [event for event in all_events if origin <= _begin(event) < end]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if kernels:
        updating = _named(_OPTIMIZER, (e for e in events if e.get("cat") == "gpu_user_annotation"))
        computing = (event for event in kernels if not _is_nccl(event))
        compute = [_interval(event, origin) for event in computing if not _is_within(event, updating)]
        busy: list[Interval] | None = merged(compute)
        found = [_nccl(event, origin, ranks) for event in kernels if _is_nccl(event)]
        over = []
        device = merged(_interval(event, origin) for event in kernels)
    else:
        pairs = list(itertools.pairwise(marks))
        compute = [(a - origin, b - origin) for (a, phase), (b, _) in pairs if phase == COMPUTE]
        own = [event for event in events if _thread(event) == thread]
        busy = _operators(own, origin)
        device = merged(_interval(event, origin) for event in own if event.get("cat") == "cpu_op")
        found = []
        for event in events:
            if event["name"].startswith(_GLOO):
                _, phase = marks[bisect_right(marks, (_begin(event), math.inf)) - 1]
                dimension = _DIMENSIONS.get(phase)
                size = ranks if dimension is None else sizes.get(dimension, ranks)
                found.append(_gloo(event, origin, size, dimension))
        # gloo's annotation ends with the work of its thread, up to milliseconds after backward() continued
        over = [b - origin for (_, phase), (b, _) in pairs if phase in COMMUNICATION]
    over.append(end - origin)
    found = sorted((_ended(each, over) for each in found), key=lambda each: each.interval)
    return StepTrace((0.0, end - origin), merged(compute), busy, found, device)


def _ended(collective: Collective, over: Sequence[float]) -> Collective:
    """The collective, ended no later than the next time in `over`, when the rank stopped waiting for it."""
    begin, end = collective.interval
    return replace(collective, interval=(begin, min(end, next(at for at in over if at > begin))))


def _operators(events: list[Any], origin: float) -> list[Interval] | None:
    """Intervals of the operators on the training thread up to the end of the backward pass, without those
    that load data. None without a backward pass."""
    loading = _named(_LOADING, events)
    operators = [event for event in events if event.get("cat") == "cpu_op" and not _is_within(event, loading)]
    backward = _named(_BACKWARD, operators)
    if not backward:
        return None
    last = max(end for _, end in backward)
    return merged(_interval(event, origin) for event in operators if _begin(event) < last)


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


def overlap(a: Sequence[Interval], b: Sequence[Interval]) -> float:
    """Seconds of the intersection of two lists of disjoint, ordered intervals."""
    i = j = 0
    total = 0.0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def bus_factor(kind: str, ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth as defined in PERFORMANCE.md of nccl-tests. Bus bandwidth is
    comparable with the rate of a link at any number of ranks."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def _is_mark(event: Mapping[str, Any]) -> bool:
    # A device trace contains each annotation a second time, for the kernels.
    return event["name"].startswith(MARK) and event.get("cat") == "user_annotation"


def _thread(event: Mapping[str, Any]) -> tuple[Any, Any]:
    return event.get("pid"), event.get("tid")


def _named(begin: str, events: Iterable[Mapping[str, Any]]) -> list[Interval]:
    """Intervals of the events whose names start with `begin`, in the time of the trace."""
    return [_interval(event, 0.0) for event in events if event["name"].startswith(begin)]


def _is_within(event: Mapping[str, Any], intervals: Iterable[Interval]) -> bool:
    return any(begin <= _begin(event) < end for begin, end in intervals)


def _is_nccl(event: Mapping[str, Any]) -> bool:
    return "nccl" in event["name"].lower()


def _begin(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) / 1e6


def _interval(event: Mapping[str, Any], origin: float) -> Interval:
    begin = _begin(event) - origin
    return begin, begin + float(event["dur"]) / 1e6


def _gloo(event: Mapping[str, Any], origin: float, ranks: int, dimension: Dimension | None) -> Collective:
    arguments, kind = event.get("args", {}), event["name"][len(_GLOO) :]
    sizes = [
        math.prod(dims) * _BYTES[type_]
        for dims, type_ in zip(arguments.get("Input Dims", []), arguments.get("Input type", []), strict=False)
        if type_ in _BYTES
    ]
    size = sum(sizes) * (ranks if kind == "all_gather" else 1)  # the trace has the size of the input
    return Collective(kind, size or None, ranks, dimension, _interval(event, origin))


def _nccl(event: Mapping[str, Any], origin: float, ranks: int) -> Collective:
    arguments = event.get("args", {})
    name = arguments.get("Collective name", "")
    sizes = [arguments.get("In msg nelems"), arguments.get("Out msg nelems")]
    width = _BYTES.get(arguments.get("dtype", ""))
    known = [int(size) for size in sizes if size is not None]
    size = max(known) * width if known and width else None
    kind = _NCCL_KINDS.get(name, name or "nccl")
    dimension = _MESH_GROUPS.get(arguments.get("Process Group Description", ""))
    ranks = int(arguments.get("Group size", ranks))
    return Collective(kind, size, ranks, dimension, _interval(event, origin))
