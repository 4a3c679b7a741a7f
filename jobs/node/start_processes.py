"""Start the processes of a command on one node, in place of torchrun (`job.launcher: node` or `rank`).

    python start_processes.py node --nnodes 2 --nproc-per-node 8 ... PROGRAM...

Options, and the record of the process that failed first, have the form of torchrun's, so that the agent
handles all launchers alike. A failure ends the other processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

if __name__ == "__main__":  # modules of this code come before those of the command
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from disttrain.records.run_json import LAUNCHERS, filled

_GRACE_S = 30.0
"""Time between SIGTERM to the other processes and the end of this one, after which the agent kills them."""
_POLL_S = 0.1


def variables(
    launcher: str, *, nnodes: int, nproc_per_node: int, node_rank: int, master_addr: str, master_port: int
) -> list[dict[str, str]]:
    """The variables of each process on a node. The numbers are named as torchrun's options."""
    values = {
        "NODE_RANK": node_rank,
        "NNODES": nnodes,
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": master_port,
        "WORLD_SIZE": nnodes * nproc_per_node,
        "LOCAL_WORLD_SIZE": nproc_per_node,
    }
    processes = [
        {**values, "LOCAL_RANK": number, "RANK": node_rank * nproc_per_node + number}
        for number in range(1 if launcher == "node" else nproc_per_node)
    ]
    return [{name: str(process[name]) for name in LAUNCHERS[launcher]} for process in processes]


def main(argv: Sequence[str]) -> int:
    """Run the processes to their end; 0, or 1 after a failure. SIGTERM ends all of them."""
    parser = argparse.ArgumentParser(prog="start_processes.py", allow_abbrev=False)
    for name in ("--nnodes", "--nproc-per-node", "--node-rank", "--master-port"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--master-addr", required=True)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    launcher, *options = argv
    given = vars(parser.parse_args(options))
    program = given.pop("program")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    of_processes = variables(launcher, **given)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for own in of_processes:
            texts = {name.lower(): value for name, value in own.items()}
            words = [filled(word, texts) for word in program]
            processes.append(subprocess.Popen(words, env={**os.environ, **own}, start_new_session=True))
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            time.sleep(_POLL_S)
        first = next((number for number, code in enumerate(codes) if code), None)
        if first is None:
            return 0
        rank = of_processes[first].get("RANK", given["node_rank"])
        print(
            "Root Cause (first observed failure):",
            f"  time      : {datetime.now():%Y-%m-%d_%H:%M:%S}",
            f"  rank      : {rank} (local_rank: {first})",
            f"  exitcode  : {codes[first]} (pid: {processes[first].pid})",
            sep="\n",
            flush=True,
        )
        return 1
    finally:
        _end(processes)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to those that still run, and wait for them."""
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
