"""Text of the memory estimates of a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.cli.formatting import size, table

_COLUMNS = (
    "RUN",
    "STRATEGY",
    "LOCAL",
    "WEIGHTS",
    "GRADIENTS",
    "OPTIMIZER",
    "COMMUNICATION",
    "ACTIVATIONS",
    "PEAK",
)
_FIELDS = ("parameters", "gradients", "optimizer", "communication", "activations", "total")
_BYTES = frozenset(_COLUMNS[2:])


def memory_text(runs: Sequence[dict[str, Any]]) -> str:
    """A table of the estimates, and a line for each run without one; empty if none was requested."""
    estimates = [(run["run"], run["memory"]) for run in runs if "memory" in run]
    if not estimates:
        return ""
    rows = [row for name, found in estimates if "reason" not in found for row in _rows(name, found)]
    lines = ["estimated peak memory of a rank (without the CUDA context and buffers of NCCL):"]
    lines += [table(_COLUMNS, rows, _BYTES)] if rows else []
    if any("candidates" in found for _, found in estimates):
        lines.append("auto: the ranks take the first of these strategies that fits their devices, less 8 %")
    lines += [f"{name}: no estimate: {found['reason']}" for name, found in estimates if "reason" in found]
    return "\n".join(lines)


def _rows(name: str, found: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row of the estimate; of `auto`, one of each strategy that it chooses from."""
    candidates = found.get("candidates")
    return [
        (
            name,
            each["strategy"] if candidates is None else f"auto: {each['strategy']}",
            str(each["local_batch_size"]),
            *(size(each[f"{field}_bytes"]) for field in _FIELDS),
        )
        for each in candidates or [found]
    ]
