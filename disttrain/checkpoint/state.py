"""The state of training that resumes, as tensors by name: one list of parts, captured and restored together.

Names in a checkpoint begin with `model.` or `optimizer.` (of all ranks), `history.` (of rank 0),
`precision.`, or `rank-00000.` (of one rank). A part names what belongs to its rank alone from `rank.` on.
`load_state_dict` of a part receives all that this rank reads. Both methods are collectives.
Hyperparameters come from the config; the learning rate and the position in the order of samples follow from
the step.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful as Stateful

from disttrain.checkpoint import storage
from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.checkpoint.resume import ResumeSource
from disttrain.checkpoint.share import CapturedState, State
from disttrain.errors import ConfigError, in_one_line
from disttrain.records.checkpoint import CheckpointTensor
from disttrain.runtime import log
from disttrain.runtime.device import seed_all
from disttrain.runtime.process_group import World

MODEL, OPTIMIZER = "model.", "optimizer."
OWN = "rank."
"""Prefix of the names that belong to one rank, as its parts use it."""
RANK0 = "history."
_SHARED = "precision."


class RandomState:
    """The random number generators of this rank."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loaded: State = {}

    def state_dict(self) -> State:
        return random_state(self._device)

    def load_state_dict(self, state: State) -> None:
        """Keep the state until `restart`: building an iterator draws random numbers."""
        self._loaded = {name: state[name] for name in random_state(self._device) if name in state}

    def restart(self, step: int, seed: int, world: World) -> None:
        """Set the generators to their state after `step`; on another number of ranks, to a new seed."""
        if self._loaded:
            set_random_state(self._loaded, self._device)
        elif step:
            seed_all(int(np.random.SeedSequence([seed, step, world.rank]).generate_state(1)[0]))


@dataclass(eq=False)
class TrainState:
    """The unwrapped `model`, its optimizer and the other `parts`, captured and restored together."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    parts: Sequence[Stateful]
    world: World
    holders: tuple[int, ...] | None = None
    """World ranks that have the same layers of the model as this one; None: all ranks."""

    @property
    def _own_prefix(self) -> str:
        return f"rank-{self.world.rank:05d}."

    def capture(self) -> CapturedState:
        """The state as this rank holds it. A collective."""
        own = model_tensors(self.model)
        buffers = {MODEL + name for name, _ in self.model.named_buffers(remove_duplicate=False)}
        replicated = {name: own.pop(name) for name in [*own] if name not in buffers}
        replicated |= optimizer_tensors(self.model, self.optimizer)
        if self.world.rank:  # the buffers of ranks differ; training continues with those of rank 0
            own = {}
        for part in self.parts:
            for name, value in part.state_dict().items():
                stored = self._own_prefix + name.removeprefix(OWN) if name.startswith(OWN) else name
                (replicated if name.startswith(_SHARED) else own)[stored] = value
        return CapturedState(replicated, own, self.holders)

    def restore(self, found: ResumeSource) -> int:
        """Load the checkpoint and return the step after which training continues. A collective.

        Raises `ConfigError` for a checkpoint of another model, or that this version of PyTorch cannot read.
        If another number of ranks wrote it, training continues from the same step with a new random state.
        """
        own, step = self._own_prefix, found.manifest.step
        state = model_tensors(self.model)
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if self.holders is not None:  # other ranks hold other layers
            shapes = {k: s for rank in self.world.all_gather_object(shapes) for k, s in rank.items()}
        refuse_other_model(found, shapes)
        if found.only_model:
            self._load(state, found)
            log.info("model loaded", path=str(found.path))
            return 0
        same_world = found.manifest.world_size == self.world.size
        prefixes = (_SHARED, *([own] if same_world else []), *([] if self.world.rank else [RANK0]))
        for name, tensor in found.manifest.tensors.items():
            if name.startswith(prefixes):
                state[name] = torch.empty(tensor.shape, dtype=storage.dtype_of(tensor))
        optimizer_state, empty = empty_optimizer_state(self.model, self.optimizer, found.manifest.tensors)
        state |= empty
        self._load(state, found)
        self.optimizer.load_state_dict(optimizer_state)
        state = {OWN + k.removeprefix(own) if k.startswith(own) else k: v for k, v in state.items()}
        for part in self.parts:
            part.load_state_dict(state)
        random_state = "restored" if same_world else "reseeded"
        log.info("resumed", step=step, path=str(found.path), random_state=random_state)
        return step

    def _load(self, state: State, found: CommittedCheckpoint) -> None:
        def problem() -> str | None:
            try:
                storage.load_tensors(state, found)
            except (OSError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError):
                raise  # of this node, or temporary
            except Exception as error:  # DCP and torch.load raise errors of many types
                return in_one_line(error)
            return None

        if problems := [*filter(None, self.world.on_all_ranks(problem))]:
            raise ConfigError(
                f"{found.path} is intact, but PyTorch {torch.__version__} cannot read it ({problems[0]}); "
                f"PyTorch {found.manifest.torch} wrote it: resume with that version, or move this checkpoint "
                "away"
            )


def refuse_other_model(found: CommittedCheckpoint, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ConfigError` unless the checkpoint holds exactly the tensors of this model, with the `wanted`
    shapes."""
    saved = {name: t.shape for name, t in found.manifest.tensors.items() if name.startswith(MODEL)}
    for name in [*wanted, *saved]:
        shape, size = wanted.get(name), saved.get(name)
        if shape != size:
            there = "is not in it" if size is None else f"has shape {size} in it"
            here = "this model has no such tensor" if shape is None else f"{shape} is needed"
            raise ConfigError(f"{found.path} is of another model: {name.removeprefix(MODEL)} {there}, {here}")


