"""Figures that a model measured itself, such as the timing error of an emulated one, in the telemetry."""

from __future__ import annotations

from torch import nn

from disttrain.models.hooks import hooks_of
from disttrain.runtime.process_group import World
from disttrain.telemetry.null_reasons import NOT_EMULATED
from disttrain.telemetry.run import RunTelemetry

_AT_THE_END = "the ranks compare it when the run ends"


def reason_at_start(model: nn.Module) -> str:
    """Why `emulation_late_s` is null while the run goes on."""
    return _AT_THE_END if hooks_of(model).report() else NOT_EMULATED


def add_model_report(model: nn.Module, telemetry: RunTelemetry, world: World) -> None:
    """Record the largest value over ranks of each field of the report, or why it is null. All ranks
    together."""
    for name, value in hooks_of(model).report().items():
        if isinstance(value, str):
            telemetry.metadata.emulation_late_reason = value
        else:
            telemetry.metrics_fields[name] = world.all_reduce_max([value])[0]
