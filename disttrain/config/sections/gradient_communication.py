"""Section `parallel.gradient_communication`: how the gradients of strategy ddp travel."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from disttrain.config.sections.base import KeyedIfSet, Section


class GradientCommunicationConfig(Section):
    """How the gradients of `strategy` ddp travel."""

    scheme: KeyedIfSet[str] = "none"
    """`none`: one all-reduce of each bucket, in the type of the gradients. `fp16`, `bf16`, `powersgd`,
    `topk`, `randomk`, `hierarchical`, `local_sgd`, or `package.module:name`: see
    [gradient-communication.md](gradient-communication.md)."""
    options: KeyedIfSet[dict[str, Any]] = {}  # noqa: RUF012 -- pydantic copies it
    """Keyword arguments of a scheme of another package."""
    warmup_steps: KeyedIfSet[NonNegativeInt] = 0
    """First steps of the run in which gradients travel as by `none`."""
    rank: KeyedIfSet[PositiveInt] = 4
    """Rank of the factors of `powersgd`."""
    warm_start: KeyedIfSet[bool] = True
    """Start the factors of `powersgd` from those of the last step, not from random ones."""
    ratio: KeyedIfSet[Annotated[float, Field(gt=0, le=1)]] = 0.01
    """Share of the gradients that `topk` and `randomk` send."""
    error_feedback: KeyedIfSet[bool] = True
    """Add the gradients that `topk` and `randomk` did not send to those of the next step."""
    average_every: KeyedIfSet[PositiveInt] = 8
    """Steps between averages of the parameters by `local_sgd`."""
