"""Runs in every state that `jobs.status.run_state` knows, made up through the journal itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.config.parsing import Draft, check
from disttrain.config.run_key import config_key
from disttrain.records import collect_provenance
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.processes import current_process
from jobs.status.run_state import RunState
from tests.support.jobs import CODE

CONFIG = check(
    Draft(
        {"model": {"kind": "mlp"}, "data": {"kind": "digits"}, "train": {"steps": 40, "global_batch_size": 8}}
    )
)
DEAD = {"pid": 2**22 + 1, "start_ticks": 1}
"""Laid over a process record: no pid is as high."""


def make_run(
    root: Path, name: str, state: str = "done", *, config: Config = CONFIG, code: str | None = None
) -> RunDir:
    """A run in `state`: planned, submitting, queued, running, done, failed, cancelled, lost or corrupt."""
    run = RunDir(root / name)
    code = code or collect_provenance.code_hash()
    keys = {"config_key": config_key(config), "run_key": "0" * 12, "code_hash": code}
    record = {
        "schema_version": 1, "name": run.name, "sweep": run.sweep, "repeat": 0, "config": config.as_dict(),
        "axes": {"resources.nodes": config.resources.nodes}, "cluster": "local",
        "provenance": {"code": {"hash": code, "git_commit": None}, "created": journal.utc_now()},
        "config_key": keys["config_key"], "run_key": keys["run_key"],
    }  # fmt: skip
    write_json(run.run_json, record)
    if state == "planned":
        return run
    submission = journal.write_intent(
        run, {"cluster": "local", "attempts": 0, "attempts_before_code": 0, **keys}
    )
    me: dict[str, Any] = current_process().as_dict()
    if state == "submitting":
        return run
    if state == "corrupt":
        journal.entry(run, submission).path("intent").write_text("{")
        return run
    journal.write_receipt(run, submission, f"{me['host']}:7")
    if state == "queued":
        return run
    process = me if state == "running" else me | DEAD
    attempt = journal.claim(run, submission, process=process, job_id=f"{me['host']}:7", code_hash=code)
    progress = {
        "attempt": attempt,
        "step": 20,
        "steps": 40,
        "samples_per_s": 790.25,  # of the newest second
        "mean_samples_per_s": 812.5,
        "loss": 2.25,
        "eta_s": 70.0,
    }
    write_json(run.progress, {"schema_version": 1, **progress, "updated": time.time()})
    outcome = {
        "schema_version": 1,
        "attempt": attempt,
        "message": None,
        "ended": journal.utc_now(),
        "retryable": True,
    }
    if state == "done":
        write_json(run.done, outcome | {"cause": "finished", "retryable": False})
    elif state == "failed":
        write_json(run.failed, outcome | {"cause": "crashed", "message": "rank 1: ValueError: no"})
    elif state == "cancelled":
        write_json(run.failed, outcome | {"cause": "cancelled", "message": "cancelled while it ran"})
    return run


def on_slurm(root: Path, name: str = "s/a", job_id: str = "7", *, claimed: bool = False) -> RunDir:
    """A run that waits in Slurm's queue, or whose job started on another host."""
    run = make_run(root, name, "planned")
    journal.write_intent(
        run,
        {
            "cluster": "slurm",
            "attempts": 0,
            "attempts_before_code": 0,
            "config_key": "k",
            "run_key": "r",
            "code_hash": CODE,
        },
    )
    journal.write_receipt(run, 0, job_id)
    if claimed:
        process = current_process().as_dict() | {"host": "node-1"}
        journal.claim(run, 0, process=process, job_id=job_id, code_hash=CODE)
    return run


def on_cluster(root: Path, name: str, cluster: str | None, **intent: object) -> RunDir:
    """A run that waits in the queue of a Slurm cluster; older code did not record which."""
    run = on_slurm(root, name)
    path = journal.entry(run, 0).path("intent")
    write_json(path, read_json(path) | {"cluster_name": cluster, **intent})
    return run


def summary(state: RunState) -> str:
    """State and cause of a run, and its marks: `failed crashed claimed retryable`."""
    marks = ("claimed", "retryable", "silent", "stale", "before_agents", "emulated")
    cause = "" if state.cause in (None, state.state) else f" {state.cause}"
    return " ".join([state.state + cause, *(mark for mark in marks if getattr(state, mark))])
