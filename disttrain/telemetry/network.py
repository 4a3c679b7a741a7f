"""The network of an attempt: NCCL's log of the first steps, requested, ended and read, and `fabric.json`.

NCCL reads its variables once, when it first starts. One line for each collective (subsystem TUNING) makes the
log grow with the run, so the log ends with the warm-up steps: the file descriptor then leads to `/dev/null`.
The formats read are those of NCCL 2.4 to 2.31 and of RCCL: lines of channels have had six forms. A line of
unknown form is skipped, so a new version loses fields and raises nothing. Imports without torch.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttrain.errors import in_one_line
from disttrain.hardware.statistics import DeviceSamples
from disttrain.records.communication import (
    CollectiveChoice,
    FabricRecord,
    LinkTraffic,
    NcclLog,
    NodeFabric,
    RankProcessors,
)
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime.json_lines import drop_if_disk_full
from disttrain.runtime.process import RankInfo

if TYPE_CHECKING:
    from disttrain.telemetry.summary import RankSummary

# The file of NCCL's log

SUBSYSTEMS = ("INIT", "BOOTSTRAP", "ENV", "NET", "GRAPH")
"""Subsystems that write while communicators start and connect, and never in a step."""
EACH_COLLECTIVE = "TUNING"
"""Subsystem that writes a line for each collective of rank 0: its algorithm and its protocol."""


def request_nccl_log(
    attempt: Attempt, info: RankInfo, environ: MutableMapping[str, str] = os.environ
) -> None:
    """Set NCCL's variables for a log in the attempt's folder.

    The first rank of each node of a run with several ranks writes one. Where NCCL_DEBUG is WARN or VERSION,
    the log has warnings of the whole run, and none of the lines that need an end. A higher level, or a file
    given by the user, is left alone.
    """
    level = environ.get("NCCL_DEBUG", "")
    chosen = {"NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"} & environ.keys()
    if info.size > 1 and info.local_rank == 0 and not chosen and level.upper() in ("", "WARN", "VERSION"):
        variables = {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": ",".join(SUBSYSTEMS if level else (*SUBSYSTEMS, EACH_COLLECTIVE)),
            "NCCL_DEBUG_FILE": str(attempt.nccl_log(info.rank // info.local_size)),
        }
        environ.update(variables)


def end_nccl_log(path: Path) -> None:
    """Lead further lines of a log with one line for each collective to `/dev/null`.

    A log without these lines stays open, for the warnings of later steps.
    """
    if EACH_COLLECTIVE not in os.environ.get("NCCL_DEBUG_SUBSYS", "").split(","):
        return
    folder = Path("/proc/self/fd")
    for number in os.listdir(folder):
        with contextlib.suppress(OSError):  # the listing's own descriptor
            if os.readlink(folder / number) == os.path.realpath(path):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, int(number), inheritable=False)
                os.close(null)


def read_first_steps(attempt: Attempt, node: int) -> tuple[NcclLog | None, str | None]:
    """End the log of NCCL on this node, and read it; the reason if there is none. Raises nothing."""
    path = attempt.nccl_log(node)
    try:
        end_nccl_log(path)
        with path.open(errors="replace") as lines:
            return parse(lines), None
    except FileNotFoundError:
        for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG"):
            if os.environ.get(name):
                return None, f"{name} is set, so NCCL's log is not in the folder of the attempt"
        return None, "NCCL wrote no log: none was requested before the process group began"
    except Exception as error:  # a log of unknown form must not end the training
        return None, f"NCCL's log cannot be read: {in_one_line(error)}"


# Its lines

WARNINGS_KEPT = 20
CHOICES_KEPT = 20
_MESSAGE = re.compile(r"\bNCCL (INFO|WARN) +(.*?)\s*$")
_VERSION = re.compile(r"\b(?:NCCL version|RCCL version :) (\d+(?:\.\d+)+)")
_NETWORK_CHANNEL = re.compile(r"((?:NET|COLLNET)/.+?)/\d+(?:\(\d+\))?(?:/(.*))?")
"""`NET/IB/0(3)/GDRDMA/Shared`: transport, device, rank of a proxy (PXN), and flags."""
_ADAPTER = re.compile(r"\[\d+\] ?([^\s:={]+):(\d+)/")
"""`[0]mlx5_0:1/IB`; of ports that NCCL 2.20 to 2.23 merges, `[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}`."""
_INTERFACE = re.compile(r"\[\d+\]([^\s:]+):")
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:(?:Channel|Ring) \d+(?:/\d+)? ?: .*?->|Coll(?:Net)? \d+(?:/\d+)? : \d+ \[).*? via "
        r"(?P<channel>.+?)(?: comm 0x\w+ nRanks \d+)?$",
        r"(?:(?P<collective>\w+): +)?(?P<bytes>\d+) Bytes -> "
        r"Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
        r"(?:.*channel\{Lo\.\.Hi\}=\{(?P<first>\d+)\.\.(?P<last>\d+)\})?",
        r"NET/\w+ ?: Using (?P<devices>.+)",
        r"Bootstrap ?: Using (?:\[\d+\])?(?P<bootstrap_interface>[^\s:]+):",
        r"Using network (?P<network>.+)",
        r"Assigned NET plugin (?P<network>.+?) to comm",
        r"NET/Plugin ?: Loaded \w+ plugin (?P<plugins>.+?)(?: \(v\d+\))?$",
        r"Successfully loaded external \w+ plugin (?P<plugins>\S+)",
        r"NET/OFI (?:Initializing|Using) (?P<plugins>aws-ofi-\w+ \S+)",
        r"P2P plugin (?:v\d+ )?(?P<plugins>\w+)$",
        r"(?P<collective_channels>\d+) coll channels",
        r"(?P<variable>\w+) set by environment to (?P<value>.*?)\.?$",
        r"(?P<variable>NCCL_\w+) set to (?P<value>\S+)",
        r"Init timings.*? total (?P<init_s>[\d.]+)",
    )
)
"""Messages of level INFO. A group named like a field of `NcclLog` gives its value."""


def parse(lines: Iterable[str]) -> NcclLog:
    """The start, connections and first collectives in lines of NCCL's log."""
    log = NcclLog()
    for line in lines:
        if version := _VERSION.search(line):
            log.version = version[1]
        elif message := _MESSAGE.search(line):
            level, text = message.groups()
            if level == "INFO":
                _take(log, text)
                continue
            log.warning_count += 1
            if text not in log.warnings and len(log.warnings) < WARNINGS_KEPT:
                log.warnings.append(text)
    newest = {(choice.collective, choice.bytes): choice for choice in log.choices}
    log.choices = sorted(newest.values(), key=lambda choice: -choice.bytes)[:CHOICES_KEPT]
    log.transports = dict(sorted(log.transports.items()))
    return log


