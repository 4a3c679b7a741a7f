"""Records of `benchmarks.trainer` as rows of the page of results."""

from __future__ import annotations

from typing import Any

from benchmarks.results_text import NONE, Records

_MODELS = {
    ("single-ddp-fsdp", "cpu"): "2 layers of width 128",
    ("step-100-ms", "cpu"): "4 layers of width 256",
}
"""Layers and width by label and device of a record of `benchmarks.trainer`. The record lacks them; they are
from `benchmarks/trainer_turns.py` at its commit."""


def keys_of(records: Records, device: str | None = None) -> list[str]:
    """Keys of the records of `benchmarks.trainer`, on one device if given."""
    keys = [key for key in records if key.startswith("trainer#")]
    return [key for key in keys if device in (None, records[key]["raw"]["device"])]


def scaling_rows(record: dict[str, Any]) -> list[list[str]]:
    """Rows of the strategies on several GPUs against one, by samples/s (weak scaling)."""
    figures = record["figures"]
    alone = figures["single"]["samples_per_s"] if "single" in figures else None
    rows = []
    for strategy, mine in figures.items():
        devices, rate = _device_count(record, strategy), mine["samples_per_s"]
        speed_up = rate / alone if alone else None
        rows.append(
            [
                f"ours: {_model_name(record)}, {strategy}",
                "**GPU**",
                str(devices),
                f"{rate:,.0f} samples/s",
                f"{speed_up:.2f}x" if speed_up else NONE,
                f"{100 * speed_up / devices:.0f} %" if speed_up else NONE,
                NONE,
            ]
        )
    return rows


def strategy_rows(record: dict[str, Any]) -> list[list[str]]:
    """Rows of the strategies of a record by samples/s; it has no memory of a GPU."""
    on, mark = ("ranks on a CPU", "**CPU**") if record["raw"]["device"] == "cpu" else ("GPUs", "**GPU**")
    rows = []
    for strategy, mine in record["figures"].items():
        devices, rate = _device_count(record, strategy), f"{mine['samples_per_s']:,.0f}"
        rows.append([f"ours: {_model_name(record)}, {strategy} ({on})", mark, str(devices), rate, NONE])
    return rows


def _device_count(record: dict[str, Any], strategy: str) -> int:
    return 1 if strategy == "single" else int(record["raw"]["ranks"])


def _model_name(record: dict[str, Any]) -> str:
    """Name of the model in a record of `benchmarks.trainer`; with the label where its size is unknown."""
    label = record["label"]
    size = _MODELS.get((label, record["raw"]["device"]))
    return f"GPT of {size}" if size else f"GPT of record {label}"
