"""What a run starts from: the newest checkpoint that holds what it says, on all ranks the same one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from disttrain import log
from disttrain.checkpoint import folder as folders
from disttrain.checkpoint import state as states
from disttrain.checkpoint import storage
from disttrain.checkpoint.folder import Damaged, Kept
from disttrain.checkpoint.storage import State
from disttrain.config import CheckpointConfig
from disttrain.errors import ConfigError
from disttrain.records import Checkpoint
from disttrain.rundir import RunDir
from disttrain.world import World

HISTORY = "history."


def own_prefix(rank: int) -> str:
    """Names of what belongs to one rank alone begin with it."""
    return f"rank-{rank:05d}."


@dataclass(frozen=True)
class Start:
    """Where training begins."""

    step: int = 0
    """Steps done."""
    history: State = field(default_factory=dict)
    """What is measured so far; on rank 0."""
    own: State = field(default_factory=dict)
    """This rank's share; empty where another number of ranks wrote it."""


def folder_of(config: CheckpointConfig, run: RunDir) -> Path:
    """Where this run's checkpoints are."""
    return Path(config.dir).resolve() / run.sweep / run.name if config.dir else run.checkpoints


def find(config: CheckpointConfig, folder: Path, expected: Checkpoint, world: World) -> Kept | None:
    """The checkpoint to start from. All ranks together.

    That is the newest in `folder` that is whole; failing that, `start_from`. Raises `ConfigError` for
    one that does not belong to what `expected` describes.
    """
    found = newest(folder, world)
    if found is not None:
        if found.manifest.config_key != expected.config_key:
            raise ConfigError(
                f"{folder} holds checkpoints of another config ({found.manifest.config_key}; this one is "
                f"{expected.config_key}); use another run directory, or checkpoint.start_from={found.path}"
            )
        refuse_other_data(found, expected)
        return found
    if config.start_from is None:
        return None
    named = Path(config.start_from).resolve()
    whole = world.together(lambda: _look(named) if world.rank == 0 else None)[0]
    problem = whole if isinstance(whole, str) else _problem(whole, world) if whole else "is not there"
    if problem or not isinstance(whole, Kept):
        raise ConfigError(f"checkpoint.start_from={config.start_from}: {problem}")
    if config.start_with == "all":
        refuse_other_data(whole, expected)
    return whole


def newest(folder: Path, world: World) -> Kept | None:
    """The newest checkpoint whose checksums hold; damaged ones on the way there are set aside."""
    while True:
        found = world.together(lambda: _newest_readable(folder) if world.rank == 0 else None)[0]
        if found is None:
            return None
        problem = _problem(found, world)
        if problem is None:
            return found
        if world.rank == 0:
            _set_aside(found.path, problem)


def _newest_readable(folder: Path) -> Kept | None:
    folders.sweep_up(folder)
    for path in folders.committed(folder):
        try:
            return Kept(path, folders.read_manifest(path))
        except Damaged as error:
            _set_aside(path, str(error))
    return None


def _look(path: Path) -> Kept | str:
    try:
        return Kept(path, folders.read_manifest(path))
    except Damaged as error:
        return str(error)


def _problem(found: Kept, world: World) -> str | None:
    """What is wrong with the content, if anything. The ranks share the files among them."""
    mine = sorted(found.manifest.files)[world.rank :: world.size]
    wrong = world.together(lambda: folders.wrong_files(found.path, found.manifest, mine))
    names = [name for share in wrong for name in share]
    return f"{', '.join(names)}: not what was written (checksum)" if names else None


def _set_aside(path: Path, problem: str) -> None:
    aside = folders.quarantine(path)
    log.error("damaged checkpoint set aside", path=str(path), aside=aside.name, problem=problem)


def refuse_other_data(found: Kept, expected: Checkpoint) -> None:
    """Raise `ConfigError` if going on from `found` would train on samples in another order."""
    for name in ("dataset", "dataset_sha256", "global_batch_size", "seed"):
        was, now = getattr(found.manifest, name), getattr(expected, name)
        if was != now:
            raise ConfigError(
                f"{found.path} was trained with {name}={was}, this run has {name}={now}; to take the model "
                f"alone: checkpoint.start_from={found.path} and checkpoint.start_with=model in a new run"
            )


def restore(
    found: Kept, model: nn.Module, optimizer: torch.optim.Optimizer, world: World, *, only_model: bool
) -> Start:
    """Fill the bare `model` and its optimizer. All ranks together."""
    start = Start(found.manifest.step)
    known = world.together(lambda: storage.shapes(found.path))[world.rank]
    state = states.of_model(model)
    refuse_other_model(found, state, known)
    if not only_model:
        state |= states.empty_optimizer(model, known)
        mine = own_prefix(world.rank) if found.manifest.world_size == world.size else None
        for name, (size, dtype) in known.items():
            if (mine and name.startswith(mine)) or (world.rank == 0 and name.startswith(HISTORY)):
                state[name] = torch.empty(size, dtype=dtype)
                kept = start.history if name.startswith(HISTORY) else start.own
                kept[name.removeprefix(HISTORY).removeprefix(mine or HISTORY)] = state[name]
    world.together(lambda: storage.load(state, found.path))
    if only_model:
        return Start()
    states.put_optimizer(model, optimizer, state)
    return start


def refuse_other_model(found: Kept, wanted: State, known: states.Shapes) -> None:
    """Raise `ConfigError` unless the checkpoint holds every tensor of the model, with its shape."""
    for name, tensor in wanted.items():
        size = known[name][0] if name in known else None
        if size != tensor.shape:
            there = "is not in it" if size is None else f"has shape {tuple(size)} in it"
            raise ConfigError(
                f"{found.path} is of another model: {name.removeprefix(states.MODEL)} {there}, "
                f"{tuple(tensor.shape)} is needed"
            )
