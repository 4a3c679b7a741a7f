"""Read the files of an attempt that show how it ended (`ExitEvidence`). Standard library only."""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from disttrain.records.exit_causes import unplanned_steps
from disttrain.records.json_files import CorruptFile, read_json, read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core.classify_exit import (
    ExitEvidence,
    FailedWorker,
    last_rank_line,
    peer_address,
    root_cause_worker,
)
from jobs.core.log_text import error_lines, read_tail
from jobs.core.rank_positions import RankPosition

_EXCEPTION = re.compile(r"((?:\w+\.)*[A-Z]\w*): (.*)", re.DOTALL)
"""Last lines of a traceback."""
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
"""PyTorch writes it before each line of a traceback where a process group exists."""
_OUT_OF_MEMORY = re.compile(r"MemoryError|CUDA error: out of memory|DefaultCPUAllocator: ")
_LOOKUP_S = 5.0
"""Time for a query of the name service, because the requeue waits for it; it may take 30 s."""


def read_evidence(
    run: RunDir,
    attempt: Attempt,
    exit_codes: Mapping[int, int],
    external_cause: str | None,
    external_message: str | None,
) -> ExitEvidence:
    """The evidence of an attempt that has ended. `exit_codes` are those of the agents, by node."""
    metrics = read_json_or_none(run.metrics) or {}
    command = "command" in (read_json_or_none(run.run_json) or {}).get("config", {})
    own_metrics = metrics if metrics.get("attempt") == attempt.number else {}
    graceful = own_metrics.get("stop_cause") if own_metrics.get("status") == "stopped" else None
    steps, steps_total = own_metrics.get("steps"), own_metrics.get("steps_total")
    request = read_json_or_none(attempt.stop) or {}
    hosts = (read_json_or_none(attempt.record) or {}).get("nodes", [])
    nodes = range(len(hosts))
    failed = _failed_workers(attempt)
    rank_errors = errors_of_command(attempt, failed.values()) if command else read_rank_errors(attempt)
    killed = {node: (worker.rank, -worker.code) for node, worker in failed.items() if worker.code < 0}
    ended = {node: record for node in nodes if (record := read_json_or_none(attempt.node_ranks(node)))}
    peer = _node_at(peer_address(rank_errors), hosts)
    silent = [node for node in nodes if node not in exit_codes and node not in ended]
    completed, message = own_metrics.get("status") == "completed", None
    if command:
        succeeded = len(exit_codes) == len(hosts) and not any(exit_codes.values())
        completed = succeeded and (completed or "cause" not in request)
        graceful = request.get("cause") if succeeded else None
        message = "exited with code 0 after its stop signal"
    elif graceful:
        message = f"saved and stopped at step {steps} of {steps_total}"
    preflight = read_json_or_none(attempt.preflight) or {}
    return ExitEvidence(
        completed=completed,
        preflight_refusal=preflight.get("message"),
        nodes_at_fault=[nodes[at] for at, host in enumerate(hosts) if host in preflight.get("at_fault", ())],
        is_command=command,
        exit_codes=exit_codes,
        rank_errors=rank_errors,
        killed_workers=list(killed.values()),
        exited_workers=[(worker.rank, worker.code) for worker in failed.values() if worker.code > 0],
        oom_ranks=[rank for node, (rank, _) in killed.items() if attempt.node_oom(node).exists()],
        external_cause=external_cause,
        external_message=external_message,
        requested_cause=request.get("cause"),
        requested_at=request.get("time", 0.0),
        graceful_cause=graceful,
        finished_message=_finished_message(attempt, nodes, steps, steps_total),
        graceful_message=message,
        rank_positions=[RankPosition(**rank) for record in ended.values() for rank in record["ranks"]],
        hung_at=min((record["time"] for record in ended.values() if record["hung"]), default=None),
        silent_nodes=silent if len(silent) < len(hosts) else [],
        lost_peer=None if peer is None else f"node {peer} ({hosts[peer]})",
        ranks_started=any(attempt.path.glob("rank-*.log")) or any(attempt.path.glob("steps-*.jsonl")),
        last_lines={node: last_rank_line(read_tail(attempt.node_log(node))) for node in exit_codes},
    )


