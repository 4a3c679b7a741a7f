"""Numbers of processors in the form of the kernel, as records have them, and those of the job."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from disttrain.records.run_directory import PROCESSORS


def list_text(processors: Iterable[int]) -> str:
    """Numbers of processors in the form of the kernel: `0-7,64-71`."""
    numbers = set(processors)
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    ends = sorted(number for number in numbers if number + 1 not in numbers)
    pairs = zip(starts, ends, strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def numbers(text: str) -> list[int]:
    """The numbers in a text of `list_text`."""
    ranges = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return [number for ends in ranges for number in range(ends[0], ends[-1] + 1)]


def usable_processors(environ: Mapping[str, str] = os.environ) -> frozenset[int]:
    """Processors of the job on this node: those of this process, and where ranks are bound those of all ranks
    (`DISTTRAIN_PROCESSORS`)."""
    mask = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return frozenset(mask).union(numbers(environ.get(PROCESSORS, "")))
