"""Samples of GPUs and processes, and the load of other processes that they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from analysis.read.attempts import RunHosts
from analysis.read.collectives import files_by_number
from analysis.read.columns import Columns, concatenated
from analysis.read.json_columns import read_columns
from disttrain.config.dotted_keys import get_key
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.records.run_json import read_run_json_or_none

_VALUES = (
    "utilization",  # gpu: share of time in which a kernel ran; process: processors kept busy
    "memory_bytes",  # gpu: used on the device by all processes; process: resident
    "memory_total_bytes",  # of the device, or of the host
    "host_memory_used_bytes",
    "power_w",
    "energy_j",  # since the first sample of the attempt
    "temperature_c",
    "clock_hz",  # of the streaming multiprocessors
    "clock_max_hz",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "ecc_corrected",
    "ecc_uncorrected",
    "threads",
    "host_utilization",  # processors of the job kept busy by all processes
)
HARDWARE_COLUMNS: dict[str, str] = {
    "run": "category",  # `path` of the run
    "attempt": "int16",
    "rank": "int32",  # the first rank that uses the GPU, or the rank of the process
    "host": "category",  # name of the node; empty if unknown
    "kind": "category",  # gpu or process
    "device": "category",  # UUID of the GPU, or its PCI bus id; empty for a process
    "time_s": "float64",  # since the epoch
    "at_s": "float64",  # since the rank's loop began, as `start_s` of its steps
    "step": "float64",  # step in which the sample lies; NaN outside of steps
    **dict.fromkeys(_VALUES, "float64"),  # NaN where the device does not report it
    "throttle": "category",  # reasons for reduced clocks, separated by commas
}
"""Columns of `Frames.hardware` and their types (see `records.hardware`)."""

_RATES = tuple(name for name in _VALUES if name.endswith("_bytes_per_s"))
_GPU = {
    "utilization": ("utilization", 1.0),
    "memory_bytes": ("memory_used_bytes", 1.0),
    "power_w": ("power_w", 1.0),
    "energy_j": ("energy_j", 1.0),
    "temperature_c": ("temperature_c", 1.0),
    "clock_hz": ("sm_clock_mhz", 1e6),
    "ecc_corrected": ("ecc_corrected", 1.0),
    "ecc_uncorrected": ("ecc_uncorrected", 1.0),
    **{name: (name, 1.0) for name in _RATES},
}
_PROCESS = {
    "utilization": ("cpu_percent", 0.01),
    "memory_bytes": ("rss_bytes", 1.0),
    "memory_total_bytes": ("host_memory_total_bytes", 1.0),
    "host_memory_used_bytes": ("host_memory_used_bytes", 1.0),
    "threads": ("threads", 1.0),
    "host_utilization": ("host_cpu_percent", 0.01),
}
"""Column, field of the record, and factor from the field to the column."""
_FILES = (("gpu", "gpu-node", _GPU), ("process", "host-node", _PROCESS))


def read_hardware(run: RunDir, steps: Columns, hosts: RunHosts, unreadable: list[str]) -> Columns:
    """The columns of `HARDWARE_COLUMNS` except `run`; empty without samples.

    Args:
        run: the run directory.
        steps: `read_step_columns` of the run.
        hosts: hosts of the run; `host` is their code.
        unreadable: a message on each record that cannot be read is appended.

    Raises:
        OSError: a file cannot be read.
    """
    parts = []
    for attempt in run.attempts():
        for kind, prefix, fields in _FILES:
            for node, path in files_by_number(attempt.path, prefix):
                table = read_columns(path, _schema(fields), unreadable)
                if table.num_rows:
                    part = _columns(table, fields)
                    rows = part["rank"].size
                    part["attempt"] = np.full(rows, attempt.number, dtype=np.int16)
                    part["host"] = np.full(rows, hosts.of_node(attempt.number, node), dtype=np.int32)
                    part["kind"] = np.full(rows, kind, dtype=object)
                    _add_devices(part, attempt, node)
                    part["step"] = _steps_of(part, steps, attempt.number)
                    parts.append(part)
    return concatenated(parts) if parts else {}


def step_at(
    at_s: ArrayLike, start_s: ArrayLike, step_s: ArrayLike, first: ArrayLike, steps: ArrayLike
) -> NDArray[np.float64]:
    """The step in which each instant lies; NaN outside of steps, as during a validation.

    Args:
        at_s: `at_s` of samples of one rank in one attempt, in seconds; any shape.
        start_s, step_s, first, steps: start and duration in seconds, first step and number of steps of each
            step record of that rank in that attempt; one dimension. Records with a start of NaN are left
            out. The steps of an aggregate count as equally long and without pauses.

    Returns:
        Step numbers in the shape of `at_s`.
    """
    instants = np.asarray(at_s, dtype=np.float64)
    found = np.full(instants.shape, np.nan)
    known = np.array([start_s, step_s, first, steps], dtype=np.float64)
    known = known[:, ~np.isnan(known[0])]
    if not known.size:
        return found
    start, took, step, count = known[:, np.argsort(known[0], kind="stable")]
    place = np.searchsorted(start, instants, side="right") - 1
    inside = (place >= 0) & (instants < start[place] + took[place])
    place = place[inside]
    into = (instants[inside] - start[place]) / took[place] * count[place]
    found[inside] = step[place] + np.minimum(np.floor(into), count[place] - 1)
    return found


def _schema(fields: dict[str, tuple[str, float]]) -> pa.Schema:
    return pa.schema(
        [
            ("rank", pa.int32()),
            ("at_s", pa.float64()),
            ("time", pa.float64()),
            *((field, pa.float64()) for field, _ in fields.values()),
            ("throttle", pa.list_(pa.string())),
        ]
    )


def _columns(table: pa.Table, fields: dict[str, tuple[str, float]]) -> Columns:
    nothing = np.full(table.num_rows, np.nan)
    columns: Columns = {
        "rank": table["rank"].fill_null(0).to_numpy(),
        "time_s": table["time"].fill_null(np.nan).to_numpy(),
        "at_s": table["at_s"].fill_null(np.nan).to_numpy(),
    }
    for name in _VALUES:
        field, factor = fields.get(name, (None, 1.0))
        columns[name] = nothing if field is None else table[field].fill_null(np.nan).to_numpy() * factor
    reasons = [",".join(each or ()) for each in table["throttle"].to_pylist()]
    columns["throttle"] = np.array(reasons, dtype=object)
    return columns


def _add_devices(part: Columns, attempt: Attempt, node: int) -> None:
    """Add the column `device`, and what the record of the node's GPUs has about each."""
    part["device"] = np.full(part["rank"].size, "", dtype=object)
    if part["kind"][0] != "gpu":
        return
    gpus: Any = (read_json_or_none(attempt.gpu_devices(node)) or {}).get("gpus", [])
    for name in ("memory_total_bytes", "clock_max_hz"):
        part[name] = part[name].copy()
    for gpu in gpus:
        rows = part["rank"] == min(gpu.get("ranks") or [-1])
        part["device"][rows] = gpu.get("uuid") or gpu.get("pci_bus_id") or ""
        part["memory_total_bytes"][rows] = gpu.get("memory_total_bytes") or np.nan
        part["clock_max_hz"][rows] = (gpu.get("sm_clock_max_mhz") or np.nan) * 1e6


