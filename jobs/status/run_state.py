"""The state of each run, from the files in its run directory alone.

Standard library only, and fast: benchmarks/commands.py times `status` over ten thousand runs.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from disttrain.records.exit_causes import ENDED_BY_REQUEST
from disttrain.records.json_files import CorruptFile, read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy, journal, run_code
from jobs.core.progress import Progress, without_progress
from jobs.status.outcome import (
    by_hand_outcome,
    claimed_outcome,
    failed_outcome,
    newest_time,
    read_progress,
    recorded_outcome,
    reported_progress,
    unclaimed_outcome,
    with_cancel_record,
)
from jobs.status.run_folders import ANNOTATION, Annotation, names_in, read_annotation, runs_below, runs_of

_OF_INTENT = (
    "cluster", "cluster_name", "config_key", "run_key", "code_hash", "source", "attempts",
    "attempts_before_code",
)  # fmt: skip
"""Fields of a `RunState` that the record of its submission has."""

StateName = Literal[
    "planned",  # never submitted, or every submission failed
    "submitting",  # an intent is recorded, but no job id
    "queued",
    "starting",  # its job runs, and its agents have not started: its set-up runs
    "running",
    "done",
    "failed",
    "lost",  # its job ended without recording an outcome
    "corrupt",  # a file cannot be read
]


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """Fields of a run that `--json` prints as they are (docs/reference/json.md). Unknown values are None."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True, "extra": "forbid"}
    note: str | None = None
    """The user's note on the run."""
    sweep_note: str | None = None
    """The user's note on the sweep."""
    cause: str | None = None
    """Why the last attempt ended."""
    message: str | None = None
    """The error, or what a queued run waits for."""
    retryable: bool = False
    """Whether the same `sweep` or `run` command submits the run again."""
    stale: bool = False
    """Whether code other than the current one finished the run."""
    cluster: str | None = None
    """Name of the scheduler, as of `--cluster`."""
    job_id: str | None = None
    """Job of the newest submission; `7/2` is the third run of job 7, in which several run side by side."""
    attempt: int | None = None
    """Number of the newest attempt, from 0."""
    attempts: int = 0
    """Number of attempts."""
    step: int | None = None
    """Newest recorded optimizer step."""
    steps: int | None = None
    """Optimizer steps at the end of training."""
    samples_per_s: float | None = None
    """Throughput of all ranks in the measured steps."""
    live_samples_per_s: float | None = None
    """Throughput of the newest second."""
    loss: float | None = None
    """Training loss at the newest progress."""
    eta_s: float | None = None
    """Expected seconds to the end of training."""
    gpu_utilization: float | None = None
    """From 0 to 1, mean over the GPUs of rank 0's node."""
    gpu_memory_used_bytes: float | None = None
    """Mean over these GPUs."""
    gpu_power_w: float | None = None
    """Watts, mean over these GPUs."""
    cpu_percent: float | None = None
    """Processor time of one rank; 100 is one processor."""
    rss_bytes: float | None = None
    """Resident memory of one rank."""
    updated: float | None = None
    """Unix time of the newest progress."""
    changed: float | None = None
    """Unix time of the newest submission, start, progress or end."""
    emulated: bool = False
    """Whether some of the work is emulated by waiting."""
    waits_for: str | None = None
    """Reason of the scheduler for a queued job."""
    start_expected: float | None = None
    """Unix time of the start that the scheduler expects."""
    config_key: str | None = None
    """Hash of the config keys that change the results."""
    run_key: str | None = None
    """Hash of config and code."""
    code_hash: str | None = None
    """Hash of the code of the newest attempt."""


