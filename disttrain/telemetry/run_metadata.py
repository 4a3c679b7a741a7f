"""What is known of a run and is no field of `Metrics`: of use to work one out, or to say why it is null."""

from __future__ import annotations

from dataclasses import dataclass

from disttrain.telemetry.null_reasons import NOT_EMULATED


@dataclass
class RunMetadata:
    tokens_per_sample: int | None = None
    """None where samples are not token sequences, or nobody knows."""
    samples_are_images: bool = False
    peak_reason: str = "no peak was looked up"
    """Why the device's peak is not known, where it is not."""
    late_reason: str = NOT_EMULATED
    """Why the error of the emulation is not known, where it is not."""
    comm_reason: str | None = None
    """Why exposed communication is not measured, where somebody can tell."""
    samples_comm: bool = False
    """Whether steps can be sampled for their collectives, even if exposed communication is not measured."""
