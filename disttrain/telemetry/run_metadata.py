"""Constants of a run that are no fields of `Metrics`, but from which fields or null reasons follow."""

from __future__ import annotations

from dataclasses import dataclass

from disttrain.telemetry.null_reasons import NOT_EMULATED


@dataclass
class RunMetadata:
    tokens_per_sample: int | None = None
    """None where samples are not token sequences, or that is unknown."""
    samples_are_images: bool = False
    peak_reason: str = "no peak was looked up"
    """Reason of a null `peak_flops`."""
    late_reason: str = NOT_EMULATED
    """Reason of a null `emulation_late_s`."""
    comm_reason: str | None = None
    """Reason why exposed communication is not measured, where there is a specific one."""
    samples_comm: bool = False
    """Whether steps are profiled for their collectives, even if exposed communication is not measured."""
