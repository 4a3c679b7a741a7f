"""Line rate of the network of a run's nodes, as their drivers report it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

_RATE = re.compile(r"([\d.]+)\s*Gb/s", re.IGNORECASE)


def line_rate_bytes_per_s(run: Path) -> float | None:
    """Rate of the fastest network device, on the slowest node of the last attempt: B/s in one direction.

    Adapters for computing count by the rate in their driver's text (`100 Gb/sec (4X EDR)`), other interfaces
    by their speed. Older records have no choice of adapters; all of their adapters count. Interfaces without
    a driver are virtual, and their speed is a constant: 10 Gbit/s of a veth pair. A bond counts as its
    fastest member. None where no driver reports a rate, and without records of nodes.
    """
    rates = []
    for attempt in RunDir(run).attempts()[-1:]:
        for path in attempt.path.glob("node-*.json"):
            record = read_json_or_none(path) if re.fullmatch(r"node-\d+\.json", path.name) else None
            if record is not None and (rate := _fastest(record)) is not None:
                rates.append(rate)
    return min(rates, default=None)


def _fastest(record: dict[str, Any]) -> float | None:
    adapters = [each for each in record.get("fabrics", []) if each.get("for_compute") is not False]
    texts = [str(each.get("rate") or "") for each in adapters]
    rates = [float(found[1]) * 1e9 / 8 for text in texts if (found := _RATE.search(text))]
    speeds = [each.get("speed_mbit") for each in record.get("interfaces", []) if each.get("driver")]
    rates += [speed * 1e6 / 8 for speed in speeds if speed]
    return max(rates, default=None)
