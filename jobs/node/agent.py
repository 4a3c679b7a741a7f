"""What runs on each node: `python -m jobs.node.agent RUN_DIR --submission S --node-rank I --nodes N`.

Claims the attempt (node 0, unless a supervisor has), meets the other nodes, sets the environment and runs
torchrun as a child. The same module runs on every scheduler. Its output goes to the node's log. Standard
library only, so that a node starts fast.

Tests put another program in torchrun's place, started with torchrun's arguments, through
`DISTTRAIN_LAUNCHER` (a command line).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from disttrain.config.stop_time import lead_within
from disttrain.records.json_files import (
    CorruptFile,
    create_exclusive,
    read_json,
    read_json_or_none,
    write_json,
)
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.records.run_json import read_run_json
from jobs.core import code_snapshot, environment, journal, processes, requeue_policy
from jobs.core.attempt import DoNotRestart, close_attempt, is_current, open_attempt, record_requeue_failure
from jobs.core.exit_cause import ExitStatus
from jobs.node import cgroup, node_info, peers, rendezvous, torchrun, waiting
from jobs.node.allocation import Allocation

_CANNOT_START = (rendezvous.RendezvousError, environment.MissingSecret, CorruptFile, OSError, KeyError)
_REQUEUE_WITHIN_S = 600.0
"""How long to go on trying to have a job requeued that has more time than this left."""
_MARGIN_S = 2.0
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class NodeContext:
    """Which node of which job this agent stands for."""

    run: RunDir
    submission: int
    rank: int
    hosts: Sequence[str]
    job_id: str | None
    allocation: Allocation | None

    @property
    def restart(self) -> int:
        return self.allocation.restart if self.allocation else 0


def main(argv: list[str] | None = None, allocation: Allocation | None = None) -> int:
    """Run one node's share of a run, as part of a job of `allocation` if there is one; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jobs.node.agent", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--hosts", nargs="+", help="names of the nodes, in rank order; default: this machine")
    parser.add_argument("--job-id")
    parser.add_argument("--attempt", type=int, help="claimed already, by the supervisor of this agent")
    given = parser.parse_args(argv)
    hosts = given.hosts or [_LOOPBACK] * given.nodes
    if len(hosts) != given.nodes or not 0 <= given.node_rank < given.nodes:
        parser.error(f"--node-rank {given.node_rank} and {len(hosts)} hosts do not fit --nodes {given.nodes}")
    run = RunDir(given.run_dir.absolute())
    job_id = allocation.job_id if allocation else given.job_id
    node = NodeContext(run, given.submission, given.node_rank, hosts, job_id, allocation)
    signal.pthread_sigmask(
        signal.SIG_BLOCK, {*torchrun.WARNING_SIGNALS, *torchrun.TERMINATION_SIGNALS, signal.SIGCHLD}
    )
    processes.become_subreaper()
    try:
        if given.attempt is not None:
            return _run_node(node, run.attempt(given.attempt)).code
        return _run_first_node(node) if node.rank == 0 else _run_other_node(node)
    except (DoNotRestart, waiting.JobEnded) as why:
        _say(f"nothing to do: {why}")
        return why.exit_code
    except _CANNOT_START as error:
        _say(f"cannot start: {error}")
        return requeue_policy.EXIT_LAUNCH_FAILED


def _run_first_node(node: NodeContext) -> int:
    """Node 0 where nobody supervises: it claims the attempt, closes it, and has its job requeued."""
    run = node.run
    try:
        record = read_run_json(run)
    except (CorruptFile, OSError) as error:
        journal.revoke(run, node.submission, "launch_failed", str(error))
        raise
    attempt = open_attempt(
        run,
        node.submission,
        cluster=record["cluster"],
        job_id=node.job_id,
        nodes=node.hosts,
        restart=node.restart,
    )
    if attempt is None:
        return _not_ours(journal.entry(run, node.submission).claims())
    _log_to(attempt.node_log(0))
    ended = _run_node(node, attempt)
    peers.record_node_exit(attempt, 0, ended.code, ended.cause is not None)
    codes = peers.wait_for_node_exits(
        attempt, len(node.hosts), 0 if ended.cause else peers.NODE_EXITS_TIMEOUT_S
    )
    if not is_current(run, attempt):
        _say("this run has gone on elsewhere; nothing more to do")
        return requeue_policy.EXIT_DO_NOT_REQUEUE
    verdict = close_attempt(
        run,
        attempt,
        codes,
        external_cause=ended.cause,
        external_message=ended.message,
        can_requeue=node.allocation is not None,
    )
    _say(f"{verdict.cause}: {verdict.message}" if verdict.message else verdict.cause)
    return _hand_back(node, attempt, verdict, ended)


