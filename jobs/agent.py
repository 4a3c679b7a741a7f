"""What runs on each node: `python -m jobs.agent RUN_DIR --submission S --node-rank I --nodes N`.

Claims the attempt (node 0, unless a local supervisor has), meets the other nodes, sets the environment
and runs torchrun as a child. The same module on Slurm and on a laptop. What it says goes to the node's
log. Standard library only, so that a node is up in a moment.

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
from pathlib import Path
from typing import Any

from disttrain.rundir import Attempt, CorruptFile, RunDir, read_json, write_json
from jobs import environment, ledger, node_record, processes, rendezvous, snapshot
from jobs.attempt import close_attempt, open_attempt
from jobs.outcome import EXIT_LAUNCH_FAILED, EXIT_REFUSED

_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CANNOT_START = (rendezvous.RendezvousError, environment.MissingSecret, CorruptFile, OSError, KeyError)
_POLL_S = 0.2
_EARLY_S = 60.0
"""How long before the time limit a job may be told to end: Slurm is that far off."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jobs.agent", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--hosts", nargs="+", help="names of the nodes, in rank order; default: this machine")
    parser.add_argument("--job-id")
    parser.add_argument("--attempt", type=int, help="claimed already, by the supervisor of this agent")
    given = parser.parse_args(argv)
    hosts = given.hosts or ["127.0.0.1"] * given.nodes
    if len(hosts) != given.nodes or not 0 <= given.node_rank < given.nodes:
        parser.error(f"--node-rank {given.node_rank} and {len(hosts)} hosts do not fit --nodes {given.nodes}")
    run = RunDir(given.run_dir.absolute())
    for warning in (signal.SIGUSR1, signal.SIGUSR2):  # warnings from the scheduler, not a reason to die
        signal.signal(warning, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_TO_END, signal.SIGCHLD})
    processes.become_subreaper()
    try:
        if given.attempt is None and given.node_rank == 0:
            return _run_first_node(run, given.submission, hosts, given.job_id)
        number = _claimed_attempt(run, given.submission) if given.attempt is None else given.attempt
        if number is None:
            _say("the submission was revoked; nothing to do")
            return 0
        attempt = run.attempt(number)
        if given.attempt is None:
            _log_to(attempt.node_log(given.node_rank))
        problem = snapshot.problem(run, read_json(run.run_json))
        if problem is not None:
            _say(f"refused: {problem}")
            return EXIT_REFUSED
        return run_node(run, attempt, given.node_rank, hosts)[0]
    except _CANNOT_START as error:
        _say(f"cannot start: {error}")
        return EXIT_LAUNCH_FAILED


def _run_first_node(run: RunDir, submission: int, hosts: Sequence[str], job_id: str | None) -> int:
    """Node 0 where nobody supervises: it claims the attempt and closes it."""
    try:
        record = read_json(run.run_json)
    except (CorruptFile, OSError) as error:
        ledger.revoke(run, submission, "launch_failed", str(error))
        raise
    attempt = open_attempt(run, submission, cluster=record["cluster"], job_id=job_id, nodes=hosts)
    if attempt is None:
        _say("the submission was revoked or has started already; nothing to do")
        return 0
    _log_to(attempt.node_log(0))
    problem = snapshot.problem(run, record)
    if problem is not None:
        _say(f"refused: {problem}")
        close_attempt(run, attempt, {0: EXIT_REFUSED}, stopped="refused", stopped_message=problem)
        return EXIT_REFUSED
    began = time.monotonic()
    code, asked_to_end = run_node(run, attempt, 0, hosts)
    stopped, message = None, None
    if asked_to_end:  # schedulers do not say why: it is the time limit if that has come
        limit_s = 60 * float(record["config"]["job"]["time_limit_min"])
        stopped = "timeout" if time.monotonic() - began > limit_s - _EARLY_S else "cancelled"
        message = "the scheduler ended the job"
    close_attempt(run, attempt, {0: code}, stopped=stopped, stopped_message=message)
    return code


