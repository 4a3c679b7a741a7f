"""Start torchrun on one node: checks, rendezvous, environment and command. Standard library only.

The environment variable `DISTTRAIN_LAUNCHER`, a command line, replaces torchrun in tests. The replacement
gets torchrun's arguments.
"""

from __future__ import annotations

import contextlib
import functools
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

from disttrain.config.ranks import ranks_per_node
from disttrain.config.stop_time import lead_within
from disttrain.errors import in_one_line, message_of
from disttrain.records import run_placeholders
from disttrain.records.heartbeat import FOLDER_VARIABLE, count_killed_probes
from disttrain.records.json_files import CorruptFile, create_exclusive, read_json, write_json
from disttrain.records.oom_kills import count_oom_kills
from disttrain.records.run_directory import ID_VARIABLE, PROCESSORS, Attempt, RunDir
from disttrain.records.run_json import read_run_json
from jobs.checks.gpu_health import read_node_gpus
from jobs.core import environment, processes, requeue_policy, run_code, secrets_file
from jobs.core.attempt import is_current
from jobs.node import node_info, processor_binding, rendezvous, start_command
from jobs.node.fabric_environment import (
    FabricEnvironment,
    detect_or_nothing,
    fabric_environment,
    interface_to_peers,
)
from jobs.node.gather import NodeFailed
from jobs.node.hang import memory_folder
from jobs.node.node_context import LOOPBACK, NodeContext
from jobs.node.node_log import log_line, log_traceback
from jobs.node.preflight import NodeNetwork, run_preflight
from jobs.node.torchrun import TorchrunContext, TorchrunResult, run_torchrun
from jobs.node.waiting import JobEnded

CANNOT_START = (rendezvous.RendezvousError, secrets_file.MissingSecret, CorruptFile, OSError)
"""Exceptions that prevent a launch, if they are raised before it; each has a message of one line."""


@dataclass(frozen=True)
class _Prepared:
    """All that torchrun needs on this node."""

    command: Sequence[str]
    env: Mapping[str, str]
    context: TorchrunContext


def launch(node: NodeContext, attempt: Attempt) -> TorchrunResult:
    """Run torchrun on this node to its end, or return why it could not start.

    Only an error before the launch is an error of the launch. Raises `JobEnded`.
    """
    with contextlib.ExitStack() as held:
        try:
            prepared = _prepare(node, attempt, held)
        except JobEnded:
            raise
        except NodeFailed as reason:  # the exit of that node gives the cause of the attempt
            log_line(f"not started: {reason}")
            return TorchrunResult(requeue_policy.EXIT_FAILED)
        except Exception as error:
            if isinstance(error, CANNOT_START):
                log_line(f"cannot start: {message_of(error)}")
            else:
                log_traceback()
                log_line(f"cannot start: {in_one_line(error)}")
            return TorchrunResult(requeue_policy.EXIT_LAUNCH_FAILED)
        if isinstance(prepared, TorchrunResult):
            return prepared
        kills_before = count_oom_kills()
        result = run_torchrun(prepared.command, prepared.env, sys.stdout.fileno(), prepared.context)
        _record_oom_kills(attempt, node.rank, kills_before, count_killed_probes(prepared.context.node_folder))
        if result.unconnected_ranks is not None:
            _record(attempt, attempt.node_unconnected(node.rank), {"ranks": result.unconnected_ranks})
        return result


def _prepare(node: NodeContext, attempt: Attempt, held: contextlib.ExitStack) -> _Prepared | TorchrunResult:
    """Check the code and the node, and agree on the rendezvous; a result if the run must not start.

    `held` keeps the port of node 0 and the folder of this node.
    """
    record = read_run_json(node.run)
    problem = run_code.code_problem(node.run, record)
    if problem is not None:
        log_line(f"refused: {problem}")
        return TorchrunResult(requeue_policy.EXIT_DO_NOT_REQUEUE, "refused", problem)
    record = {**record, "config": run_placeholders.fill(record["config"], node.run, attempt.number)}
    of_command = run_code.command_of_run(node.run, record)
    problem = of_command.problem if of_command else None
    if (code := os.environ.get(environment.SETUP_EXIT_VARIABLE)) is not None:
        problem = f"node_setup exited with code {code} on {processes.host()}; the batch log has its output"
    if problem is not None:
        return _cannot_start(problem)
    secrets = secrets_file.values_of_run(node.run, record["config"], os.environ)
    agreed = _agree(node, attempt, record, held)
    if isinstance(agreed, str):
        return _cannot_start(agreed)
    added, endpoint = agreed
    nodes = len(node.hosts)
    is_bound = bool(added[PROCESSORS].value)
    command = launch_command(node.run, attempt, record, node.rank, nodes, endpoint, is_bound=is_bound)
    log_line(f"node {node.rank} of {nodes} on {processes.host()}: {shlex.join(command)}")
    deadline = float(added["DISTTRAIN_DEADLINE"].value)
    lead_s = lead_within(deadline - time.time(), float(record["config"]["job"]["stop_lead_s"]))
    node_folder = held.enter_context(memory_folder())
    env = (
        environment.rank_environment(os.environ, added)
        | secrets
        | {
            FOLDER_VARIABLE: str(node_folder),
            # torchrun would leave a folder of its own in /tmp of the node
            "PET_LOG_DIR": str(node_folder / "torchrun"),
        }
    )
    if attempt.directory_id is not None:
        env[ID_VARIABLE] = attempt.directory_id
    node_info.start_node_info(
        attempt, node.rank, env, node.allocation.node_info_module if node.allocation else None
    )
    stop_signal = signal.Signals[record["config"]["job"]["stop_signal"]] if of_command else None
    context = TorchrunContext(
        attempt,
        node.rank,
        nodes,
        deadline,
        lead_s,
        node.allocation,
        node_folder,
        node.run.metrics,
        stop_signal,
    )
    return _Prepared(command, env, context)