def _take(log: NcclLog, text: str) -> None:
    """Take a message of level INFO by the first pattern that fits."""
    match = next(filter(None, (pattern.match(text) for pattern in _PATTERNS)), None)
    found: dict[str, Any] = match.groupdict() if match else {}
    if via := found.get("channel"):
        network = _NETWORK_CHANNEL.fullmatch(via)
        # `direct shared memory`, before 2.12
        transport = "SHM" if "shared memory" in via else via.partition("/")[0]
        if network:
            transport = network[1]
            log.network_channels += 1
            log.gpudirect_channels += "GDRDMA" in (network[2] or "")
        log.transports[transport] = log.transports.get(transport, 0) + 1
    elif "bytes" in found:
        first, last = found["first"], found["last"]
        log.choices.append(
            CollectiveChoice(
                collective=found["collective"],
                bytes=int(found["bytes"]),
                algorithm=found["algorithm"],
                protocol=found["protocol"],
                channels=None if last is None else int(last) - int(first) + 1,
            )
        )
    elif devices := found.get("devices"):
        # adapters of NET/IB and of the plugins derived from it, or interfaces of NET/Socket and its kin
        if adapters := _ADAPTER.findall(devices):
            log.adapters = [f"{name}/{port}" for name, port in adapters]
        elif interfaces := _INTERFACE.findall(devices):
            log.interfaces = interfaces
    elif "variable" in found:
        log.environment[found["variable"]] = found["value"]
    else:
        for field, value in found.items():
            kept = getattr(log, field)
            if isinstance(kept, list):
                kept += [value] if value not in kept else []
            elif largest := _LARGEST.get(field):
                setattr(log, field, max(largest(value), kept or 0))
            else:
                setattr(log, field, value)


_LARGEST: dict[str, Callable[[str], float]] = {"collective_channels": int, "init_s": float}


# The record


def _traffic(link: DeviceSamples) -> LinkTraffic:
    sent, received = (int(link.grown(name)) for name in ("sent_bytes", "received_bytes"))
    seconds = link.clock.segment_growth or 0.0
    return LinkTraffic(
        name=link.name, sent_bytes=sent, received_bytes=received, seconds=seconds, **link.constants
    )


def write_network(
    attempt: Attempt, backend: str | None, ranks_per_node: int, ranks: Sequence[RankSummary]
) -> None:
    """Write `fabric.json` from the summaries in order of ranks. Rank 0 alone."""
    nodes: dict[int, NodeFabric] = {}
    for rank in ranks:
        number = rank.rank // ranks_per_node
        node = nodes.setdefault(number, NodeFabric(node=number, host=rank.host))
        node.ranks.append(RankProcessors(rank=rank.rank, processors=rank.processors))
        if rank.usage is not None:
            node.links = [_traffic(link) for link in rank.usage.links]
            node.expected_adapters = rank.usage.expected_adapters
            node.nccl, node.nccl_reason = rank.nccl
    record = FabricRecord(attempt=attempt.number, backend=backend, nodes=list(nodes.values()))
    with drop_if_disk_full():
        write_json(attempt.fabric, record)