def _steps_of(part: Columns, steps: Columns, attempt: int) -> NDArray[np.float64]:
    found = np.full(part["rank"].size, np.nan)
    for rank in np.unique(part["rank"]):
        rows = part["rank"] == rank
        own = (steps["attempt"] == attempt) & (steps["rank"] == rank)
        known = [steps[name][own] for name in ("start_s", "step_s", "step", "steps")]
        found[rows] = step_at(part["at_s"][rows], *known)
    return found


OTHER_LOAD = 0.1
"""Share of the processors that other processes keep busy from which measurements are in doubt."""


def other_load(runs: pd.DataFrame, hardware: pd.DataFrame) -> dict[str, float]:
    """Processors of the job that others kept busy, on its most loaded node, by path of the run.

    It is the mean over the samples in steps of the last attempt, at least 0. The ranks of all nodes are
    subtracted, because nodes of a local or mini-cluster run are one machine; of several machines it is
    therefore too small. Runs with loader processes, which are no ranks, are left out.

    Args:
        runs: included runs in a table of `load`; those with GPUs are left out.
        hardware: `Frames.hardware`.
    """
    on_cpu = runs[(runs["device"] == "cpu").fillna(False)]
    chosen = hardware[(hardware["kind"] == "process") & hardware["step"].notna()]
    chosen = chosen[chosen["run"].isin(on_cpu["path"]) & chosen["host_utilization"].notna()]
    found = {}
    for path, samples in chosen.groupby("run", observed=True):
        last = samples[samples["attempt"] == samples["attempt"].max()]
        own = float(last.groupby("rank")["utilization"].mean().sum())
        busy = float(last.groupby("host", observed=True)["host_utilization"].mean().max())
        if not _loaders(str(path)):
            found[str(path)] = max(0.0, busy - own)
    return found


def busy_shares(runs: pd.DataFrame, hardware: pd.DataFrame) -> pd.Series:
    """`other_load` as a share of the processors of each run; NaN where it is unknown."""
    loads = runs["path"].map(other_load(runs, hardware))
    return loads.astype("float64") / runs["cpu_count"].astype("float64")


def _loaders(path: str) -> int:
    record = read_run_json_or_none(RunDir(Path(path))) or {}
    return int(get_key(record.get("config") or {}, "data.workers") or 0)
