"""Columns of single runs, and a frame of those of many runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
"""Arrays of one length, by name."""


def concatenated(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts, which have the same columns."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class FrameOfRuns:
    """A frame that grows by the rows of one run after the other.

    Its columns grow in place, so that memory holds the rows once; joining the arrays of all runs at the end
    would hold them twice.

    Args:
        dtypes: columns of the frame and their types: numbers, `bool`, or `category` for texts. `run` and
            `host` are among them.
    """

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        self._dtypes = dtypes
        self._rows: list[int] = []
        self._texts = {name: [np.empty(0, dtype=object)] for name in dtypes if self._is_text(name)}
        self._arrays = {
            name: np.empty(1024, dtype="int32" if name == "host" else dtype)
            for name, dtype in dtypes.items()
            if name != "run" and not self._is_text(name)
        }
        self._hosts = {"": 0}

    def append(self, columns: Columns, hosts: Sequence[str]) -> None:
        """Add the rows of the next run, of which there may be none; `hosts` are the names for its codes."""
        start = sum(self._rows)
        self._rows.append(columns["host"].size if columns else 0)
        if not columns:
            return
        end = start + self._rows[-1]
        codes = [self._hosts.setdefault(name, len(self._hosts)) for name in hosts]
        columns = columns | {"host": np.array(codes, dtype=np.int32)[columns["host"]]}
        for name, array in self._arrays.items():
            if end > array.size:
                array.resize(max(end, 5 * array.size // 4), refcheck=False)  # untouched pages take no memory
            array[start:end] = columns[name]
        for name, parts in self._texts.items():
            parts.append(columns[name])

    def frame(self, runs: Sequence[str]) -> pd.DataFrame:
        """The frame; `runs` are the values of `run` for the runs in the order of `append`."""
        numbers = np.arange(len(self._rows), dtype=np.int32)
        data: dict[str, Any] = {"run": pd.Categorical.from_codes(np.repeat(numbers, self._rows), runs)}
        for name, array in self._arrays.items():
            array.resize(sum(self._rows), refcheck=False)
            data[name] = array
        data["host"] = pd.Categorical.from_codes(data["host"], [*self._hosts])
        for name, parts in self._texts.items():
            data[name] = pd.Categorical(np.concatenate(parts).astype(str))
        return pd.DataFrame({name: data[name] for name in self._dtypes}, copy=False)

    def _is_text(self, name: str) -> bool:
        return self._dtypes[name] == "category" and name not in ("run", "host")
