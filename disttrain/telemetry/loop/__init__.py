"""Telemetry for a user's own training loop, where DDP or FSDP2 is observed from outside."""

from disttrain.telemetry.loop.loop_telemetry import LoopTelemetry

__all__ = ["LoopTelemetry"]
