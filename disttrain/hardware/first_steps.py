"""NCCL's log of the first steps on this node: ended, read, and its problems written to the rank's log."""

from __future__ import annotations

import os
import socket

from disttrain.errors import in_one_line
from disttrain.hardware.link_counters import LinkAccumulator, expected_adapters, find_links
from disttrain.records.fabric import NcclLog, NodeFabric
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log, nccl_log_file
from disttrain.runtime.process_group import World
from disttrain.telemetry.fabric.nccl_log import parse
from disttrain.telemetry.fabric.verdict import judge


def read_first_steps(attempt: Attempt, world: World) -> tuple[NcclLog | None, str | None]:
    """The log of NCCL on this node, or the reason for none. Raises nothing."""
    node = world.rank // world.local_size
    path = attempt.nccl_log(node)
    try:
        nccl_log_file.end(path)
        with path.open(errors="replace") as lines:
            found = parse(lines)
        links = [LinkAccumulator(link).traffic() for link in find_links(world.backend, os.environ)]
        own = NodeFabric(node=node, host=socket.gethostname(), nccl=found, links=links)
        if world.nodes > 1:
            own.expected_adapters = expected_adapters(world.backend, os.environ)
        for finding in judge(world.backend, [own]).findings:
            if finding.severity == "problem":
                log.error("network", problem=finding.message)
        return found, None
    except FileNotFoundError:
        return None, _reason()
    except Exception as error:  # a log of unknown form must not end the training
        return None, f"NCCL's log cannot be read: {in_one_line(error)}"


def _reason() -> str:
    for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG"):
        if os.environ.get(name):
            return f"{name} is set, so NCCL's log is not in the folder of the attempt"
    return "NCCL wrote no log: none was requested before the process group began"
