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
    rows = [
        (
            name,
            found["strategy"],
            str(found["local_batch_size"]),
            *(size(found[f"{field}_bytes"]) for field in _FIELDS),
        )
        for name, found in estimates
        if "reason" not in found
    ]
    lines = ["estimated peak memory of a rank (without the CUDA context and buffers of NCCL):"]
    lines += [table(_COLUMNS, rows, _BYTES)] if rows else []
    lines += [f"{name}: no estimate: {found['reason']}" for name, found in estimates if "reason" in found]
    return "\n".join(lines)
