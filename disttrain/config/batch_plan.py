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
    if local is None:
        if global_ is None:
            raise ConfigError("train.local_batch_size or train.global_batch_size is needed; neither is given")
        micro_batches = world * (accumulation or 1)
        local = _quotient(global_, micro_batches, f"{micro_batches} ranks")
        return BatchPlan(local, accumulation or 1, world)
    if accumulation is None:
        if global_ is None:
            return BatchPlan(local, 1, world)
        divisor = f"train.local_batch_size={local} x {world} ranks"
        return BatchPlan(local, _quotient(global_, local * world, divisor), world)
    plan = BatchPlan(local, accumulation, world)
    if global_ not in (None, plan.global_):
        raise ConfigError(
            f"train.accumulation={accumulation} x train.local_batch_size={local} x {world} ranks is "
            f"{plan.global_} samples, not train.global_batch_size={global_}; leave one of them out"
        )
    return plan


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
    per_rank = _quotient(base.global_, world, f"{world} ranks (strong scaling)")
    return plan_batch(min(base.local, per_rank), base.global_, world)


def _quotient(global_: int, divisor: int, described: str) -> int:
    """`global_ / divisor`. Raises `ConfigError` unless it is a whole number."""
    quotient, rest = divmod(global_, divisor)
    if rest:
        nearest = " and ".join(str(n * divisor) for n in (quotient, quotient + 1) if n)
        raise ConfigError(
            f"train.global_batch_size={global_} is not divisible by {described}; nearest that are: {nearest}"
        )
    return quotient