@dataclass(frozen=True)
class RunState(RunFields):
    """The state of one run. Unknown fields are None."""

    run: RunDir
    state: StateName
    cluster_name: str | None = None
    """Name of the scheduler's cluster; None without one."""
    job_comment: str | None = None
    """Comment of the job; None for a job submitted by hand."""
    submission: int | None = None
    """The newest submission that was not revoked."""
    claimed: bool = False
    """Whether that submission has started an attempt."""
    starts: int = 0
    """Number of attempts that submission has started; more than one after a requeue."""
    journaled: bool = True
    """Whether `disttrain` submitted the run. If not, it was started by hand or copied here."""
    before_agents: bool = False
    """Whether the newest start of its job has reached no agent: its set-up runs, or ended the job; not in the
    files."""
    silent: bool = False
    """Running by its files, without progress for `outcome.SILENT_AFTER_S`: long validation or dead host."""
    attempts_before_code: int = 0
    """Attempts with older code."""
    source: str | None = None
    """Folder that the code of a `command` was copied from; empty for an installed module, None for the
    trainer."""
    own_tags: tuple[str, ...] = ()
    sweep_tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def sweep(self) -> str:
        return self.run.sweep

    @property
    def label(self) -> str:
        """`sweep/run`."""
        return f"{self.sweep}/{self.name}"

    @property
    def tags(self) -> list[str]:
        """Tags of the run and of its sweep."""
        return sorted({*self.own_tags, *self.sweep_tags})

    @property
    def active(self) -> bool:
        """Whether a job of the run is being submitted, queued, starting or running."""
        return self.state in ("submitting", "queued", "starting", "running")

    @property
    def displayed_state(self) -> str:
        """The state to display: a run that ended by request is `cancelled` or `stopped`, not `failed`."""
        if self.state == "failed" and self.cause in ENDED_BY_REQUEST:
            return self.cause
        return self.state

    def as_json(self) -> dict[str, Any]:
        """The run in the document of every verb."""
        named: dict[str, Any] = {"sweep": self.sweep, "run": self.name, "path": str(self.run.path)}
        named |= {"state": self.displayed_state, "tags": self.tags}
        return named | {field.name: getattr(self, field.name) for field in fields(RunFields)}


def read_runs(
    root: Path,
    sweep: str | None = None,
    *,
    code_hash: str | None = None,
    progress: Progress = without_progress,
) -> list[RunState]:
    """States of the runs below `root`, of one sweep or of all, in natural order (n2 before n16)."""
    root = Path(root)
    runs = runs_of(root, sweep) if sweep else runs_below(root)
    return read_states(runs, code_hash=code_hash, progress=progress)


def read_states(
    runs: Sequence[RunDir], *, code_hash: str | None = None, progress: Progress = without_progress
) -> list[RunState]:
    """States of these runs, in their order. The annotation of a sweep is read once."""
    sweeps: dict[str, Annotation] = {}
    return [_read_or_corrupt(run, code_hash, sweeps) for run in progress(runs, "reading runs", len(runs))]


def read_state(run: RunDir, *, code_hash: str | None = None) -> RunState:
    """The state of one run; `corrupt` if a file cannot be read, instead of an exception."""
    return _read_or_corrupt(run, code_hash, {})


def _read_or_corrupt(run: RunDir, code_hash: str | None, sweeps: dict[str, Annotation]) -> RunState:
    try:
        return _read_state(run, code_hash, sweeps)
    except CorruptFile as error:
        message = str(error)
    except FileNotFoundError as error:  # deleted or moved during the read
        message = f"{error.filename} does not exist"
    except OSError as error:  # a run of another user who keeps it private
        message = f"{error.filename}: {error.strerror}"
    except (KeyError, TypeError, ValueError) as error:
        message = f"{run.path}: missing or invalid in a record: {error}"
    key = (read_json_or_none(run.run_json) or {}).get("config_key")  # `plan_actions` matches runs by it
    return RunState(run, "corrupt", message=message, config_key=key if isinstance(key, str) else None)