def _hand_back(
    node: NodeContext, attempt: Attempt, verdict: ExitStatus, ended: torchrun.TorchrunResult
) -> int:
    """Have the job requeued if that is to be; node 0's exit code."""
    if not verdict.decision.requeue:
        return requeue_policy.job_exit_code(verdict.cause, verdict.decision)
    assert node.allocation is not None
    if ended.requeued:
        return requeue_policy.EXIT_DONE
    until = time.time() + _REQUEUE_WITHIN_S
    if ended.job_end is not None:
        until = min(until, ended.job_end - _MARGIN_S)
    if node.allocation.requeue(until):
        _say(f"job {node.job_id} will be started again")
        return requeue_policy.EXIT_DONE
    if is_current(node.run, attempt):
        record_requeue_failure(node.run, attempt)
    return requeue_policy.EXIT_NOT_REQUEUED


def _run_other_node(node: NodeContext) -> int:
    attempt = _claimed_attempt(node)
    if attempt is None:
        return _not_ours(journal.entry(node.run, node.submission).claims())
    _log_to(attempt.node_log(node.rank))
    ended = _run_node(node, attempt)
    peers.record_node_exit(attempt, node.rank, ended.code, ended.cause is not None)
    if not peers.wait_for_closed_attempt(attempt):
        return ended.code
    if not ended.requeued:
        _stay_for_requeue(node, attempt)
    return requeue_policy.EXIT_DONE


def _stay_for_requeue(node: NodeContext, attempt: Attempt) -> None:
    """Wait while node 0 asks for its job to be requeued: some time after the first task of a step has left,
    srun ends the others."""

    def settled() -> bool | None:
        asking = (read_json_or_none(attempt.record) or {}).get("next") == "requeue"
        return None if asking and attempt.superseded_by() is None else True

    if not settled():
        _say("stays while node 0 asks for the requeue")
    with contextlib.suppress(waiting.JobEnded):
        waiting.poll_until(settled, _REQUEUE_WITHIN_S, node.allocation)


def _claimed_attempt(node: NodeContext) -> Attempt | None:
    """The attempt that node 0 began for this start of the job, None if it is not to start. Waits."""
    timeout_s = float(read_run_json(node.run)["config"]["job"]["rendezvous_timeout_s"])

    def settled() -> list[dict[str, Any]] | None:
        claims = journal.entry(node.run, node.submission).claims()
        if not claims or journal.is_revoked(claims):
            return claims or None
        restart = claims[-1].get("restart", 0)
        # Node 0 claims an attempt first, and makes its folder then.
        record = read_json_or_none(node.run.attempt(int(claims[-1]["attempt"])).record)
        begun = restart == node.restart and record is not None
        return claims if begun or restart > node.restart else None

    claims = waiting.poll_until(settled, timeout_s, node.allocation)
    if claims is None:
        raise rendezvous.RendezvousError(f"node 0 began no attempt within {timeout_s:g} s")
    if journal.is_revoked(claims) or claims[-1].get("restart", 0) != node.restart:
        return None
    return node.run.attempt(int(claims[-1]["attempt"]))


def _not_ours(claims: Sequence[Mapping[str, Any]]) -> int:
    if journal.is_revoked(claims):
        _say(f"nothing to do, the submission was revoked: {claims[-1].get('message')}")
        return requeue_policy.EXIT_DO_NOT_REQUEUE
    _say("nothing to do, the submission has started already")
    return requeue_policy.EXIT_DONE


