"""Resolution of `parallel.strategy=auto`, without torch: the login node names runs by the strategy."""

from __future__ import annotations

from disttrain.config.config_tree import Config
from disttrain.config.refusals import refusal_with


def choose_strategy(wanted: str, world_size: int) -> tuple[str, str]:
    """(strategy, reason), without the memory of devices."""
    if wanted != "auto":
        return wanted, "requested"
    if world_size == 1:
        return "single", "a single rank has no other rank to communicate with"
    return "ddp", "every rank holds the whole model, so only gradients need to travel"


def planned_strategy(config: Config) -> str:
    """The strategy of a run as far as it is known before its job: `auto` where the ranks choose by the memory
    of their devices."""
    wanted, per_node = config.parallel.strategy, config.resources.gpus_per_node
    if wanted != "auto" or config.world_size == 1:
        return choose_strategy(wanted, config.world_size)[0]
    if config.model.kind == "emulated":  # its layers take no device memory
        return "ddp"
    candidates, _ = allowed(config, several_nodes=1 < per_node < config.world_size)
    return "auto" if len(candidates) > 1 else "ddp"


def allowed(config: Config, *, several_nodes: bool) -> tuple[list[str], str | None]:
    """The strategies that can run the config, ddp first; the reason if it is ddp alone."""
    names = ["hsdp", "fsdp"] if several_nodes else ["fsdp"]
    refusals = {name: refusal_with(config, "parallel", strategy=name) for name in names}
    candidates = ["ddp", *(name for name, refusal in refusals.items() if refusal is None)]
    return candidates, refusals["fsdp"] if len(candidates) == 1 else None
