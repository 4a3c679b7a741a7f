"""Record of the exception that ended a rank. Torch is imported only to recognise its out-of-memory error."""

from __future__ import annotations

import time
import traceback

from disttrain.errors import ConfigError
from disttrain.records.attempt import RankError
from disttrain.records.exit_causes import Cause


def describe_failure(error: BaseException, rank: int) -> RankError:
    """The record of `error`, raised by `rank` now."""
    return RankError(
        rank=rank,
        time=time.time(),
        kind=type(error).__name__,
        message=" ".join(str(error).split()),
        cause=_cause(error),
        traceback="".join(traceback.format_exception(error)),
    )


def _cause(error: BaseException) -> Cause:
    if isinstance(error, ConfigError):
        return "refused"
    if isinstance(error, KeyboardInterrupt):
        return "cancelled"
    import torch

    return "out_of_memory" if isinstance(error, torch.OutOfMemoryError | MemoryError) else "crashed"