def _run_node(node: NodeContext, attempt: Attempt) -> torchrun.TorchrunResult:
    """Run this node's share of the attempt."""
    run, hosts = node.run, node.hosts
    try:
        record = read_run_json(run)
        problem = code_snapshot.snapshot_problem(run, record)
        if problem is not None:
            _say(f"refused: {problem}")
            return torchrun.TorchrunResult(requeue_policy.EXIT_DO_NOT_REQUEUE, "refused", problem)
        missing = node.allocation.missing_gpus(record) if node.allocation else None
        if missing is not None:
            _say(f"cannot start: {missing}")
            return torchrun.TorchrunResult(requeue_policy.EXIT_LAUNCH_FAILED)
        with contextlib.ExitStack() as held:
            if node.rank == 0:
                meeting, reserved = rendezvous.publish_endpoint(attempt, hosts[0])
                held.enter_context(reserved)
            else:
                timeout_s = float(record["config"]["job"]["rendezvous_timeout_s"])
                meeting = rendezvous.wait_for_endpoint(attempt, timeout_s, node.allocation)
            added = _added_environment(record, attempt, node)
            if node.rank == 0 and is_current(run, attempt):
                write_json(run.env_json, environment.env_record(added))
            env = environment.rank_environment(os.environ, added)
            command = launch_command(run, attempt, record, node.rank, len(hosts), meeting)
            _say(f"node {node.rank} of {len(hosts)} on {processes.host()}: {shlex.join(command)}")
            deadline = float(added["DISTTRAIN_DEADLINE"].value)
            lead_s = lead_within(deadline - time.time(), float(record["config"]["job"]["stop_lead_s"]))
            place = torchrun.TorchrunContext(
                attempt, node.rank, len(hosts), deadline, lead_s, node.allocation
            )
            module = node.allocation.node_info_module if node.allocation else None
            node_info.start_node_info(attempt, node.rank, module)
            killed_before = cgroup.oom_kills()
            ended = torchrun.run_torchrun(command, env, sys.stdout.fileno(), place)
            _note_kills(attempt, node.rank, killed_before)
            return ended
    except _CANNOT_START as error:
        _say(f"cannot start: {error}")
        return torchrun.TorchrunResult(requeue_policy.EXIT_LAUNCH_FAILED)


def _note_kills(attempt: Attempt, node: int, before: int | None) -> None:
    """Leave word if the kernel has ended processes here for want of memory."""
    after = cgroup.oom_kills()
    if before is None or after is None or after <= before:
        return
    _say(f"out of memory: the kernel ended {after - before} of this job's processes on this node")
    with contextlib.suppress(OSError):  # how it ended is worth more than why
        create_exclusive(attempt.node_oom(node), {"kills": after - before})


def _added_environment(
    record: Mapping[str, Any], attempt: Attempt, node: NodeContext
) -> dict[str, environment.AddedVariable]:
    peer = node.hosts[0 if node.rank else 1] if len(node.hosts) > 1 else None
    interface = rendezvous.interface_towards(peer) if peer else None
    added = environment.added_variables(
        record["config"],
        os.environ,
        one_machine=set(node.hosts) == {_LOOPBACK},
        source=code_snapshot.source_of_run(record),
        interface=interface,
        profile=record.get("profile"),
    )
    end = node.allocation.end_time() if node.allocation else None
    if end is None:
        started = datetime.fromisoformat(read_json(attempt.record)["started"]).timestamp()
        end = started + 60 * float(record["config"]["job"]["time_limit_min"])
    added["DISTTRAIN_DEADLINE"] = environment.deadline_variable(end)
    return added


def launch_command(
    run: RunDir,
    attempt: Attempt,
    record: Mapping[str, Any],
    node_rank: int,
    nodes: int,
    meeting: rendezvous.Endpoint,
) -> list[str]:
    """The torchrun command of one node. The rendezvous is static: the shape is fixed, and a node that
    cannot take its port fails loudly instead of joining whoever has it."""
    config = record["config"]
    given = os.environ.get("DISTTRAIN_LAUNCHER")
    launcher = shlex.split(given) if given else [sys.executable, "-m", "torch.distributed.run"]
    options = {
        "--nnodes": nodes,
        "--nproc-per-node": config["resources"]["gpus_per_node"],
        "--node-rank": node_rank,
        "--master-addr": meeting.address,
        "--master-port": meeting.port,
        "--rdzv-id": f"{record['run_key']}-{attempt.number}",
        "--rdzv-conf": f"timeout={math.ceil(config['job']['rendezvous_timeout_s'])}",
        "--max-restarts": 0,
    }
    arguments = [str(word) for option in options.items() for word in option]
    trainer = ["-m", "disttrain", "--run-dir", str(run.path), "--attempt", str(attempt.number)]
    return [*launcher, *arguments, *trainer]


def _log_to(path: Path) -> None:
    """Redirect output to the node's log. The log of the job holds the output before the attempt.

    A supervisor starts its agents with this log.
    """
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (sys.stdout, sys.stderr):
        os.dup2(log, target.fileno())
    os.close(log)


def _say(text: str) -> None:
    print(f"{journal.utc_now()} agent: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
