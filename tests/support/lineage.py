"""Step records of a rank that are part of the final model."""

from __future__ import annotations

from typing import Any

from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir


def read_steps(run: RunDir, rank: int) -> dict[int, tuple[int, Any]]:
    """Attempt and record of each step, in order; steps that share a record are under the first of them.

    An attempt that resumes from a checkpoint repeats the steps after it: its records replace them.
    """
    kept: dict[int, tuple[int, Any]] = {}
    for attempt in run.attempts():
        path = attempt.steps(rank)
        records = list(read_jsonl(path)) if path.exists() else []
        steps = [record.get("first", record.get("step")) for record in records]
        kept = {step: each for step, each in kept.items() if step < min(steps, default=step + 1)}
        kept |= {step: (attempt.number, record) for step, record in zip(steps, records, strict=True)}
    return kept
