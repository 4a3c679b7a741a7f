"""Results of `make gpu` as rows of the page of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.results_text import NONE

MARK = "**GPU**"
Parts = dict[str, dict[str, Any]]
"""Figures of each part that completed, by its name in `benchmarks.gpu`."""


def newest_parts(folder: Path) -> Parts:
    """Figures of each part of the newest `make gpu` that completed, with `command`; empty without a run."""
    runs = sorted(path for path in folder.glob("*") if path.is_dir())
    parts = [json.loads(path.read_text()) for path in sorted(runs[-1].glob("*.json"))] if runs else []
    return {part["part"]: part["result"] for part in parts if part.get("status") == "ok" and part["result"]}


def by_gpus(gpu: Parts, name: str) -> dict[int, dict[str, Any]]:
    """Parts of `make gpu` that ran `name`, by number of GPUs."""
    found = {1: gpu[name]} if name in gpu else {}
    for key, part in gpu.items():
        run, _, count = key.removesuffix("-gpus").rpartition("-on-")
        if run == name:
            found[int(count)] = part
    return found


def scaling_row(name: str, unit: str, count: int, sizes: dict[int, dict[str, Any]]) -> list[str]:
    """Row of `name` on this many GPUs; speed-up and efficiency are against the part on one GPU."""
    part, rate_of = sizes[count], "tokens_per_s" if unit == "tokens/s" else "samples_per_s"
    speed_up = part[rate_of] / sizes[1][rate_of] if 1 in sizes else None
    source = ", ".join([f"ours: {name}", *([part["strategy"]] if count > 1 else []), part["device"]])
    return [
        source,
        MARK,
        str(count),
        f"{part[rate_of]:,.0f} {unit}",
        NONE if speed_up is None else f"{speed_up:.3g}x",
        NONE if speed_up is None else f"{100 * speed_up / count:.0f} %",
        "0 %" if count == 1 else _communication_share(part),
    ]


def _communication_share(part: dict[str, Any]) -> str:
    """Exposed communication / step of a part."""
    phases = part["composition"]
    exposed = [phases[name] for name in ("comm_wait_s", "comm_transfer_s")]
    if None in exposed:
        return NONE
    return f"{100 * sum(exposed) / sum(seconds or 0.0 for seconds in phases.values()):.1f} %"


def strategy_rows(gpu: Parts) -> list[list[str]]:
    """Rows of one GPU, and of DataParallel and DDP on several with the same batch a GPU; empty without
    several."""
    forms = {"DataParallel": by_gpus(gpu, "bf16-dp"), "DDP": by_gpus(gpu, "bf16")}
    one = forms["DDP"].pop(1, None)
    found = [(name, count, sizes[count]) for name, sizes in forms.items() for count in sorted(sizes)]
    if not found:
        return []
    return [
        [f"ours: GPT-2 124M, bf16, {name}", MARK, str(count), f"{part['samples_per_s']:,.0f}", memory(part)]
        for name, count, part in [*([("single", 1, one)] if one else []), *found]
    ]


def memory(part: dict[str, Any]) -> str:
    return f"{part['peak_memory_bytes'] / 1e9:.1f} GB"
