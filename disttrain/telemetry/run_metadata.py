"""Former form of `RunFacts`."""

from __future__ import annotations

from typing import Any

from torch import nn

from disttrain.parallel.base import Strategy
from disttrain.telemetry.facts import Communication, RunFacts


def RunMetadata(  # noqa: N802
    tokens_per_sample: int | None = None,
    samples_are_images: bool = False,
    peak_reason: str = "no peak was looked up",
    emulation_late_reason: str = "",
    communication: Communication | None = None,
) -> RunFacts:
    return RunFacts({}, communication or Communication(), tokens_per_sample, samples_are_images, peak_reason)


def communication_metadata(strategy: Strategy, parallel_model: nn.Module) -> dict[str, Any]:
    return {"communication": Communication.of(strategy, parallel_model)}
