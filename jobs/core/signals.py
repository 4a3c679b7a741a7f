"""Wait for blocked signals. Standard library only."""

from __future__ import annotations

import signal
import time
from collections.abc import Set

_POLL_S = 0.1


def wait_for_signal(signals: Set[int], timeout_s: float) -> int | None:
    """The number of the next pending signal of `signals`, which the caller has blocked; None after a timeout.

    `signal.sigtimedwait` with a timeout is unusable in a process that may be suspended: after SIGSTOP and
    SIGCONT past its timeout, CPython returns uninitialised memory, which may look like any signal. With a
    timeout of zero the call cannot be interrupted.
    """
    deadline = time.monotonic() + timeout_s
    while (received := signal.sigtimedwait(signals, 0)) is None:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return None
        time.sleep(min(_POLL_S, remaining_s))
    return received.si_signo
