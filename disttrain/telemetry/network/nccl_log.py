"""NCCL's log, read from a file or lines of text as `NcclLog`.

The formats are those of NCCL 2.4 to 2.31 and of RCCL: names of algorithms were numbers until 2.24, and lines
of channels have had six forms. A line of unknown form is skipped, so a new version loses fields and raises
nothing.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from re import Match

from disttrain.errors import in_one_line
from disttrain.records.communication import CollectiveChoice, NcclLog
from disttrain.records.run_directory import Attempt
from disttrain.runtime import nccl_log_file

WARNINGS_KEPT = 20
CHOICES_KEPT = 20
_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT")
"""By their number in logs before 2.25 (`NCCL_ALGO_*` of nccl_common.h)."""
_PROTOCOLS = ("LL", "LL128", "Simple")
_MESSAGE = re.compile(r"\bNCCL (INFO|WARN) +(.*?)\s*$")
_VERSION = re.compile(r"\b(?:NCCL version|RCCL version :) (\d+(?:\.\d+)+)")
_NETWORK_CHANNEL = re.compile(r"((?:NET|COLLNET)/.+?)/\d+(?:\(\d+\))?(?:/(.*))?")
"""`NET/IB/0(3)/GDRDMA/Shared`: transport, device, rank of a proxy (PXN), and flags."""
_ADAPTER = re.compile(r"\[\d+\] ?([^\s:={]+):(\d+)/")
"""`[0]mlx5_0:1/IB`; of ports that NCCL 2.20 to 2.23 merges, `[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}`."""
_INTERFACE = re.compile(r"\[\d+\]([^\s:]+):")


def read_first_steps(attempt: Attempt, node: int) -> tuple[NcclLog | None, str | None]:
    """End the log of NCCL on this node, and read it; the reason if there is none. Raises nothing."""
    path = attempt.nccl_log(node)
    try:
        nccl_log_file.end(path)
        with path.open(errors="replace") as lines:
            return parse(lines), None
    except FileNotFoundError:
        for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG"):
            if os.environ.get(name):
                return None, f"{name} is set, so NCCL's log is not in the folder of the attempt"
        return None, "NCCL wrote no log: none was requested before the process group began"
    except Exception as error:  # a log of unknown form must not end the training
        return None, f"NCCL's log cannot be read: {in_one_line(error)}"


def parse(lines: Iterable[str]) -> NcclLog:
    """The start, connections and first collectives in lines of NCCL's log."""
    reader = _Reader()
    for line in lines:
        if version := _VERSION.search(line):
            reader.log.version = version[1]
        elif found := _MESSAGE.search(line):
            reader.take(found[1], found[2])
    return reader.result()


