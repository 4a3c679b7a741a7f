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


def frame_of_runs(
    runs: Sequence[str],
    parts: Sequence[Columns],
    hosts: Sequence[Sequence[str]],
    dtypes: Mapping[str, str],
) -> pd.DataFrame:
    """One frame from the columns of each run; it empties `parts` column by column, to halve the memory.

    Args:
        runs: values of the column `run`.
        parts: columns of each run, `host` as codes; an empty dict for no rows.
        hosts: for each run, the names for its codes of hosts.
        dtypes: the columns of the frame and their types, with `run` and `host`.
    """
    rows = [part["host"].size if part else 0 for part in parts]
    names = {"": 0}
    for part, own in zip(parts, hosts, strict=True):
        if part:
            codes = [names.setdefault(name, len(names)) for name in own]
            part["host"] = np.array(codes, dtype=np.int32)[part["host"]]
    data: dict[str, Any] = {"run": pd.Categorical.from_codes(np.repeat(np.arange(len(rows)), rows), runs)}
    for name, dtype in dtypes.items():
        if name == "run":
            continue
        values = [part.pop(name) for part in parts if part]
        whole = np.concatenate(values) if values else np.empty(0)
        del values
        if name == "host":
            data[name] = pd.Categorical.from_codes(whole.astype(np.int32), [*names])
        elif dtype == "category":
            data[name] = pd.Categorical(whole.astype(str))
        else:
            data[name] = whole.astype(dtype, copy=False)
    return pd.DataFrame(data, columns=list(dtypes), copy=False)
