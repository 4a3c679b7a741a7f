"""When compute waits for the collectives of `fully_shard`.

On a CPU each call of a process group returns when its collective is done, so its duration is the time that
compute waits.

On CUDA the collectives run on streams of their own, and the compute stream waits for events at three places
of FSDP2: before it uses gathered parameters, before a reduction reuses the memory of an earlier one, and at
the end of the backward pass. Here each wait is queued a moment earlier, in a context that marks its beginning
and end on the compute stream. FSDP2's own wait follows and finds the event passed, so a step computes the
same. These places are private in FSDP2 and were read in torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from disttrain.parallel.base import Timed
from disttrain.runtime.fully_shard_hooks import (
    Dimension,
    compute_device,
    observe,
    param_groups,
    replicates,
    sharded_modules,
    why_unobservable,
)
from disttrain.runtime.process_group import World

CALLS = "fsdp_custom_collectives"
"""Method on a CPU: duration of each call of a collective of `fully_shard`."""
STREAM_WAITS = "fsdp_stream_waits"
"""Method on CUDA: time between events around each wait of the compute stream."""
_WAITS = (
    "_all_gather_result", "wait_for_unshard", "post_backward", "finalize_backward",
    "comm_ctx.reduce_scatter_states", "comm_ctx.reduce_scatter_max_input_buffers",
    "comm_ctx._last_post_reduce_events",
)  # fmt: skip
"""Attributes of a parameter group at which compute waits on CUDA."""
RETURNED_EARLY = "an unshard was asynchronous, and the time that compute waited for it is unknown"
"""Reason why the communication of a step is unknown."""


def comm_method(model: nn.Module, world: World) -> tuple[str | None, str | None]:
    """The method by which exposed communication of a sharded model is measured, else the reason why not."""
    if world.size == 1:
        return None, None
    on_gpu = world.device.type == "cuda"
    for module in sharded_modules(model):
        if reason := why_unobservable(module, *(_WAITS if on_gpu else ())):
            return None, reason
    return (STREAM_WAITS if on_gpu else CALLS), None


def time_waits(
    model: nn.Module, timed: Timed, returned_early: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Have each wait of compute for a collective of `model` happen within `timed`, if `comm_method` has one.

    `returned_early` is called after a collective that was still under way when its call returned. Returns a
    function that restores the model.
    """
    undo: list[Callable[[], None]] = []
    for module in sharded_modules(model):
        if compute_device(model).type == "cuda":
            undo += [_time_stream_waits(group, timed) for group in param_groups(module)]
        else:
            undo.append(observe(module, timed, returned_early))

    def restore() -> None:
        for restore_module in undo:
            restore_module()

    return restore


def _time_stream_waits(group: Any, timed: Timed) -> Callable[[], None]:
    gathers: Dimension | None = "shard" if replicates(group) else None
    reduces: Dimension | None = "replicate" if replicates(group) else None
    before = (group.wait_for_unshard, group.post_backward, group.finalize_backward)
    wait_for_unshard, post_backward, finalize_backward = before

    def wait(events: Iterable[Any], dimension: Dimension | None) -> None:
        known = [event for event in events if event is not None]
        if known:
            with timed(dimension):
                for event in known:
                    group.device_handle.current_stream().wait_event(event)

    def gathered() -> None:
        result = group._all_gather_result
        if result is not None:
            wait([result.all_gather_event], gathers)
        wait_for_unshard()

    def reduced(*unused: Any) -> None:
        context = group.comm_ctx
        states = context.reduce_scatter_states
        reused = states[: max(0, len(states) - context.reduce_scatter_max_input_buffers + 1)]
        wait([state.event for state in reused], gathers)
        post_backward(*unused)

    def finished() -> None:
        wait([state.event for state in group.comm_ctx.reduce_scatter_states], gathers)
        wait(group.comm_ctx._last_post_reduce_events.values(), reduces)
        finalize_backward()

    def restore() -> None:
        group.wait_for_unshard, group.post_backward, group.finalize_backward = before

    group.wait_for_unshard, group.post_backward, group.finalize_backward = gathered, reduced, finished
    return restore
