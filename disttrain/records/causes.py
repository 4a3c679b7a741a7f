"""Why a run ended, and what follows from it."""

from __future__ import annotations

from typing import Literal

Cause = Literal[
    "finished",  # trained to the last step
    "refused",  # bad config or wrong world size, found at start: retrying cannot help
    "crashed",  # a rank raised
    "out_of_memory",
    "killed",  # a process ended by a signal that nobody here sent
    "timeout",  # job.time_limit_min was reached
    "cancelled",  # the user asked, and it was ended at once
    "stopped",  # the user asked by a STOP file: it saved and left
    "deadline",  # its time was nearly up: it saved and left
    "preempted",  # a signal asked it to leave: it saved and left
    "lost",  # the agent vanished without a word (machine restarted, kill -9)
    "launch_failed",  # torchrun or the rendezvous did not come up
]
"""Why an attempt ended."""

Next = Literal["requeue"] | None

StopCause = Literal["preempted", "deadline", "stopped"]
"""The causes for which ranks agree to leave in good order, the one that wins last."""
