"""Measure the links of a job: start `disttrain.comm_bench.preflight` on this node. Standard library only.

One process for each rank, without torchrun, whose start would double the time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from disttrain.config.ranks import ranks_per_node
from disttrain.records.run_directory import Attempt
from jobs.core.child_process import end
from jobs.node.node_context import NodeContext
from jobs.node.waiting import poll_until

WITHIN_S = 55.0
"""Time for the measurement, with the start of its processes."""


def result_file(attempt: Attempt) -> Path:
    """Written by rank 0."""
    return attempt.preflight_folder / "bandwidth.json"


def rank_variables(node: NodeContext, ranks: int, port: int) -> list[dict[str, str]]:
    """torchrun's variables for each rank of this node."""
    return [
        {
            "RANK": str(node.rank * ranks + local_rank),
            "WORLD_SIZE": str(len(node.hosts) * ranks),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": node.hosts[0],
            "MASTER_PORT": str(port),
        }
        for local_rank in range(ranks)
    ]


def measure(
    node: NodeContext, attempt: Attempt, config: Mapping[str, Any], env: Mapping[str, str], port: int
) -> str | None:
    """Run this node's ranks to their end. Returns the reason, one line, if they failed. Raises `JobEnded`."""
    command = [sys.executable, "-P", "-m", "disttrain.comm_bench.preflight", str(result_file(attempt))]
    command += ["--device", str(config["resources"]["device"]), "--run", str(node.run.path)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        processes = [
            subprocess.Popen(
                command, env={**env, **variables}, stdout=output, stderr=output, start_new_session=True
            )
            for variables in rank_variables(node, ranks_per_node(config), port)
        ]
        try:
            codes = poll_until(lambda: _ended(processes), WITHIN_S, node.allocation)
        finally:
            end(processes)
        if codes is None:
            return f"the measurement did not end within {WITHIN_S:g} s"
        if any(codes):
            return f"the measurement failed with exit code {max(codes, key=abs)}: {_last_line(output)}"
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
