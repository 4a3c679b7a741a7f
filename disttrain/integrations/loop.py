"""Stop requests and the folder of checkpoints, for any training loop.

Importing this module installs the handler of the job's stop signal, so import it before torch, which takes
seconds. Standard library only: `stop_requested` uses the torch that the script has imported, from 2.2 on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from disttrain.records.run_directory import CHECKPOINT_DIR, SAVED, STOP_SIGNAL
from disttrain.runtime.stop_signals import StopSignals

AGREE_EVERY_S = 1.0
"""Intended seconds between two agreements of the ranks."""
MAX_STRIDE = 50
"""Largest number of calls between two agreements: steps may become slower."""

_number = signal.Signals[os.environ.get(STOP_SIGNAL, "SIGTERM")]
_signals = StopSignals()
_signals.counted = (_number,)


def checkpoint_dir(by_hand: str | os.PathLike[str] = "checkpoints") -> Path:
    """The folder of this run's checkpoints, which exists; `by_hand` outside of a job."""
    folder = Path(os.environ.get(CHECKPOINT_DIR, by_hand))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def saved() -> None:
    """Count a checkpoint outside of `checkpoint_dir()` as progress of the run. All ranks may call it."""
    if SAVED in os.environ and os.environ.get("RANK", "0") == "0":
        Path(os.environ[SAVED]).touch()


def handle_stop_signal() -> None:
    """Record the stop signal, in place of another handler of it. A no-op outside of the main thread."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(_number, _signals.record)


def stop_requested() -> bool:
    """Whether to save and exit with code 0 now: the same on all ranks, which call it equally often, such as
    after each step. Collective once there is a process group, about once a second."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return _signals.received
    return _agreement.stops(dist)


class _Agreement:
    """Compares the requests of all ranks, through gloo, so that no host waits for its device."""

    def __init__(self) -> None:
        self._world: Any = None
        """The process group of the script to which `_group` belongs."""
        self._group: Any = None
        self._calls = self._compared = 0
        self._compared_at = time.monotonic()
        self._stride = 1
        self._stops = False

    def stops(self, dist: Any) -> bool:
        self._calls += 1
        if self._stops or self._calls < self._compared + self._stride:
            return self._stops
        if self._world is not dist.group.WORLD:
            # connect only ranks that exchange messages, as each rank may open only so many files
            os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
            self._world, self._group = dist.group.WORLD, dist.new_group(backend="gloo")
        torch, now = sys.modules["torch"], time.monotonic()
        call_s = (now - self._compared_at) / (self._calls - self._compared)
        largest = torch.tensor([float(_signals.received), call_s], dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._group)
        stops, call_s = largest.tolist()
        self._stops = bool(stops)
        self._stride = int(min(MAX_STRIDE, max(1.0, AGREE_EVERY_S / max(call_s, 1e-9))))
        self._compared, self._compared_at = self._calls, now
        return self._stops


_agreement = _Agreement()
handle_stop_signal()
