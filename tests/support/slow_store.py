"""A store that is slow to write checkpoints. Ranks meet it with their data, so that jobs can have it, too."""

from __future__ import annotations

import time
from typing import Any

from disttrain.checkpoint import storage
from disttrain.data import synthetic
from disttrain.data.source import Source
from disttrain.runtime.process import rank_info


def build(*, slow_ranks: tuple[int, ...], slow_write_s: float, **options: Any) -> Source:
    """Made-up samples by `options`; what these ranks write of a checkpoint takes so much longer."""
    if rank_info().rank in slow_ranks:
        write = storage.write

        def slow(*arguments: Any) -> storage.Positions:
            time.sleep(slow_write_s)
            return write(*arguments)

        storage.write = slow
    return synthetic.build(**options)
