"""One rank: the model is left as it is, and nothing communicates."""

from __future__ import annotations

from disttrain.config.sections.parallel import ParallelConfig
from disttrain.parallel.base import Strategy


def build(config: ParallelConfig) -> Strategy:
    return Strategy()