def _cannot_start(problem: str) -> TorchrunResult:
    log_line(f"cannot start: {problem}")
    return TorchrunResult(requeue_policy.EXIT_LAUNCH_FAILED)


def _agree(
    node: NodeContext, attempt: Attempt, record: Mapping[str, Any], held: contextlib.ExitStack
) -> tuple[dict[str, environment.AddedVariable], rendezvous.Endpoint] | str:
    """Check the nodes; the variables of the ranks and the rendezvous, or the reason of a refusal."""
    fabric, interface = detect_or_nothing(record), interface_to_peers(node)
    read_gpus = functools.cache(read_node_gpus)
    nodes = 1 if set(node.hosts) == {LOOPBACK} else len(node.hosts)
    derive = functools.partial(
        fabric_environment, fabric, record, os.environ, nodes=nodes, interface=interface
    )
    derived = final = derive()
    added = _environment(record, attempt, node, derived.added)
    added[PROCESSORS] = processor_binding.variable(record["config"], node.allocation, fabric, read_gpus)
    of_gloo = derived.interface["name"] if derived.interface else interface
    refusal = run_preflight(node, attempt, record, NodeNetwork(fabric, of_gloo, added, read_gpus))
    if refusal is not None:
        return refusal
    endpoint = _rendezvous(node, attempt, record, held, derived)
    if node.rank > 0:
        final = derive(agreed=endpoint.variables)
        final.log_differences(endpoint, derived)
    final.log_findings()
    of_ranks = {name: each for name, each in added.items() if name not in derived.added} | final.added
    if node.rank == 0 and is_current(node.run, attempt):
        about_node = (final.inherited, final.finding_records(), final.versions)
        write_json(node.run.env_json, environment.env_record(of_ranks, *about_node))
    return of_ranks, endpoint


def _rendezvous(
    node: NodeContext,
    attempt: Attempt,
    record: Mapping[str, Any],
    held: contextlib.ExitStack,
    derived: FabricEnvironment,
) -> rendezvous.Endpoint:
    """The endpoint of node 0, with its derived variables. On node 0, `held` keeps its port."""
    if node.rank == 0:
        endpoint, port = rendezvous.publish_endpoint(
            attempt, node.hosts[0], derived.agreed, derived.interface
        )
        held.enter_context(port)
        return endpoint
    timeout_s = float(record["config"]["job"]["rendezvous_timeout_s"])
    return rendezvous.wait_for_endpoint(attempt, timeout_s, node.allocation)


def _record_oom_kills(attempt: Attempt, node: int, before: int | None, probes: int) -> None:
    """Record the number of processes that the OOM killer ended since `before` was counted, if any.

    The number leaves out `probes` of batch sizes that were killed: training went on without them.
    """
    after = count_oom_kills()
    if before is None or after is None:
        return
    kills = after - before - probes
    if kills <= 0 or attempt.is_replaced():
        return
    log_line(f"out of memory: the kernel killed {kills} of this job's processes on this node")
    _record(attempt, attempt.node_oom(node), {"kills": kills})


def _record(attempt: Attempt, path: Path, content: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk must not hide the exit code
        if not attempt.is_replaced():
            create_exclusive(path, content)


def _environment(
    record: Mapping[str, Any],
    attempt: Attempt,
    node: NodeContext,
    fabric: Mapping[str, environment.AddedVariable],
) -> dict[str, environment.AddedVariable]:
    """The variables to add on this node, with those of its network and the end of the job's time."""
    command = run_code.command_of_run(node.run, record)
    added = environment.added_variables(
        record["config"],
        os.environ,
        one_machine=set(node.hosts) == {LOOPBACK},
        source=run_code.code_record(record).get("source"),
        fabric=fabric,
        profile=record.get("profile"),
        search_path=command.search_path(os.environ.get("PYTHONPATH", "")) if command else None,
    )
    if command is not None:
        node.run.checkpoints.mkdir(exist_ok=True)
        added |= environment.command_variables(node.run, attempt, record["config"])
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
    endpoint: rendezvous.Endpoint,
    *,
    is_bound: bool = False,
) -> list[str]:
    """The torchrun command of one node; `is_bound`: torchrun binds the ranks to processors.

    The rendezvous is static, as the number of nodes is fixed: where node 0's port is taken, torchrun fails
    instead of joining the store of another job.
    """
    config = record["config"]
    command = run_code.command_of_run(run, record)
    replacement = os.environ.get("DISTTRAIN_LAUNCHER")
    # a command has no PYTHONSAFEPATH: `-P` keeps files of the working directory from torchrun alone
    options_of_python = [] if command is None else ["-P"]
    own = [sys.executable, *options_of_python, "-m", "torch.distributed.run"]
    launcher = shlex.split(replacement) if replacement else own
    options = {
        "--nnodes": nodes,
        "--nproc-per-node": ranks_per_node(config),
        "--node-rank": node_rank,
        "--master-addr": endpoint.address,
        "--master-port": endpoint.port,
        "--rdzv-id": f"{record['run_key']}-{attempt.number}",
        "--rdzv-conf": f"timeout={math.ceil(config['job']['rendezvous_timeout_s'])}",
        "--max-restarts": 0,
    }
    arguments = [str(word) for option in options.items() for word in option]
    arguments += processor_binding.OPTION if is_bound else ()
    if command is None:
        program = ["-m", "disttrain", "--run-dir", str(run.path), "--attempt", str(attempt.number)]
    else:
        program = [start_command.__file__, str(attempt.path), str(command.workdir)]
        program += command.words_to_start()
    return [*launcher, *arguments, *program]