def _read_state(run: RunDir, code_hash: str | None, sweeps: dict[str, Annotation]) -> RunState:
    names = names_in(run)
    folder = os.path.dirname(run.path)
    if folder not in sweeps:
        sweeps[folder] = read_annotation(folder)
    own = read_annotation(run.path) if ANNOTATION in names else Annotation()
    known: dict[str, Any] = {
        "run": run, "own_tags": own.tags, "note": own.note,
        "sweep_tags": sweeps[folder].tags, "sweep_note": sweeps[folder].note,
    }  # fmt: skip
    submissions = journal.entries(run) if "submissions" in names else []
    if not submissions:
        return _unsubmitted(known, run, names, code_hash)
    entry, claims, revoked = _newest_submission(submissions)
    intent = entry.read("intent") or {}
    known |= {name: intent[name] for name in _OF_INTENT if name in intent}
    known |= {"submission": entry.number, "job_comment": intent.get("handle")}
    times = [record.get("time") for record in (intent, *claims, revoked or {})]
    starts = [claim for claim in claims if claim["by"] == "job"]
    job_id = starts[-1].get("job_id") if starts else None
    known["job_id"] = job_id or (entry.read("receipt") or {}).get("job_id")
    if not starts:
        outcome = unclaimed_outcome(entry, revoked)
        if outcome is None:  # claimed and ended since the listings above
            return _read_state(run, code_hash, sweeps)
        return _with_outcome(known, with_cancel_record(outcome, submissions[-1]), None, times)
    claim = starts[-1]
    attempt, source = claim["attempt"], intent.get("source")
    known |= {"claimed": True, "attempt": attempt, "attempts": attempt + 1, "starts": len(starts)}
    known |= read_progress(run, attempt) if "progress.json" in names else {}
    if source is None:
        known["code_hash"] = claim["code_hash"]
    else:  # of a command, whose code is compared with that in the folder it was copied from
        code_hash = code_copy.hash_of_source(source, run.path.parent.parent) if source and code_hash else None
        known |= {} if "updated" in known else reported_progress(run, attempt)
    outcome = claimed_outcome(run, names, claim, known.get("updated"))
    if outcome["state"] == "queued" and journal.is_revoked(claims):  # revoked while it waited for its requeue
        outcome = failed_outcome(claims[-1]["cause"], claims[-1]["message"])
    outcome = with_cancel_record(outcome, entry)
    return _with_outcome(known, outcome, code_hash, times)


def _with_outcome(
    known: dict[str, Any], outcome: dict[str, Any], code_hash: str | None, times: list[str | None]
) -> RunState:
    """The state of a run. Done is stale if it was made with other code than that of `code_hash`."""
    known |= outcome | {"changed": newest_time(*times, known.get("updated"), outcome.get("changed"))}
    if known["state"] != "running":
        known |= {"eta_s": None, "live_samples_per_s": None}
    hashes = (known.get("code_hash"), code_hash)
    known["stale"] = known["state"] == "done" and None not in hashes and hashes[0] != hashes[1]
    return RunState(**known)


def _newest_submission(
    submissions: list[journal.JournalEntry],
) -> tuple[journal.JournalEntry, list[dict[str, Any]], dict[str, Any] | None]:
    """The newest submission not revoked before its first start, its claims, and the newest revocation."""
    revoked = None
    for entry in reversed(submissions):
        claims = entry.claims()
        if journal.is_revoked(claims):
            revoked = revoked or claims[-1]
            if len(claims) == 1:
                continue
        return entry, claims, revoked
    return submissions[-1], [], revoked


def _unsubmitted(
    known: dict[str, Any], run: RunDir, names: Container[str], code_hash: str | None
) -> RunState:
    """The state of a run without a journal: planned, started by hand, or copied without `submissions/`.

    Its files do not name the process that runs it. So it is `lost` once it is silent.
    """
    record = read_json(run.run_json)
    known |= {"journaled": False} | {name: record[name] for name in ("cluster", "config_key", "run_key")}
    known["code_hash"] = run_code.hash_in(record)
    times = [record["provenance"].get("created")]
    attempts = run.attempts() if "attempts" in names else []
    # A start by hand removes `DONE` at the end of its first step.
    newest = attempts[-1].number if attempts and "DONE" not in names else None
    outcome = recorded_outcome(run, newest, names)
    if outcome is None and not attempts:
        return _with_outcome(known, {"state": "planned"}, None, times)
    attempt = outcome["attempt"] if outcome else attempts[-1].number
    known |= {"attempt": attempt, "attempts": attempt + 1} | read_progress(run, attempt)
    outcome = outcome or by_hand_outcome(known.get("updated"), attempts[-1].path)
    return _with_outcome(known, outcome, code_hash, times)
