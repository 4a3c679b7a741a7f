"""Section `parallel.gradient_communication`: how the gradients of strategy ddp travel."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from disttrain.config.sections.base import KEYED_IF_SET, Section
from disttrain.errors import as_text, either


class GradientCommunicationConfig(Section):
    """How the gradients of `strategy` ddp travel."""

    scheme: Annotated[str, Field(json_schema_extra=KEYED_IF_SET)] = "none"
    """`none`: one all-reduce of each bucket, in the type of the gradients. `fp16`, `bf16`, `powersgd`,
    `topk`, `randomk`, `hierarchical`, `local_sgd`, or `package.module:name`: see
    [gradient-communication.md](gradient-communication.md)."""
    options: Annotated[dict[str, Any], Field(json_schema_extra=KEYED_IF_SET)] = {}  # noqa: RUF012 -- pydantic copies it
    """Keyword arguments of a scheme of another package."""
    warmup_steps: Annotated[NonNegativeInt, Field(json_schema_extra=KEYED_IF_SET)] = 0
    """First steps of the run in which gradients travel as by `none`."""
    rank: Annotated[PositiveInt, Field(json_schema_extra=KEYED_IF_SET)] = 4
    """Rank of the factors of `powersgd`."""
    warm_start: Annotated[bool, Field(json_schema_extra=KEYED_IF_SET)] = True
    """Start the factors of `powersgd` from those of the last step, not from random ones."""
    ratio: Annotated[float, Field(gt=0, le=1, json_schema_extra=KEYED_IF_SET)] = 0.01
    """Share of the gradients that `topk` and `randomk` send."""
    error_feedback: Annotated[bool, Field(json_schema_extra=KEYED_IF_SET)] = True
    """Add the gradients that `topk` and `randomk` did not send to those of the next step."""
    average_every: Annotated[PositiveInt, Field(json_schema_extra=KEYED_IF_SET)] = 8
    """Steps between averages of the parameters by `local_sgd`."""


_OPTIONS_OF: dict[str, tuple[str, ...]] = {
    "warmup_steps": ("fp16", "bf16", "powersgd", "topk", "randomk", "hierarchical", "local_sgd"),
    "rank": ("powersgd",),
    "warm_start": ("powersgd",),
    "ratio": ("topk", "randomk"),
    "error_feedback": ("topk", "randomk"),
    "average_every": ("local_sgd",),
}
"""Options that belong to some schemes alone."""
_NO_HOOKS = dict.fromkeys(
    ("fsdp", "hsdp"),
    "the reduce-scatter of sharded gradients takes a reduce dtype, but no communication hook",
)


def refuse_scheme(section: GradientCommunicationConfig, strategy: str) -> tuple[str, str] | None:
    """Key and message for a scheme that `strategy` does not have, or an option that the scheme does not
    have."""
    key, scheme = "parallel.gradient_communication", section.scheme
    if scheme != "none" and strategy not in ("auto", "ddp"):
        why = _NO_HOOKS.get(strategy, f"{strategy} has no communication hook")
        return (
            f"{key}.scheme",
            f"{key}.scheme={scheme} needs parallel.strategy=ddp or auto, not {strategy}: {why}; use "
            f"parallel.strategy=ddp, or {key}.scheme=none",
        )
    for name, schemes in _OPTIONS_OF.items():
        value, default = getattr(section, name), type(section).model_fields[name].default
        if scheme not in schemes and ":" not in scheme and value != default:
            return (
                f"{key}.{name}",
                f"{key}.{name}={as_text(value)} has no effect with {key}.scheme={scheme}: leave it out, or "
                f"use {key}.scheme={either(schemes)}",
            )
    return None
