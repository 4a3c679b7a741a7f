"""Measure the bandwidth between the nodes: start `disttrain.comm_bench.preflight` on this node.

One process for each rank, without torchrun, whose start would double the time. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from disttrain.config.ranks import ranks_per_node
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt
from jobs.core import environment
from jobs.node.allocation import Allocation
from jobs.node.child_process import end
from jobs.node.preflight.exchange import RESULT
from jobs.node.rendezvous import Endpoint
from jobs.node.waiting import poll_until

WITHIN_S = 55.0
"""Time for the measurement, with the start of its processes."""


def rank_variables(
    config: Mapping[str, Any], node: int, nodes: int, endpoint: Endpoint
) -> list[dict[str, str]]:
    """torchrun's variables for each rank of this node."""
    ranks = ranks_per_node(config)
    return [
        {
            "RANK": str(node * ranks + local_rank),
            "WORLD_SIZE": str(nodes * ranks),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": endpoint.address,
            "MASTER_PORT": str(endpoint.port),
        }
        for local_rank in range(ranks)
    ]


def measure(
    attempt: Attempt,
    config: Mapping[str, Any],
    node: int,
    nodes: int,
    endpoint: Endpoint,
    env: Mapping[str, str],
    allocation: Allocation | None,
) -> str | None:
    """Run this node's ranks to their end. Returns the reason, one line, if they failed. Raises `JobEnded`."""
    command = [sys.executable, "-P", "-m", "disttrain.comm_bench.preflight"]
    command += [str(attempt.preflight_folder / RESULT), "--device", str(config["resources"]["device"])]
    command += ["--run", str(attempt.path.parent.parent)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        started = [
            subprocess.Popen(
                command, env={**env, **each}, stdout=output, stderr=output, start_new_session=True
            )
            for each in rank_variables(config, node, nodes, endpoint)
        ]
        try:
            ended = poll_until(lambda: _ended(started), WITHIN_S, allocation)
        finally:
            end(started)
        if ended is None:
            return f"the measurement did not end within {WITHIN_S:g} s"
        if any(ended):
            return f"the measurement failed with exit code {max(ended, key=abs)}: {_last_line(output)}"
    return None


def _ended(processes: list[subprocess.Popen[bytes]]) -> list[int] | None:
    """Exit codes once all have ended, or one has failed."""
    codes = [process.poll() for process in processes]
    if any(codes):  # the others wait for the failed rank
        return [code or 0 for code in codes]
    return [0] * len(codes) if None not in codes else None


def _last_line(output: IO[str]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output if line.strip()]
    return lines[-1] if lines else "no output"


def result(attempt: Attempt) -> dict[str, Any] | None:
    """The result that rank 0 wrote; None if it has written none."""
    return read_json_or_none(attempt.preflight_folder / RESULT)


def rank_environment(added: Mapping[str, environment.AddedVariable]) -> dict[str, str]:
    """The environment of the run's ranks, so that the same transport is measured."""
    return environment.rank_environment(os.environ, added)
