"""Resolution of `parallel.strategy=auto`, without torch: the login node names runs by the strategy."""

from __future__ import annotations

from disttrain.errors import ConfigError


def choose_strategy(wanted: str, world_size: int) -> tuple[str, str]:
    """(strategy, reason). Raises `ConfigError` for `single` and `dp` on several ranks."""
    if wanted in ("single", "dp") and world_size > 1:
        raise ConfigError(f"parallel.strategy={wanted} needs 1 rank, not {world_size}; use ddp or auto")
    if wanted != "auto":
        return wanted, "requested"
    if world_size == 1:
        return "single", "a single rank has no other rank to communicate with"
    return "ddp", "every rank holds the whole model, so only gradients need to travel"