def model_tensors(model: nn.Module) -> State:
    """Parameters and persistent buffers of the unwrapped model. They share the model's memory."""
    return {MODEL + name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The optimizer's tensors by the names of their parameters. They share the optimizer's memory."""
    return {
        f"{OPTIMIZER}{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def empty_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, described: Mapping[str, CheckpointTensor]
) -> tuple[dict[str, Any], State]:
    """A `state_dict` of the optimizer with the `described` tensors, empty, as an optimizer creates them only
    at its first step; and these tensors by their names in a checkpoint."""
    loaded: dict[str, Any] = optimizer.state_dict() | {"state": {}}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    number_of = {id(parameter): number for number, parameter in enumerate(ordered)}
    own, tensors = dict(model.named_parameters()), {}
    for name, entry in described.items():
        owner, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
        if not name.startswith(OPTIMIZER) or owner not in own:  # of another stage
            continue
        like = own[owner] if entry.shape == own[owner].shape else torch.empty(entry.shape)
        tensors[name] = torch.empty_like(like, dtype=storage.dtype_of(entry))
        loaded["state"].setdefault(number_of[id(own[owner])], {})[key] = tensors[name]
    return loaded, tensors


def first_non_finite(state: State) -> str | None:
    """Name of the first tensor of model or optimizer that contains NaN or infinity; None if there is none."""
    for name, value in state.items():
        if not name.startswith((MODEL, OPTIMIZER)) or not value.is_floating_point() or not value.numel():
            continue
        if not all(bound.isfinite() for bound in value.aminmax()):  # NaN is both bounds
            return name
    return None


def random_state(device: torch.device) -> State:
    """State of the random generators of torch, CUDA, NumPy and Python in this process."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state = {
        f"{OWN}torch": torch.get_rng_state(),
        f"{OWN}python": encode_json(random.getstate()),
        f"{OWN}numpy": encode_json([name, np.asarray(keys).tolist(), *rest]),
    }
    if device.type == "cuda":
        state[f"{OWN}cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: State, device: torch.device) -> None:
    """Restore the generators from `random_state`; the CUDA generator only if `state` has one."""
    torch.set_rng_state(state[f"{OWN}torch"])
    version, numbers, gauss = decode_json(state[f"{OWN}python"])
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(decode_json(state[f"{OWN}numpy"])))
    if device.type == "cuda" and f"{OWN}cuda" in state:
        torch.cuda.set_rng_state(state[f"{OWN}cuda"], device)


@contextmanager
def preserve_state(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore random state and buffers at the end of the block, and clear all gradients."""
    numbers = random_state(device)
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        set_random_state(numbers, device)


@contextmanager
def drop_gradients(model: nn.Module) -> Iterator[None]:
    """Drop each gradient as soon as it is accumulated, so that gradients need no memory beside DDP's
    buckets."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    hooks = [p.register_post_accumulate_grad_hook(drop) for p in model.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def encode_json(value: Any) -> Tensor:
    """The JSON text of `value` as uint8."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def decode_json(tensor: Tensor) -> Any:
    """The value that `encode_json` was given."""
    return json.loads(tensor.numpy().tobytes())
