"""Runs side by side in one job of one node: which they are, the share of each, and the end of the others.

The intent of each run has its place in the job, and all runs of the job with their submissions. Each run has
its own agent, attempts and journal, and its job id ends in its place: `7/0`, `7/1`. The job starts again as a
whole. So a run that is to start again waits for the end of the others. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import asks_for_gpus
from jobs.core import journal
from jobs.core.processes import is_alive

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Packing:
    """A run among the runs of its job."""

    place: int
    runs: Mapping[RunDir, int]
    """All runs of the job, with their submission numbers."""

    @classmethod
    def of(cls, run: RunDir, submission: int) -> Packing | None:
        """By the intent; None for a run that has its job alone. Raises `CorruptFile`."""
        intent = journal.entry(run, submission).read("intent") or {}
        if "place" not in intent:
            return None
        runs = {RunDir(run.path.with_name(name)): int(number) for name, number in intent["packed"].items()}
        return cls(int(intent["place"]), runs)

    def others(self, run: RunDir) -> dict[RunDir, int]:
        """The other runs of the job, with their submission numbers."""
        return {other: number for other, number in self.runs.items() if other.name != run.name}

    def take_share(self, resources: Mapping[str, Any], processors: int | None) -> None:
        """Restrict this process, and all that it starts, to its share of the GPUs and processors of the job.

        `resources` is the section of the config. `processors`: those of the job on this node; a process that
        may use more is not restricted, because other jobs would have the same ones.
        """
        allowed = os.sched_getaffinity(0)
        if processors is not None and len(allowed) <= processors:
            os.sched_setaffinity(0, share_of_processors(allowed, self.place, len(self.runs)))
        if resources["share_gpus"] or not asks_for_gpus(resources["device"]):
            return
        first, count = self.place * int(resources["gpus_per_node"]), int(resources["gpus_per_node"])
        # HIP counts CUDA's devices within ROCR's: where both are set, CUDA's alone are restricted
        name = next((name for name in _VISIBLE if os.environ.get(name)), _VISIBLE[0])
        every = ",".join(map(str, range(first + count)))  # where the scheduler manages no GPUs
        os.environ[name] = ",".join((os.environ.get(name) or every).split(",")[first : first + count])

    def has_others_at_work(self, run: RunDir, restart: int, *, unclaimed: bool) -> bool:
        """Whether another run of the job is at work in the start number `restart` of the job.

        `unclaimed` is the answer for a run of which no agent has started yet.
        """
        return any(_is_at_work(*other, restart, unclaimed) for other in self.others(run).items())


def _is_at_work(run: RunDir, submission: int, restart: int, unclaimed: bool) -> bool:
    claims = journal.entry(run, submission).claims()
    if journal.is_revoked(claims):
        return False
    if not journal.is_superseded(claims, restart):
        return unclaimed
    record = read_json_or_none(run.attempt(int(claims[-1]["attempt"])).record) or {}
    return not record.get("ended") and is_alive(claims[-1]["process"]) is not False


def share_of_processors(
    allowed: Collection[int], place: int, shares: int, root: Path = Path("/sys/devices/system/cpu")
) -> set[int]:
    """One of equal shares of these processors: whole cores, next to each other; all of them if the cores are
    fewer than the shares."""
    cores: dict[tuple[int, int], set[int]] = {}
    for number in allowed:
        core = [_number(root / f"cpu{number}/topology/{name}") for name in ("physical_package_id", "core_id")]
        cores.setdefault((core[0] or 0, number if core[1] is None else core[1]), set()).add(number)
    ordered = [cores[key] for key in sorted(cores)]
    first, last = (len(ordered) * at // shares for at in (place, place + 1))
    return set().union(*ordered[first:last]) if len(ordered) >= shares else {*allowed}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
