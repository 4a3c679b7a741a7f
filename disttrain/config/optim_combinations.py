"""Combinations of `optim` with other keys that cannot be run."""

from __future__ import annotations

from disttrain.config.config_tree import Config
from disttrain.config.paired_options import refuse_unpaired

_PAIRS = (
    ("optim.step_every", "optim.schedule", ("step",)),
    ("optim.restart_every", "optim.schedule", ("cosine_restarts",)),
    ("optim.lr_base_batch", "optim.lr_scaling", ("linear", "sqrt")),
)


def check_learning_rate(config: Config) -> tuple[str, str] | None:
    """Dotted key and message of the first refusal, as a check of `combinations`."""
    optim, steps = config.optim, config.train.steps
    for pair in _PAIRS:
        if refusal := refuse_unpaired(config, *pair):
            return refusal
    if optim.schedule != "cosine_restarts" and optim.restart_factor != 1:
        return (
            "optim.restart_factor",
            f"optim.restart_factor={optim.restart_factor} has no effect with optim.schedule="
            f"{optim.schedule}: leave it out, or use optim.schedule=cosine_restarts",
        )
    if steps is not None and optim.warmup_steps >= steps > 1 and optim.schedule != "constant":
        return (
            "optim.warmup_steps",
            f"optim.warmup_steps={optim.warmup_steps} leaves none of train.steps={steps} for optim.schedule="
            f"{optim.schedule}; use at most {steps - 1}, or optim.schedule=constant",
        )
    return None
