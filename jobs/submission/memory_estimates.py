"""Estimates of each run's memory before submission, by a process that imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeps.expand import RunPlan

_TIMEOUT_S = 600.0
_PROJECT = Path(__file__).resolve().parents[2]

Estimate = dict[str, Any]
"""Fields of `disttrain.memory_estimate.MemoryEstimate`; of `parallel.strategy: auto`, `candidates` with these
fields; or `reason` why there is no estimate."""


def estimate_memory(runs: Sequence[RunPlan]) -> list[Estimate]:
    """The estimates of `runs`, in their order; equal configs are estimated once."""
    configs = ["" if run.config.command else json.dumps(run.config.as_dict(), sort_keys=True) for run in runs]
    distinct = [config for config in dict.fromkeys(configs) if config]
    answers = dict(zip(distinct, _answers(distinct), strict=True)) if distinct else {}
    answers[""] = {"reason": "the memory of a command is unknown"}
    return [answers[config] for config in configs]


def _answers(configs: list[str]) -> list[Estimate]:
    command = [sys.executable, "-m", "disttrain.memory_estimate"]
    text = f"[{','.join(configs)}]"
    path = os.pathsep.join(filter(None, [str(_PROJECT), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [{"reason": f"no estimate within {_TIMEOUT_S:.0f} s"}] * len(configs)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [{"reason": last}] * len(configs)
    found: list[Estimate] = json.loads(done.stdout)
    return found
