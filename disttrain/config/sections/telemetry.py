"""Sections `telemetry` and `profile`: measurements and traces."""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from disttrain.config.sections.base import NotInKey, Section


class TelemetryConfig(Section):
    """What is measured and where it goes."""

    warmup_steps: NonNegativeInt = 10
    """Steps left out of every throughput and latency figure (they are recorded all the same)."""
    profiled_steps: NotInKey[NonNegativeInt] = 8
    """Steps taken under PyTorch's profiler to time each collective: evenly spread over the run, at most one
    in 20. The figures leave them out. 0: none."""
    layer_passes: NonNegativeInt = 0
    """Passes after the last step in which each layer is timed, for `submit.py emulate`; they belong to no
    step and to no figure. 0: none."""
    full_records: NotInKey[NonNegativeInt] = 100_000
    """Steps of a run, the first ones, that get a line of their own in the step records; after them, a hundred
    steps share one, which keeps sums, extremes and the distribution."""
    flush_every_s: NotInKey[PositiveFloat] = 5.0
    """Seconds between writes of step records and samples, and at first of `metrics.json`, which a long run
    rewrites every minute."""
    gpu_every_s: NotInKey[NonNegativeFloat] = 1.0
    """Seconds between samples of the GPUs, and of the ranks' processes; 0 takes none."""
    fields: NotInKey[tuple[str, ...]] = ()
    """Extra fields of the hardware samples, `package.module:ROW`: rows of `disttrain.hardware.fields`."""
    sinks: NotInKey[tuple[str, ...]] = ("tensorboard",)
    """Extra sinks: modules of `disttrain.telemetry.sinks`, or `package.module:build`."""


class ProfileConfig(Section):
    """A trace of some steps by PyTorch's profiler."""

    steps: NotInKey[tuple[PositiveInt, PositiveInt] | None] = None
    """First and last step of the trace. They are left out of all figures."""
    ranks: NotInKey[tuple[NonNegativeInt, ...]] = (0,)
    """Ranks that are traced."""