def _claimed_attempt(run: RunDir, submission: int) -> int | None:
    """The attempt that node 0 claimed, None if the submission was revoked. Waits for either."""
    timeout_s = float(read_json(run.run_json)["config"]["job"]["rendezvous_timeout_s"])
    deadline = time.monotonic() + timeout_s
    while (claim := ledger.entry(run, submission).read("claim")) is None:
        if time.monotonic() > deadline:
            raise rendezvous.RendezvousError(f"node 0 claimed nothing within {timeout_s:g} s")
        time.sleep(_POLL_S)
    return int(claim["attempt"]) if claim["by"] == "job" else None


def run_node(run: RunDir, attempt: Attempt, node_rank: int, hosts: Sequence[str]) -> tuple[int, bool]:
    """Run this node's share of the attempt: torchrun's exit code, and whether somebody asked us to end."""
    try:
        record = read_json(run.run_json)
        with contextlib.ExitStack() as held:
            if node_rank == 0:
                meeting, reserved = rendezvous.publish(attempt, hosts[0])
                held.enter_context(reserved)
            else:  # once it is published, attempt.json is there as well
                meeting = rendezvous.wait(attempt, float(record["config"]["job"]["rendezvous_timeout_s"]))
            added = _added_environment(record, attempt, node_rank, hosts)
            if node_rank == 0:
                write_json(run.env_json, environment.as_record(added))
            env = environment.compose(os.environ, added, record["cluster"])
            command = launch_command(run, attempt, record, node_rank, len(hosts), meeting)
            _say(f"node {node_rank} of {len(hosts)} on {processes.host()}: {shlex.join(command)}")
            node_record.start(attempt, node_rank)
            return _run(command, env)
    except _CANNOT_START as error:
        _say(f"cannot start: {error}")
        return EXIT_LAUNCH_FAILED, False


def _added_environment(
    record: Mapping[str, Any], attempt: Attempt, node_rank: int, hosts: Sequence[str]
) -> dict[str, environment.Variable]:
    peer = hosts[0 if node_rank else 1] if len(hosts) > 1 else None
    interface = rendezvous.interface_towards(peer) if peer else None
    added = environment.derive(
        record["config"],
        record["cluster"],
        os.environ,
        source=snapshot.source_of(record),
        interface=interface,
        profile=record.get("profile"),
    )
    started = read_json(attempt.record)["started"]
    scheduler = os.environ if record["cluster"] == "slurm" else {}
    added["DISTTRAIN_DEADLINE"] = environment.deadline(record["config"], started, scheduler)
    return added


def launch_command(
    run: RunDir,
    attempt: Attempt,
    record: Mapping[str, Any],
    node_rank: int,
    nodes: int,
    meeting: rendezvous.Rendezvous,
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


def _run(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, bool]:
    """Run torchrun to its end, passing on a request to end; nothing of it is left behind."""
    child = processes.spawn(command, log=sys.stdout.fileno(), env=env)
    asked_to_end = False
    while True:
        received = signal.sigwaitinfo({*_TO_END, signal.SIGCHLD})
        ended = processes.reap()
        if child in ended:
            processes.kill_descendants()
            code = ended[child]
            # Ended by such a signal, and not by us: Slurm ends each process of a step, ours perhaps later.
            asked_to_end |= -code in _TO_END
            return (code if code >= 0 else 128 - code), asked_to_end
        if received.si_signo in _TO_END:
            asked_to_end = True
            os.kill(child, signal.SIGTERM)


def _log_to(path: Path) -> None:
    """Write to the node's log from here on. A local supervisor has seen to that; Slurm's own log is
    the job's, and holds what came before the attempt."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (sys.stdout, sys.stderr):
        os.dup2(log, target.fileno())
    os.close(log)


def _say(text: str) -> None:
    print(f"{ledger.now()} agent: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
