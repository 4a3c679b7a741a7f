"""Learning-rate schedules: each a closed formula of the step, so that a resumed run needs no state of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from disttrain.config.sections.optim import OptimConfig

Schedule = Callable[[int, int, "OptimConfig"], float]
"""(step after the warm-up, from 1; steps after the warm-up; options) to a factor of the peak learning
rate."""


def constant(step: int, steps: int, optim: OptimConfig) -> float:
    """The peak at every step."""
    return 1.0


def linear(step: int, steps: int, optim: OptimConfig) -> float:
    """1 - (1 - f) t, with t = step / steps and f = `final_lr_ratio`, reached at the last step."""
    return 1 - (1 - optim.final_lr_ratio) * (step / steps)


def cosine(step: int, steps: int, optim: OptimConfig) -> float:
    """f + (1 - f)(1 + cos(pi t)) / 2, with t and f as in `linear` (Loshchilov and Hutter, arXiv
    1608.03983)."""
    floor = optim.final_lr_ratio
    return floor + (1 - floor) * (1 + math.cos(math.pi * (step / steps))) / 2


def cosine_restarts(step: int, steps: int, optim: OptimConfig) -> float:
    """`cosine` over a cycle of `restart_every` steps, which then starts again; each cycle is
    `restart_factor` times as long as the one before (Loshchilov and Hutter, arXiv 1608.03983, section 3)."""
    assert optim.restart_every is not None
    length = optim.restart_every
    if optim.restart_factor == 1:
        step = (step - 1) % length + 1
    while step > length:
        step -= length
        length *= optim.restart_factor
    return cosine(step, length, optim)


def step(step: int, steps: int, optim: OptimConfig) -> float:
    """`step_factor` to the power of the number of drops so far, one after every `step_every` steps."""
    assert optim.step_every is not None
    return float(optim.step_factor ** ((step - 1) // optim.step_every))


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "cosine_restarts": cosine_restarts,
    "step": step,
}
"""By the names that `optim.schedule` takes beside `package.module:name`."""


def learning_rate(
    step: int, steps: int, optim: OptimConfig, global_batch: int, schedule: Schedule | None = None
) -> float:
    """The learning rate of optimizer step `step` (1 is the first) of `steps`.

    The warm-up is linear and reaches the peak at step `warmup_steps`; `schedule` follows, by default the
    built-in one that `optim` names.
    """
    peak = peak_lr(optim, global_batch)
    if step <= optim.warmup_steps:
        return peak * step / optim.warmup_steps
    after, total = step - optim.warmup_steps, max(1, steps - optim.warmup_steps)
    return peak * (schedule or SCHEDULES[optim.schedule])(after, total, optim)


def peak_lr(optim: OptimConfig, global_batch: int) -> float:
    """The peak learning rate after the batch-size scaling rule.

    linear: lr * B / B0 (Goyal et al. 2017, arXiv 1706.02677); sqrt: lr * sqrt(B / B0) (Krizhevsky 2014,
    arXiv 1404.5997), with B the global batch and B0 `lr_base_batch`.
    """
    if optim.lr_scaling == "none":
        return optim.lr
    assert optim.lr_base_batch is not None
    ratio = global_batch / optim.lr_base_batch
    return optim.lr * (ratio if optim.lr_scaling == "linear" else math.sqrt(ratio))
