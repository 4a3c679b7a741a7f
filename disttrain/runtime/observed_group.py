"""A process group whose collectives are observed: when each begins and ends on the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

_COLLECTIVES = (
    "allreduce", "allgather", "all_gather_single", "_allgather_base", "reduce_scatter_single",
    "_reduce_scatter_base",
)  # fmt: skip
"""Methods of a process group that `fully_shard` and `SyncBatchNorm` call; the last argument has options."""


class Observer(Protocol):
    """Receives each collective of a group over one dimension of the mesh; None: over all ranks."""

    def around(self, dimension: Any) -> AbstractContextManager[None]:
        """Context of the call. The collective is done at its end, on a GPU for the current stream."""

    def returned_early(self) -> None:
        """The call has returned while its collective was still under way (`unshard(async_op=True)`)."""


@dataclass(frozen=True)
class TimedCalls:
    """An `Observer` of two functions."""

    around: Callable[[Any], AbstractContextManager[None]] = lambda dimension: nullcontext()
    returned_early: Callable[[], None] = lambda: None


class ObservedGroup:
    """Stands for a process group where torch calls its collectives."""

    def __init__(self, group: Any, observer: Observer, dimension: Any = None) -> None:
        self.group = group
        self.observer = observer
        self._dimension = dimension

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.group, name)
        return partial(self._run, value) if name in _COLLECTIVES else value

    def _run(self, collective: Callable[..., Any], *arguments: Any) -> Any:
        with self.observer.around(self._dimension):
            work = collective(*arguments)
            if work is not None and not arguments[-1].asyncOp:
                work.wait()
        if work is not None and arguments[-1].asyncOp:
            self.observer.returned_early()
        return work

    # torch looks up the group's backend after an error
    def __eq__(self, other: object) -> bool:
        return other is self or other == self.group

    def __hash__(self) -> int:
        return hash(self.group)


def unobserved(group: Any) -> Any:
    """The process group that `group` stands for, whose collectives nobody observes."""
    while isinstance(group, ObservedGroup):
        group = group.group
    return group