class _Reader:
    def __init__(self) -> None:
        self.log = NcclLog()
        self._transports: Counter[str] = Counter()
        self._choices: dict[tuple[str | None, int], CollectiveChoice] = {}

    def take(self, level: str, text: str) -> None:
        """Take one message; the first pattern that fits counts."""
        if level == "WARN":
            self.log.warning_count += 1
            if text not in self.log.warnings and len(self.log.warnings) < WARNINGS_KEPT:
                self.log.warnings.append(text)
            return
        for pattern, read in _PATTERNS:
            if found := pattern.match(text):
                if isinstance(read, str):
                    self._keep(read, *found.groups())
                else:
                    read(self, found)
                return

    def _keep(self, field: str, value: str, *values: str) -> None:
        """Keep a value in a field of `NcclLog`: each new one of a list, the largest number, the last text."""
        kept = getattr(self.log, field)
        if isinstance(kept, dict):
            kept[value] = values[0]
        elif isinstance(kept, list):
            kept += [value] if value not in kept else []
        elif field in _LARGEST:
            setattr(self.log, field, max(_LARGEST[field](value), kept or 0))
        else:
            setattr(self.log, field, value)

    def result(self) -> NcclLog:
        choices = sorted(self._choices.values(), key=lambda each: -each.bytes)
        self.log.choices = choices[:CHOICES_KEPT]
        self.log.transports = dict(sorted(self._transports.items()))
        return self.log

    def channel(self, found: Match[str]) -> None:
        via = found[1]
        if network := _NETWORK_CHANNEL.fullmatch(via):
            self._transports[network[1]] += 1
            self.log.network_channels += 1
            self.log.gpudirect_channels += "GDRDMA" in (network[2] or "")
        elif "shared memory" in via:  # `direct shared memory`, before 2.12
            self._transports["SHM"] += 1
        else:
            self._transports[via.partition("/")[0]] += 1

    def devices(self, found: Match[str]) -> None:
        """Adapters of NET/IB and of the plugins derived from it, or interfaces of NET/Socket and its kin."""
        if adapters := _ADAPTER.findall(found[1]):
            self.log.adapters = [f"{name}/{port}" for name, port in adapters]
        elif interfaces := _INTERFACE.findall(found[1]):
            self.log.interfaces = interfaces

    def choice(self, found: Match[str]) -> None:
        first, last = found["first"], found["last"]
        made = CollectiveChoice(
            collective=found["collective"],
            bytes=int(found["bytes"]),
            algorithm=_named(found["algorithm"], _ALGORITHMS),
            protocol=_named(found["protocol"], _PROTOCOLS),
            channels=None if last is None else int(last) - int(first) + 1,
        )
        self._choices[(made.collective, made.bytes)] = made


def _named(text: str, names: tuple[str, ...]) -> str:
    """The name for a number or another spelling (`RING`, `NVLS_TREE`); an unknown one stays."""
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else text
    plain = text.replace("_", "").lower()
    return next((name for name in names if name.lower() == plain), text)


_LARGEST: dict[str, Callable[[str], float]] = {"collective_channels": int, "init_s": float}
_PATTERNS: tuple[tuple[re.Pattern[str], str | Callable[[_Reader, Match[str]], None]], ...] = (
    (
        re.compile(
            r"(?:(?:Channel|Ring) \d+(?:/\d+)? ?: .*?->|Coll(?:Net)? \d+(?:/\d+)? : \d+ \[).*? via "
            r"(.+?)(?: comm 0x\w+ nRanks \d+)?$"
        ),
        _Reader.channel,
    ),
    (
        re.compile(
            r"(?:(?P<collective>\w+): +)?(?P<bytes>\d+) Bytes -> "
            r"Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
            r"(?:.*channel\{Lo\.\.Hi\}=\{(?P<first>\d+)\.\.(?P<last>\d+)\})?"
        ),
        _Reader.choice,
    ),
    (re.compile(r"NET/\w+ ?: Using (.+)"), _Reader.devices),
    (re.compile(r"Bootstrap ?: Using (?:\[\d+\])?([^\s:]+):"), "bootstrap_interface"),
    (re.compile(r"Using network (.+)"), "network"),
    (re.compile(r"Assigned NET plugin (.+?) to comm"), "network"),
    (re.compile(r"NET/Plugin ?: Loaded \w+ plugin (.+?)(?: \(v\d+\))?$"), "plugins"),
    (re.compile(r"Successfully loaded external \w+ plugin (\S+)"), "plugins"),
    (re.compile(r"NET/OFI (?:Initializing|Using) (aws-ofi-\w+ \S+)"), "plugins"),
    (re.compile(r"P2P plugin (?:v\d+ )?(\w+)$"), "plugins"),
    (re.compile(r"(\d+) coll channels"), "collective_channels"),
    (re.compile(r"(\w+) set by environment to (.*?)\.?$"), "environment"),
    (re.compile(r"(NCCL_\w+) set to (\S+)"), "environment"),
    (re.compile(r"Init timings.*? total ([\d.]+)"), "init_s"),
)
