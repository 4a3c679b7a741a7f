"""What a checkpoint of a run holds: `capture` takes it from what is alive, `restore` puts it back."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from disttrain.checkpoint import state as states
from disttrain.checkpoint import storage
from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.checkpoint.resume import ResumeSource
from disttrain.checkpoint.storage import State
from disttrain.errors import ConfigError
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from disttrain.runtime.seeding import seed_all
from disttrain.telemetry.run import RunTelemetry

_HISTORY = "history."


def _own_prefix(rank: int) -> str:
    """Names of what belongs to one rank alone begin with it."""
    return f"rank-{rank:05d}."


@dataclass(frozen=True)
class ResumeState:
    """Where training begins."""

    step: int = 0
    """Steps done."""
    history: State = field(default_factory=dict)
    """What is measured so far; on rank 0."""
    own: State = field(default_factory=dict)
    """This rank's share; empty where another number of ranks wrote it."""


def capture(
    model: nn.Module, optimizer: torch.optim.Optimizer, telemetry: RunTelemetry, world: World
) -> State:
    """This rank's share of what a checkpoint holds, of the bare `model`. All ranks together."""
    history, own = telemetry.state()
    own |= states.of_random(world.device)
    return {
        **states.of_model(model, buffers=world.rank == 0),  # DDP makes rank 0's everybody's
        **states.of_optimizer(model, optimizer),
        **{_HISTORY + name: value for name, value in history.items()},
        **{_own_prefix(world.rank) + name: value for name, value in own.items()},
    }


def restore(
    found: ResumeSource, model: nn.Module, optimizer: torch.optim.Optimizer, world: World
) -> ResumeState:
    """Fill the bare `model` and its optimizer. All ranks together."""
    start = ResumeState(found.manifest.step)
    known = world.on_all_ranks(lambda: storage.shapes(found.path))[world.rank]
    state = states.of_model(model)
    refuse_other_model(found, state, known)
    if not found.only_model:
        state |= states.empty_optimizer(model, known)
        mine = _own_prefix(world.rank) if found.manifest.world_size == world.size else None
        for name, (size, dtype) in known.items():
            if (mine and name.startswith(mine)) or (world.rank == 0 and name.startswith(_HISTORY)):
                state[name] = torch.empty(size, dtype=dtype)
                kept = start.history if name.startswith(_HISTORY) else start.own
                kept[name.removeprefix(_HISTORY).removeprefix(mine or _HISTORY)] = state[name]
    world.on_all_ranks(lambda: storage.load(state, found.path))
    if found.only_model:
        log.info("model taken", path=str(found.path))
        return ResumeState()
    states.put_optimizer(model, optimizer, state)
    log.info("resumed", step=start.step, path=str(found.path), exact=bool(start.own))
    return start


def set_random(start: ResumeState, seed: int, world: World) -> None:
    """Random numbers go on where they were; on another number of ranks, from a seed of their own."""
    if start.own:
        states.put_random(start.own, world.device)
    elif start.step:
        seed_all(seed + 1 + world.rank + world.size * start.step)


def refuse_other_model(found: CommittedCheckpoint, wanted: State, known: states.Shapes) -> None:
    """Raise `ConfigError` unless the checkpoint holds the tensors of this model, no more, no fewer."""
    for name, tensor in wanted.items():
        size = known[name][0] if name in known else None
        if size != tensor.shape:
            there = "is not in it" if size is None else f"has shape {tuple(size)} in it"
            raise ConfigError(
                f"{found.path} is of another model: {name.removeprefix(states.MODEL)} {there}, "
                f"{tuple(tensor.shape)} is needed"
            )
    for name in known:
        if name.startswith(states.MODEL) and name not in wanted:
            raise ConfigError(
                f"{found.path} is of another model: {name.removeprefix(states.MODEL)} is in it, not here"
            )
