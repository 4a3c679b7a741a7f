"""The state of training that resumes: one list of parts, each with `state_dict` and `load_state_dict`.

Names in a checkpoint begin with `model.` or `optimizer.` (of all ranks), `history.` (of rank 0),
`precision.`, or `rank-00000.` (of one rank). A part names what belongs to its rank alone from `rank.` on. The
position in the order of samples and the learning rate follow from the step and need no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import nn

from disttrain.checkpoint import state_tensors, storage
from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.checkpoint.resume import ResumeSource
from disttrain.checkpoint.storage import CapturedState, State
from disttrain.errors import ConfigError
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from disttrain.runtime.seeding import seed_all

OWN = "rank."
"""Prefix of the names that belong to one rank, as its parts use it."""
_RANK0 = "history."
_SHARED = "precision."


class Stateful(Protocol):
    """A part of the state, as `torch.distributed.checkpoint.stateful.Stateful` defines it.

    `load_state_dict` receives the whole state of the checkpoint that this rank reads, and takes its own
    names.
    """

    def state_dict(self) -> State:
        """Tensors by name; they may share memory with the live state. A collective."""

    def load_state_dict(self, state: State) -> None:
        """Restore the part from a result of `state_dict`. A collective."""


class RandomState:
    """The random number generators of this rank."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loaded: State = {}

    def state_dict(self) -> State:
        return {OWN + name: value for name, value in state_tensors.random_state(self._device).items()}

    def load_state_dict(self, state: State) -> None:
        """Keep the state until `restart`: building an iterator draws random numbers."""
        self._loaded = {
            name.removeprefix(OWN): value for name, value in state.items() if name.startswith(OWN)
        }

    def restart(self, step: int, seed: int, world: World) -> None:
        """Set the generators to their state after `step`; on another number of ranks, to a new seed."""
        if self._loaded:
            state_tensors.set_random_state(self._loaded, self._device)
        elif step:
            seed_all(int(np.random.SeedSequence([seed, step, world.rank]).generate_state(1)[0]))


class TrainState:
    """The unwrapped `model`, its optimizer and the other `parts`, captured and restored together.

    `holders` are the world ranks that have the same layers of the model as this one; None: all ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parts: Sequence[Stateful],
        world: World,
        holders: tuple[int, ...] | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._parts = parts
        self._world = world
        self._holders = holders

    def capture(self) -> CapturedState:
        """The state as this rank holds it. A collective."""
        replicated = state_tensors.model_tensors(self._model, buffers=False)
        replicated |= state_tensors.optimizer_tensors(self._model, self._optimizer)
        own: State = {}
        if self._world.rank == 0:  # the buffers of ranks differ; training continues with those of rank 0
            model = state_tensors.model_tensors(self._model)
            own = {name: value for name, value in model.items() if name not in replicated}
        for part in self._parts:
            for name, value in part.state_dict().items():
                if name.startswith(OWN):
                    own[_own_prefix(self._world) + name.removeprefix(OWN)] = value
                elif name.startswith(_SHARED):
                    replicated[name] = value
                else:
                    own[name] = value
        return CapturedState(replicated, own, self._holders)

    def restore(self, found: ResumeSource) -> int:
        """Load the checkpoint and return the step after which training continues. A collective.

        Raises `ConfigError` for a checkpoint of another model. If another number of ranks wrote it, training
        continues from the same step with a new random state.
        """
        world = self._world
        known: dict[str, tuple[torch.Size, torch.dtype]] = {}
        world.on_all_ranks(lambda: known.update(storage.shapes(found.path)))  # no rank needs those of others
        state = state_tensors.model_tensors(self._model)
        refuse_other_model(found, self._shapes_of_all_layers(state), known)
        if not found.only_model:
            state |= state_tensors.empty_optimizer_tensors(self._model, known)
            state |= self._empty_parts(found, known)
        world.on_all_ranks(lambda: storage.load_tensors(state, found.path))
        if found.only_model:
            log.info("model loaded", path=str(found.path))
            return 0
        state_tensors.load_optimizer(self._model, self._optimizer, state)
        own = _own_prefix(world)
        random_state = "restored" if any(name.startswith(own) for name in state) else "reseeded"
        named = {OWN + k.removeprefix(own) if k.startswith(own) else k: v for k, v in state.items()}
        for part in self._parts:
            part.load_state_dict(named)
        step = found.manifest.step
        log.info("resumed", step=step, path=str(found.path), random_state=random_state)
        return step

    def _shapes_of_all_layers(self, own: State) -> dict[str, torch.Size]:
        """Shapes of the model's tensors on all ranks together, by name. A collective if the ranks hold
        different layers."""
        shapes = {name: tensor.shape for name, tensor in own.items()}
        if self._holders is None:
            return shapes
        return {name: s for each in self._world.all_gather_object(shapes) for name, s in each.items()}

    def _empty_parts(self, found: ResumeSource, known: state_tensors.Shapes) -> State:
        """Empty tensors for the names that this rank reads besides model and optimizer."""
        prefixes = [_SHARED, _RANK0] if self._world.rank == 0 else [_SHARED]
        if found.manifest.world_size == self._world.size:
            prefixes.append(_own_prefix(self._world))
        wanted = {name: shape for name, shape in known.items() if name.startswith(tuple(prefixes))}
        return {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in wanted.items()}


def _own_prefix(world: World) -> str:
    return f"rank-{world.rank:05d}."


def refuse_other_model(
    found: CommittedCheckpoint, wanted: Mapping[str, torch.Size], known: state_tensors.Shapes
) -> None:
    """Raise `ConfigError` unless the checkpoint holds exactly the tensors of this model, with the `wanted`
    shapes."""
    for name, shape in wanted.items():
        size = known[name][0] if name in known else None
        if size != shape:
            there = "is not in it" if size is None else f"has shape {tuple(size)} in it"
            raise ConfigError(
                f"{found.path} is of another model: {name.removeprefix(state_tensors.MODEL)} {there}, "
                f"{tuple(shape)} is needed"
            )
    for name in known:
        if name.startswith(state_tensors.MODEL) and name not in wanted:
            raise ConfigError(
                f"{found.path} is of another model: it has "
                f"{name.removeprefix(state_tensors.MODEL)}, which this model lacks"
            )
