"""Files of hardware samples, whose number of lines stays bounded in a long run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.runtime.json_lines import JsonLinesWriter

LINES_AT_FULL_RATE = 20_000
"""Samples of a device written at the full rate; then every 2nd, after as many lines every 4th, and so on: a
year at one sample per second is 200,000 lines. The figures take every sample."""


class SampleFile:
    """A file of samples, written every `flush_every_s` seconds. Its rate of lines falls as it grows."""

    def __init__(self, path: Path, flush_every_s: float) -> None:
        self._file = JsonLinesWriter(path)
        self._flush_every_s = flush_every_s
        self._flushed = -math.inf
        self._rounds = 0
        self._written = 0

    def add(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Take one round: one sample of each device."""
        if self._rounds % 2 ** (self._written // LINES_AT_FULL_RATE) == 0:
            for sample in samples:
                self._file.add(sample)
            self._written += 1
        self._rounds += 1
        if (now := time.monotonic()) - self._flushed >= self._flush_every_s:
            self._flushed = now
            self._file.flush()

    def close(self) -> None:
        self._file.close()