def _finished_message(
    attempt: Attempt, nodes: Sequence[int], steps: int | None, steps_total: int | None
) -> str | None:
    """A warning on other steps than planned, or if all agents found their ranks without a connection."""
    if steps and steps_total and (message := unplanned_steps(steps, steps_total)):
        return message
    records = [read_json_or_none(attempt.node_unconnected(node)) for node in nodes]
    if not records or not all(records):  # those of the trainer have no such record
        return None
    ranks = sum(record["ranks"] for record in records if record)
    return f"{ranks} ranks trained apart: no process group of {ranks} was made"


def _failed_workers(attempt: Attempt) -> dict[int, FailedWorker]:
    """The worker that each node's torchrun names as root cause, by node.

    Reads all nodes' logs, as the exit code of a node may be missing.
    """
    logs = {int(path.stem.partition("-")[2]): path for path in sorted(attempt.path.glob("node-*.log"))}
    return {node: worker for node, path in logs.items() if (worker := root_cause_worker(read_tail(path)))}


def is_rank_killed(attempt: Attempt) -> bool:
    """Whether a signal ended a rank that is the root cause on its node.

    torchrun ends ranks with SIGTERM, and a rank may end itself with SIGABRT after the loss of a peer.
    """
    signals = {-worker.code for worker in _failed_workers(attempt).values() if worker.code < 0}
    return bool(signals - {signal.SIGTERM, signal.SIGABRT})


def _node_at(address: str | None, hosts: Sequence[str]) -> int | None:
    """The node of an address, if the name service answers within `_LOOKUP_S`."""
    nodes: list[int] = []

    def look_up() -> None:
        with contextlib.suppress(OSError):
            name, aliases, _ = socket.gethostbyaddr(address or "")
            names = {each.partition(".")[0] for each in (name, *aliases)}
            nodes.extend(node for node, host in enumerate(hosts) if host in names)

    if address is not None and len(set(hosts)) > 1:
        thread = threading.Thread(target=look_up, name="name service", daemon=True)
        thread.start()
        thread.join(_LOOKUP_S)
    return next(iter(nodes), None)


def read_rank_errors(attempt: Attempt) -> list[dict[str, Any]]:
    """Readable error files of the ranks (`records.RankError`)."""
    errors = []
    for path in sorted(attempt.path.glob("error-*.json")):
        try:
            error = read_json(path)
            errors.append({key: error[key] for key in ("rank", "time", "kind", "message", "cause")})
        except (OSError, CorruptFile, KeyError):
            continue  # truncated, for example on a full disk: other evidence remains
    return errors


def errors_of_command(attempt: Attempt, failed: Iterable[FailedWorker]) -> list[dict[str, Any]]:
    """Errors of the failed processes of a command, by the last traceback or line of each rank's log.

    A process that a signal ended has none here.
    """
    errors = []
    for rank, code, found in failed:
        log = attempt.rank_log(rank)
        if code < 0 or not log.exists():
            continue
        kind, message = _last_error(error_lines(_RANK_PREFIX.sub("", read_tail(log))), code)
        cause = "out_of_memory" if _OUT_OF_MEMORY.search(f"{kind}: {message}") else "crashed"
        time = log.stat().st_mtime
        error = {"rank": rank, "time": time, "kind": kind, "message": message, "cause": cause}
        errors.append({**error, "found": found})
    return errors


def _last_error(lines: list[str], code: int) -> tuple[str, str]:
    """Kind and message of the error that ended a process with this exit code."""
    text = next(reversed(lines), "no error message in its log")
    if code == 1:  # an exception that Python reports, whose message may have several lines
        starts = [at for at, line in enumerate(lines) if line == "Traceback (most recent call last):"]
        after = lines[starts[-1] + 1 :] if starts else []
        text = "\n".join(itertools.dropwhile(lambda line: line.startswith(" "), after)) or text
    exception = _EXCEPTION.fullmatch(text)
    return (exception[1], exception[2]) if exception else (f"exit code {code}", text)
