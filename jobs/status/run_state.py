"""What became of each run, from its files alone. Standard library only, and fast: `status` reads
a thousand runs in a second."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from disttrain.errors import ConfigError
from disttrain.records.json_files import CorruptFile, read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.processes import is_alive
from jobs.core.requeue_policy import GRACEFUL_CAUSES, RULES

StateName = Literal[
    "planned",  # never submitted, or submitted in vain
    "submitting",  # announced; whether a job came of it is not known
    "queued",
    "running",
    "done",
    "failed",
    "lost",  # its job vanished without a word
    "corrupt",  # a file cannot be read
]

SILENT_AFTER_S = 600.0
"""A run that nobody on this host can look after is called silent when it has not moved for this long."""
PROGRESS_USAGE = ("gpu_utilization", "gpu_memory_used_bytes", "gpu_power_w", "cpu_percent", "rss_bytes")
"""What `progress.json` says of GPUs and processes, where it was sampled."""


@dataclass(frozen=True)
class RunState:
    """One run as its files tell it. What is not known is None."""

    run: RunDir
    state: StateName
    retryable: bool = False
    """Whether the same command, given again, may start it again."""
    cause: str | None = None
    message: str | None = None
    cluster: str | None = None
    submission: int | None = None
    """The newest submission that was not revoked."""
    claimed: bool = False
    """Whether that submission has started an attempt."""
    starts: int = 0
    """How many attempts that submission has started: its job goes through requeues."""
    job_id: str | None = None
    journaled: bool = True
    """Whether `submit.py` submitted it; if not, it was started by hand or brought here from elsewhere."""
    silent: bool = False
    """Running for all that is known, but without a sign of life for long: a slow validation looks the same
    as a dead host. The cluster may know, or the user."""
    waits_for: str | None = None
    """What its job waits for, in the cluster's word; files do not tell."""
    start_expected: float | None = None
    """When the cluster expects to start it, in seconds since the epoch."""
    attempt: int | None = None
    attempts: int = 0
    """Starts so far."""
    attempts_before_code: int = 0
    """Of these, the starts that were made with older code."""
    attempts_in_order: int = 0
    """Of the others, the starts that saved and left as they were asked to."""
    step: int | None = None
    steps: int | None = None
    samples_per_s: float | None = None
    loss: float | None = None
    eta_s: float | None = None
    gpu_utilization: float | None = None
    """Like the next four: as of the newest progress, over the GPUs and ranks of rank 0's node."""
    gpu_memory_used_bytes: float | None = None
    gpu_power_w: float | None = None
    cpu_percent: float | None = None
    rss_bytes: float | None = None
    updated: float | None = None
    """Seconds since the epoch of the last sign of life."""
    emulated: bool = False
    """Something in it is waited for instead of done."""
    config_key: str | None = None
    run_key: str | None = None
    code_hash: str | None = None
    stale: bool = False
    """Finished, but by code other than the `code_hash` given to the reader."""

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def sweep(self) -> str:
        return self.run.sweep

    @property
    def active(self) -> bool:
        """Whether a job is on its way or at work."""
        return self.state in ("submitting", "queued", "running")


def read_runs(root: Path, sweep: str | None = None, *, code_hash: str | None = None) -> list[RunState]:
    """The runs below `root`, of one sweep or of all, in natural order (n2 before n16)."""
    root = Path(root)
    sweeps = [sweep] if sweep else subfolders(root)
    return [read_state(run, code_hash=code_hash) for name in sweeps for run in runs_of(root, name)]


def runs_of(root: Path, sweep: str) -> list[RunDir]:
    """The runs of a sweep: its folders that hold a `run.json`, in natural order."""
    found = (RunDir(root / sweep / name) for name in subfolders(root / sweep))
    return [run for run in found if os.path.exists(run.run_json)]


