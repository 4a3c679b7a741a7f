"""Causes of the end of an attempt, as recorded.

A new cause is a name here, the place that finds it (`disttrain.runtime.run_output` on a rank,
`jobs.core.classify_exit` on a node) and a rule in `jobs.core.requeue_policy`.
"""

from __future__ import annotations

from typing import Literal

Cause = Literal[
    "finished",  # trained to the last step
    "refused",  # bad config or wrong world size, found at the start: a retry would fail again
    "crashed",  # a rank raised
    "out_of_memory",
    "non_finite",  # gradients contained NaN or infinity: precision.on_non_finite ended it
    "killed",  # a signal from outside ended a process
    "hung",  # no rank made a step for longer than its limit: the agent ended it
    "timeout",  # the attempt reached job.time_limit_min
    "cancelled",  # the user cancelled it: it ended without a checkpoint
    "stopped",  # the user created the STOP file: it saved and exited
    "deadline",  # its time limit was near: it saved and exited
    "preempted",  # a signal from the scheduler: it saved and exited
    "lost",  # the agent disappeared without a record (reboot, kill -9)
    "launch_failed",  # torchrun or the rendezvous failed to start, or a node's GPUs cannot be used
    "preflight_failed",  # a check of the nodes before the ranks start found an error
]
"""Why an attempt ended."""

ENDED_BY_REQUEST = ("cancelled", "stopped")
"""Causes that are displayed as states of their own: such a run has not failed."""

Next = Literal["requeue"] | None

StopCause = Literal["preempted", "deadline", "stopped"]
"""Causes for which all ranks save and exit at the same step. Of several at once, the last one here wins."""


def unplanned_steps(steps: int, announced: int) -> str | None:
    """A note on a finished training loop of the user that made fewer or more steps than it announced.

    None for equal numbers."""
    return None if steps == announced else f"made {steps} of {announced} announced steps"
