"""Peak arithmetic rates of devices, for model FLOPs utilization. Imports without torch.

`peaks.csv` has a line for each device: its names as drivers report them, without the prefix "NVIDIA" or
"Tesla", and its rates. All rates are dense, in TFLOP/s, with float32 accumulation, per device as torch counts
devices (one die of an MI250X). A rate on which sources disagree is left out: without a peak there is no MFU,
with a wrong peak a wrong one. Names match only as a whole, so that a PCIe card, a MIG slice or a later
variant does not get the peak of a device with a similar name.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peaks:
    """Peak rates of a device in TFLOP/s by dtype, with their source."""

    names: list[str]
    tflops: Mapping[str, float]
    source: str


def find(device: str) -> Peaks | None:
    """The peaks of the device with this name; None if it is not in the table."""
    return _BY_NAME.get(_plain(device))


def combined(peaks: Peaks, flops: Mapping[str, int], dtypes: Mapping[str, str]) -> tuple[float | None, str]:
    """(peak FLOP/s, "") on this mix of work, or (None, reason).

    `flops` is the work by kind, `dtypes` the dtype of each kind. Where dtypes differ, the peak is the
    harmonic mean of their peaks, weighted by the work.
    """
    seconds = 0.0
    for kind, work in flops.items():
        rate = peaks.tflops.get(dtypes[kind])
        if rate is None:
            return None, f"no {dtypes[kind]} peak is known for {peaks.names[0]} ({kind})"
        seconds += work / (rate * 1e12)
    return sum(flops.values()) / seconds, ""


def _plain(name: str) -> str:
    words = name.casefold().split()
    while words and words[0] in ("nvidia", "tesla"):
        words = words[1:]
    return " ".join(words)


def _read() -> list[Peaks]:
    lines = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()
    table = []
    for row in csv.DictReader(lines):
        names, source = row.pop("devices").split("|"), row.pop("source")
        table.append(Peaks(names, {dtype: float(rate) for dtype, rate in row.items() if rate}, source))
    return table


TABLE = _read()
_BY_NAME = {_plain(name): peaks for peaks in TABLE for name in peaks.names}