def subfolders(path: Path) -> list[str]:
    """Names of the folders below `path` that are not hidden, in natural order; none where it is missing."""
    try:
        with os.scandir(path) as found:
            names = [child.name for child in found if child.is_dir() and not child.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    return sorted(names, key=natural_key)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key that orders the numbers inside a name by value."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def read_state(run: RunDir, *, code_hash: str | None = None) -> RunState:
    """What became of this run. Never raises for what its files hold: the state is then `corrupt`."""
    try:
        return _read_state(run, code_hash)
    except CorruptFile as error:
        message = str(error)
    except FileNotFoundError as error:  # moved away since it was looked for
        message = f"{error.filename} is gone"
    except (KeyError, TypeError, ValueError) as error:
        message = f"{run.path}: a record lacks or garbles {error}"
    key = (read_json_or_none(run.run_json) or {}).get("config_key")  # so that its plan still finds it
    return RunState(run, "corrupt", message=message, config_key=key if isinstance(key, str) else None)


def _read_state(run: RunDir, code_hash: str | None) -> RunState:
    submissions = journal.entries(run)
    if not submissions:
        return _unsubmitted(run, code_hash)
    entry, claims, revoked = _newest_submission(submissions)
    starts = [claim for claim in claims if claim["by"] == "job"]
    claim = starts[-1] if starts else None
    holder_died = claim is None and revoked is None and _holder_died(entry)
    if holder_died and os.path.exists(entry.path("claim")):
        return _read_state(run, code_hash)  # claimed and over since the listing above
    intent = entry.read("intent") or {}
    receipt = entry.read("receipt") or {}
    known: dict[str, Any] = {
        "run": run,
        "cluster": intent.get("cluster"),
        "submission": entry.number,
        "job_id": receipt.get("job_id"),
        "config_key": intent.get("config_key"),
        "run_key": intent.get("run_key"),
        "code_hash": intent.get("code_hash"),
        "attempts_before_code": intent.get("attempts_before_code", 0),
        "attempts": intent.get("attempts", 0),
    }
    if claim is None:
        return RunState(**known | _unclaimed_outcome(entry, revoked, holder_died))
    known |= {"claimed": True, "attempt": claim["attempt"], "attempts": claim["attempt"] + 1}
    known["starts"] = len(starts)
    known["code_hash"] = claim["code_hash"]
    known |= _progress(run, claim["attempt"])
    known["job_id"] = known["job_id"] or claim.get("job_id")
    verdict = _claimed_outcome(run, claim, known.get("updated"))
    if verdict["state"] == "queued" and journal.is_revoked(claims):  # not to be started once more
        word = {"cause": claims[-1]["cause"], "message": claims[-1]["message"]}
        verdict = {"state": "failed", "retryable": RULES[claims[-1]["cause"]].retryable, **word}
    if verdict["state"] in ("failed", "lost"):
        numbers = range(known["attempts_before_code"], known["attempts"])
        known["attempts_in_order"] = sum(_ended_gracefully(run, number) for number in numbers)
    verdict["stale"] = _is_stale(verdict["state"], known["code_hash"], code_hash)
    if verdict["state"] != "running":
        known["eta_s"] = None
    return RunState(**known | verdict)


def _newest_submission(
    submissions: list[journal.JournalEntry],
) -> tuple[journal.JournalEntry, list[dict[str, Any]], dict[str, Any] | None]:
    """The newest submission that was not revoked before it started, its claims, and the newest revocation."""
    revoked = None
    for entry in reversed(submissions):
        claims = entry.claims()
        if journal.is_revoked(claims):
            revoked = revoked or claims[-1]
            if len(claims) == 1:
                continue
        return entry, claims, revoked
    return submissions[-1], [], revoked


def _unsubmitted(run: RunDir, code_hash: str | None) -> RunState:
    """A run without a journal: planned, started by hand, or brought here without its submissions.

    Nobody wrote down which process runs it, so its age alone tells whether it still does.
    """
    record = read_json(run.run_json)
    known: dict[str, Any] = {
        "journaled": False,
        "cluster": record["cluster"],
        "config_key": record["config_key"],
        "run_key": record["run_key"],
        "code_hash": record["provenance"]["code"]["hash"],
    }
    attempts = run.attempts()
    verdict = _recorded_outcome(run, attempts[-1].number if attempts else None)
    if verdict is None and not attempts:
        return RunState(run, "planned", **known)
    attempt = verdict.pop("attempt") if verdict else attempts[-1].number
    known |= {"attempt": attempt, "attempts": attempt + 1} | _progress(run, attempt)
    if verdict is None:
        quiet_s = silent_s(known.get("updated"), attempts[-1].path)
        verdict = {"state": "running"}
        if quiet_s >= SILENT_AFTER_S:
            verdict = {"state": "lost", "cause": "lost", "message": _silence(quiet_s)}
    if verdict["state"] != "running":
        known["eta_s"] = None
    known["stale"] = _is_stale(verdict["state"], known["code_hash"], code_hash)
    return RunState(run, **known | verdict)


def _is_stale(state: str, made_with: str, code_hash: str | None) -> bool:
    return state == "done" and code_hash is not None and made_with != code_hash


def _recorded_outcome(run: RunDir, attempt: int | None) -> dict[str, Any] | None:
    """What `DONE` or `FAILED` says, if it is about this attempt (None: about any)."""
    for path, state in ((run.done, "done"), (run.failed, "failed")):
        outcome = _read_or_none(path)
        if outcome is not None and attempt in (None, outcome["attempt"]):
            if outcome.get("next") == "requeue":
                said = f"requeued after {outcome['cause']}: {outcome.get('message') or ''}".rstrip(": ")
                return {"state": "queued", "attempt": outcome["attempt"], "message": said}
            return {
                "state": state,
                "attempt": outcome["attempt"],
                "retryable": outcome["retryable"],
                "cause": outcome["cause"],
                "message": outcome.get("message"),
            }
    return None


def _holder_died(entry: journal.JournalEntry) -> bool:
    holder = entry.read("holder")
    return holder is not None and is_alive(holder["process"]) is False


def _unclaimed_outcome(
    entry: journal.JournalEntry, revoked: Mapping[str, Any] | None, holder_died: bool
) -> dict[str, Any]:
    """The verdict when no attempt was ever started."""
    if revoked is not None:
        if revoked["cause"] == "cancelled":
            return {
                "state": "failed",
                "retryable": RULES["cancelled"].retryable,
                "cause": "cancelled",
                "message": revoked["message"],
                "submission": None,
            }
        return {"state": "planned", "message": revoked["message"], "submission": None}
    if holder_died:
        message = "its job ended before its turn came"
        return {"state": "lost", "retryable": RULES["lost"].retryable, "cause": "lost", "message": message}
    return {"state": "queued" if (entry.parts or set()) & {"receipt", "holder"} else "submitting"}


def _claimed_outcome(run: RunDir, claim: Mapping[str, Any], updated: float | None) -> dict[str, Any]:
    """The verdict on the newest attempt that was started."""
    attempt = claim["attempt"]
    alive = is_alive(claim["process"])  # asked first: an outcome written before its end is then seen
    ended = _recorded_outcome(run, attempt)
    if ended is not None:
        return ended
    if alive is None:  # on another host: silence is no proof, and to start it again would be a second one
        quiet_s = silent_s(updated, run.submissions)
        silent = quiet_s >= SILENT_AFTER_S
        return {"state": "running", "silent": silent, "message": _silence(quiet_s) if silent else None}
    if alive:
        return {"state": "running"}
    # Nobody closed this attempt. What it left may still prove that it came to its end.
    metrics = read_json_or_none(run.metrics) or {}
    if metrics.get("status") == "completed" and metrics.get("attempt") == attempt:
        return {"state": "done", "cause": "finished"}
    message = f"the job that ran it vanished from {claim['process']['host']}"
    return {"state": "lost", "retryable": RULES["lost"].retryable, "cause": "lost", "message": message}


def _ended_gracefully(run: RunDir, number: int) -> bool:
    return (read_json_or_none(run.attempt(number).record) or {}).get("cause") in GRACEFUL_CAUSES


def silent_s(updated: float | None, started: Path) -> float:
    """Seconds since the last sign of life: the newest progress, or the folder that its start touched."""
    return time.time() - max(updated or 0.0, os.stat(started).st_mtime)


def _silence(seconds: float) -> str:
    return f"silent for {seconds / 60:.0f} min"


def _progress(run: RunDir, attempt: int) -> dict[str, float | None]:
    """How far the attempt is. It only informs, so what cannot be read is left out."""
    progress = read_json_or_none(run.progress) or {}
    if progress.get("attempt") != attempt:
        return {}
    names = ("step", "steps", "samples_per_s", "loss", "eta_s", "updated", "emulated", *PROGRESS_USAGE)
    return {name: value for name in names if isinstance(value := progress.get(name), int | float)}


def _read_or_none(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
