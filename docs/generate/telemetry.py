"""The reference of measured fields and their units, from the records and the table of hardware fields."""

from __future__ import annotations

from pathlib import Path

from disttrain.hardware.fields import FIELDS, Field
from disttrain.records.base import Record
from disttrain.records.communication import CommSample
from disttrain.records.hardware import GpuSample, HostSample
from disttrain.records.metrics import Metrics
from disttrain.records.steps import Step
from docs.generate.files import REFERENCE, page, table
from docs.generate.records import FILES

_INTRODUCTION = """
What the files of [telemetry](../report.md#what-is-recorded) contain. A name carries its unit (`_s`: seconds).
A value that was not measured is null, never zero.
"""
_FIRST_FIGURE = "measured_steps"
_SAMPLES: dict[str, type[Record]] = {"gpu": GpuSample, "process": HostSample, "host": HostSample}


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    names = list(Metrics.model_fields)
    figures = names[names.index(_FIRST_FIGURE) :]
    hardware = [_hardware_row(field) for field in FIELDS if field.of in _SAMPLES and not field.constant]
    text = page(
        "Fields of telemetry",
        _INTRODUCTION,
        "## Steps: `steps-RRRRR.jsonl`",
        _table(Step, list(Step.model_fields)),
        "## Samples: `gpu-nodeNN.jsonl`, `host-nodeNN.jsonl`",
        table(["field", "unit", "meaning", "figures in metrics.json"], hardware),
        "## Profiled steps: `comm-RRRRR.jsonl`",
        _table(CommSample, list(CommSample.model_fields)),
        "## Figures of a run: `metrics.json`",
        _table(Metrics, figures),
        "## Schemas of all records",
        ", ".join(f"[{name}](../schemas/{name}.json)" for name in FILES),
    )
    return {REFERENCE / "telemetry.md": text}


def _table(record: type[Record], names: list[str]) -> str:
    described = ((name, record.model_fields[name].description) for name in names)
    return table(["field", "meaning"], [[f"`{name}`", meaning] for name, meaning in described if meaning])


def _hardware_row(field: Field) -> list[str]:
    """Name, unit, meaning, and the figures that the samples become."""
    described = _SAMPLES[field.of].model_fields[field.name].description or ""
    figures = ", ".join(f"`{name}`" for name in field.figures)
    return [f"`{field.name}`", field.unit, described, figures]
