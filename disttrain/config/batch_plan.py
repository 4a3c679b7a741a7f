"""Batch arithmetic: local batch x ranks x accumulation = global batch, for one run or along a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from disttrain.errors import ConfigError

Scaling = Literal["weak", "strong"]


@dataclass(frozen=True)
class BatchPlan:
    """Batch sizes of one optimizer step, in samples.

    `local` samples per rank and micro-step, `accumulation` micro-steps per optimizer step and `world` ranks;
    their product is `global_`.
    """

    local: int
    accumulation: int
    world: int

    @property
    def global_(self) -> int:
        return self.local * self.accumulation * self.world


def plan_batch(
    local: int | None, global_: int | None, world: int, accumulation: int | None = None
) -> BatchPlan:
    """The batch plan of one run on `world` ranks, from one batch size or both, and any accumulation.

    Raises `ConfigError` without any batch size, or if the global one is not divisible.
    """
    if accumulation is not None and local is not None:
        plan = BatchPlan(local, accumulation, world)
        if global_ not in (None, plan.global_):
            raise ConfigError(
                f"train.accumulation={accumulation} x train.local_batch_size={local} x {world} ranks is "
                f"{plan.global_} samples, not train.global_batch_size={global_}; leave one of them out"
            )
        return plan
    if accumulation is not None and global_ is not None:
        return BatchPlan(plan_batch(None, global_, world * accumulation).local, accumulation, world)
    if local is None and global_ is None:
        raise ConfigError("train.local_batch_size or train.global_batch_size is needed; neither is given")
    if global_ is None:
        assert local is not None
        return BatchPlan(local, 1, world)
    if local is None:
        if global_ % world:
            raise ConfigError(
                f"train.global_batch_size={global_} is not divisible by {world} ranks; "
                f"nearest that are: {_multiples(global_, world)}"
            )
        return BatchPlan(global_ // world, 1, world)
    if global_ % (local * world):
        raise ConfigError(
            f"train.global_batch_size={global_} is not divisible by train.local_batch_size={local} "
            f"x {world} ranks; nearest that are: {_multiples(global_, local * world)}"
        )
    return BatchPlan(local, global_ // (local * world), world)


def scale_batch(
    local: int | None,
    global_: int | None,
    *,
    base_world: int,
    world: int,
    scaling: Scaling,
    accumulation: int | None = None,
) -> BatchPlan:
    """The batch plan at `world` ranks of a sweep whose batch sizes refer to `base_world` ranks.

    Weak scaling holds the local batch and the accumulation: the global batch grows with the ranks. Strong
    scaling holds the global batch: the accumulation shrinks first, then the local batch.
    """
    base = plan_batch(local, global_, base_world, accumulation)
    if scaling == "weak":
        return BatchPlan(base.local, base.accumulation, world)
    if base.global_ % world:
        raise ConfigError(
            f"train.global_batch_size={base.global_} is not divisible by {world} ranks (strong scaling); "
            f"nearest that are: {_multiples(base.global_, world)}"
        )
    return plan_batch(min(base.local, base.global_ // world), base.global_, world)


def _multiples(value: int, unit: int) -> str:
    below = value // unit * unit
    return " and ".join(str(m) for m in (below, below + unit) if m > 0)
