"""Record of the exception that ended a rank. Torch is imported only to recognise its out-of-memory error."""

from __future__ import annotations

import time
import traceback

from disttrain.errors import ConfigError, NodeFault, NonFinite, message_of
from disttrain.records.attempt import RankError
from disttrain.records.exit_causes import Cause
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log

_HOST_ALLOCATION = "DefaultCPUAllocator: can't allocate memory"
"""Message of PyTorch's `RuntimeError` where the host has no memory left, or `ulimit -v` is reached."""
_CAUSES: dict[type[BaseException], Cause] = {
    ConfigError: "refused",
    KeyboardInterrupt: "cancelled",
    NodeFault: "launch_failed",
    NonFinite: "non_finite",
}


def record_failure(error: BaseException, rank: int, attempt: Attempt | None = None) -> RankError:
    """Describe `error`, raised by `rank` now, and write the record to the folder of `attempt` unless the file
    exists.

    The first record has the time of the failure, by which the cause of the attempt is chosen. An error of the
    file system goes to the log. The record of a `NodeFault` names a rank of the faulty node.
    """
    record = RankError(
        rank=error.rank if isinstance(error, NodeFault) else rank,
        time=time.time(),
        kind=type(error).__name__,
        message=message_of(error),
        cause=_cause(error),
        traceback="".join(traceback.format_exception(error)),
    )
    try:
        if attempt is not None and not attempt.error(rank).exists() and not attempt.is_replaced():
            write_json(attempt.error(rank), record.model_dump(mode="json"))
    except OSError as problem:
        log.error("the failure is not recorded", problem=message_of(problem))
    return record


def _cause(error: BaseException) -> Cause:
    for kind, cause in _CAUSES.items():
        if isinstance(error, kind):
            return cause
    import torch

    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return "out_of_memory" if no_memory or _HOST_ALLOCATION in str(error) else "crashed"
