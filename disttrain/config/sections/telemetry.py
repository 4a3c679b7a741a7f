"""Sections `telemetry` and `profile`: measurements and traces."""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from disttrain.config.sections.base import NotInKey, Section


class TelemetryConfig(Section):
    """What is measured and where it goes."""

    warmup_steps: NonNegativeInt = 10
    """First steps that no figure of throughput or latency includes."""
    profiled_steps: NotInKey[NonNegativeInt] = 8
    """Steps in which PyTorch's profiler times each collective; at most one in 20, in no figure."""
    layer_passes: NonNegativeInt = 0
    """Passes after the last step that time each layer, for `emulate`."""
    full_records: NotInKey[NonNegativeInt] = 100_000
    """First steps with a record of their own; of later ones, a hundred share one."""
    flush_every_s: NotInKey[PositiveFloat] = 5.0
    """Seconds between writes of records and samples."""
    gpu_every_s: NotInKey[NonNegativeFloat] = 1.0
    """Seconds between samples of GPUs and processes; 0: none."""
    fields: NotInKey[tuple[str, ...]] = ()
    """Further fields of the hardware samples: `package.module:ROW`."""
    sinks: NotInKey[tuple[str, ...]] = ("tensorboard",)
    """`tensorboard`, `mlflow`, `wandb`, or `package.module:build`."""


class ProfileConfig(Section):
    """A trace of some steps by PyTorch's profiler."""

    steps: NotInKey[tuple[PositiveInt, PositiveInt] | None] = None
    """First and last step of the trace, in no figure."""
    ranks: NotInKey[tuple[NonNegativeInt, ...]] = (0,)
    """Ranks that are traced."""
