"""Start torchrun on one node: checks, rendezvous, environment and command.

The environment variable `DISTTRAIN_LAUNCHER`, a command line, replaces torchrun in tests. The replacement
gets torchrun's arguments.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from disttrain.config.stop_time import lead_within
from disttrain.errors import in_one_line, message_of
from disttrain.records.heartbeat import FOLDER_VARIABLE, count_killed_probes
from disttrain.records.json_files import CorruptFile, read_json, write_json
from disttrain.records.process_limits import count_oom_kills
from disttrain.records.run_directory import ID_VARIABLE, PROCESSORS, Attempt, RunDir
from disttrain.records.run_json import fill, ranks_per_node
from jobs.checks import rank_python
from jobs.checks.rank_python import RankPython, words_of
from jobs.core import environment, processes, requeue_policy, run_code, secrets_file
from jobs.core.attempt import is_current, resumed_checkpoint
from jobs.node import (
    interpreter,
    node_environment,
    node_info,
    peers,
    rendezvous,
    start_processes,
)
from jobs.node.allocation import JobEnded, NodeContext, log_line, log_traceback
from jobs.node.hang import memory_folder
from jobs.node.preflight import run_preflight
from jobs.node.torchrun import Torchrun, TorchrunResult, run_torchrun

CANNOT_START = (peers.CannotStart, secrets_file.MissingSecret, CorruptFile, OSError)
"""Exceptions that prevent a launch, if they are raised before it; each has a message of one line."""


class _Refused(Exception):
    """The copy of the code is not that of the plan; the message is one line."""


def launch(node: NodeContext, attempt: Attempt) -> TorchrunResult:
    """Run torchrun on this node to its end, or return why it could not start.

    Only an error before the launch is an error of the launch. Raises `JobEnded`.
    """
    with contextlib.ExitStack() as held:
        try:
            torchrun = _prepare(node, attempt, held)
        except JobEnded:
            raise
        except _Refused as problem:
            log_line(f"refused: {problem}")
            return TorchrunResult(requeue_policy.EXIT_DO_NOT_REQUEUE, "refused", str(problem))
        except peers.NodeFailed as reason:  # the exit of that node gives the cause of the attempt
            log_line(f"not started: {reason}")
            return TorchrunResult(requeue_policy.EXIT_FAILED)
        except CANNOT_START as error:
            log_line(f"cannot start: {message_of(error)}")
            return TorchrunResult(requeue_policy.EXIT_LAUNCH_FAILED)
        except Exception as error:
            log_traceback()
            log_line(f"cannot start: {in_one_line(error)}")
            return TorchrunResult(requeue_policy.EXIT_LAUNCH_FAILED)
        kills_before = count_oom_kills()
        result = run_torchrun(torchrun, sys.stdout.fileno())
        _record_oom_kills(attempt, node.rank, kills_before, count_killed_probes(torchrun.memory))
        return result


def _prepare(node: NodeContext, attempt: Attempt, held: contextlib.ExitStack) -> Torchrun:
    """Check the code and the node, and agree on the rendezvous. Raises `CANNOT_START`.

    `held` keeps the port of node 0 and the folder of this node.
    """
    record = read_json(node.run.run_json)
    if (problem := run_code.code_problem(node.run, record)) is not None:
        raise _Refused(problem)
    config = record["config"]
    checkpoint = resumed_checkpoint(node.run, attempt) if config["job"].get("resume_args") else None
    record = {**record, "config": fill(config, node.run, attempt.number, checkpoint)}
    of_command = run_code.command_of_run(node.run, record)
    problem = of_command.problem if of_command else None
    if (code := os.environ.get(environment.SETUP_EXIT_VARIABLE)) is not None:
        problem = f"node_setup exited with code {code} on {processes.host()}; the batch log has its output"
    if problem is not None:
        raise peers.CannotStart(problem)
    secrets = secrets_file.values_of_run(node.run, record["config"], os.environ)
    memory, container = held.enter_context(memory_folder()), None
    if node.allocation is not None:
        folders = [run_code.CODE_ROOT, node.run.path.parent, *run_code.folders_of_run(node.run, record)]
        container = held.enter_context(node.allocation.container(record, folders, memory))
    python = rank_python.find(
        record["config"]["job"],
        {**os.environ, "PYTHONSAFEPATH": ""},
        is_trainer=of_command is None,
        container=container,
    )
    added, endpoint = _agree(node, attempt, record, python, held)
    nodes, is_bound = len(node.hosts), bool(added[PROCESSORS].value)
    command = launch_command(
        node.run, attempt, record, node.rank, nodes, endpoint, python=python, is_bound=is_bound
    )
    log_line(f"node {node.rank} of {nodes} on {processes.host()}: {shlex.join(command)}")
    deadline = float(added["DISTTRAIN_DEADLINE"].value)
    lead_s = lead_within(deadline - time.time(), float(record["config"]["job"]["stop_lead_s"]))
    env = python.environment(os.environ, added, secrets)
    env[FOLDER_VARIABLE] = str(memory)
    env["PET_LOG_DIR"] = str(memory / "torchrun")  # torchrun would leave a folder in /tmp of the node
    if attempt.directory_id is not None:
        env[ID_VARIABLE] = attempt.directory_id
    module = node.allocation.node_info_module if node.allocation else None
    node_info.start_node_info(attempt, node.rank, env, module, python)
    stop_signal = signal.Signals[record["config"]["job"]["stop_signal"]] if of_command else None
    idle_limit_s = environment.idle_limit_s(record) if of_command else None
    if idle_limit_s is not None:
        env.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(memory / environment.TRACE_PIPES))
    gpus = partial(node_environment.gpus_of_ranks, record["config"])
    return Torchrun(node, attempt, command, env, deadline, lead_s, memory, stop_signal, idle_limit_s, gpus)


def _agree(
    node: NodeContext,
    attempt: Attempt,
    record: Mapping[str, Any],
    python: RankPython,
    held: contextlib.ExitStack,
) -> tuple[dict[str, environment.AddedVariable], rendezvous.Endpoint]:
    """Check the nodes; the variables of the ranks, and the endpoint of node 0, whose port `held` keeps."""
    network = node_environment.network_of_node(node, record, python)
    added = node_environment.variables_of_ranks(node, attempt, record, network, python)
    refusal = run_preflight(node, attempt, record, network, added, python)
    if refusal is not None:
        raise peers.CannotStart(refusal)
    network.log_findings()
    if node.rank > 0:
        timeout_s = float(record["config"]["job"]["rendezvous_timeout_s"])
        return added, rendezvous.wait_for_endpoint(attempt, timeout_s, node.allocation)
    endpoint, port = rendezvous.publish_endpoint(attempt, node.hosts[0])
    held.enter_context(port)
    if is_current(node.run, attempt):
        write_json(node.run.env_json, network.record(added))
    return added, endpoint


def _record_oom_kills(attempt: Attempt, node: int, before: int | None, probes: int) -> None:
    """Record the number of processes that the OOM killer ended since `before` was counted, if any.

    The number leaves out `probes` of batch sizes that were killed: training went on without them.
    """
    after = count_oom_kills()
    kills = 0 if before is None or after is None else after - before - probes
    if kills > 0 and not attempt.is_replaced():
        log_line(f"out of memory: the kernel killed {kills} of this job's processes on this node")
        peers.record(attempt, attempt.node_oom(node), {"kills": kills})


def launch_command(
    run: RunDir,
    attempt: Attempt,
    record: Mapping[str, Any],
    node_rank: int,
    nodes: int,
    endpoint: rendezvous.Endpoint,
    *,
    python: RankPython | None = None,
    is_bound: bool = False,
) -> list[str]:
    """The command of one node: torchrun's, or that of `jobs.node.start_processes`.

    `python`: that of the ranks on this node, if it was examined. `is_bound`: torchrun binds the ranks to
    processors.

    The rendezvous is static, as the number of nodes is fixed: where node 0's port is taken, torchrun fails
    instead of joining the store of another job.
    """
    config = record["config"]
    command = run_code.command_of_run(run, record)
    words = words_of(config["job"].get("python")) if python is None else python.words
    name, replacement = config["job"].get("launcher", "torchrun"), os.environ.get("DISTTRAIN_LAUNCHER")
    options = {
        "--nnodes": nodes,
        "--nproc-per-node": ranks_per_node(config),
        "--node-rank": node_rank,
        "--master-addr": endpoint.address,
        "--master-port": endpoint.port,
    }
    if name == "torchrun":
        # a command has no PYTHONSAFEPATH: `-P` keeps files of the working directory from torchrun alone
        options_of_python = ["-P"] if command is not None and (python is None or python.is_recent) else []
        own = [*words, *options_of_python, "-m", "torch.distributed.run"]
        options |= {
            "--rdzv-id": f"{record['run_key']}-{attempt.number}",
            "--rdzv-conf": f"timeout={math.ceil(config['job']['rendezvous_timeout_s'])}",
            "--max-restarts": 0,
        }
    else:
        own = [sys.executable, "-P", start_processes.__file__, name]
    arguments = [str(word) for option in options.items() for word in option]
    arguments += node_environment.BINDING if is_bound else ()
    if command is None:
        program = ["-m", "disttrain", "--run-dir", str(run.path), "--attempt", str(attempt.number)]
    else:
        program = [] if name == "torchrun" else [*words]
        program += [interpreter.__file__, str(attempt.path), str(command.workdir)]
        program += command.words_to_start()
    return [*(shlex.split(replacement) if replacement else own), *arguments, *program]
