"""State of model, optimizer and random generators as tensors by name, and back.

Hyperparameters are not part of it: they come from the config. The learning rate and the position in the order
of samples follow from the step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from disttrain.checkpoint.storage import State
from disttrain.runtime.json_tensor import decode_json, encode_json

MODEL, OPTIMIZER = "model.", "optimizer."

Shapes = Mapping[str, tuple[torch.Size, torch.dtype]]


def model_tensors(model: nn.Module, buffers: bool = True) -> State:
    """Parameters and, with `buffers`, persistent buffers of the unwrapped model. They share the model's
    memory."""
    left_out = set() if buffers else {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {
        MODEL + name: value
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor) and name not in left_out
    }


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The optimizer's tensors by the names of their parameters. They share the optimizer's memory."""
    return {
        f"{OPTIMIZER}{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def first_non_finite(state: State) -> str | None:
    """Name of the first tensor of model or optimizer that contains NaN or infinity; None if there is none."""
    for name, value in state.items():
        if not name.startswith((MODEL, OPTIMIZER)) or not value.is_floating_point() or not value.numel():
            continue
        if not all(bound.isfinite() for bound in value.aminmax()):  # NaN is both bounds
            return name
    return None


def empty_optimizer_tensors(model: nn.Module, shapes: Shapes) -> State:
    """Empty tensors for the optimizer's state, which an optimizer creates only at its first step."""
    state = {}
    for name, parameter in model.named_parameters():
        prefix = f"{OPTIMIZER}{name}."
        for key, (size, dtype) in shapes.items():
            if key.startswith(prefix) and "." not in key[len(prefix) :]:
                moment = size == parameter.shape
                like = torch.empty_like(parameter, dtype=dtype) if moment else torch.empty(size, dtype=dtype)
                state[key] = like
    return state


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Load the filled tensors of `empty_optimizer_tensors` into the optimizer."""
    plain = optimizer.state_dict()
    owners = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in plain["param_groups"] for number in group["params"]]
    number_of = dict(zip(map(id, owners), numbers, strict=True))
    loaded: dict[int, dict[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        prefix = f"{OPTIMIZER}{name}."
        own = {
            key.removeprefix(prefix): value
            for key, value in state.items()
            if key.startswith(prefix) and "." not in key[len(prefix) :]
        }
        if own:
            loaded[number_of[id(parameter)]] = own
    optimizer.load_state_dict({"state": loaded, "param_groups": plain["param_groups"]})


def random_state(device: torch.device) -> State:
    """State of the random generators of torch, CUDA, NumPy and Python in this process."""
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": encode_json(random.getstate()),
        "numpy": encode_json([np.asarray(keys).tolist(), position, has_gauss, cached]),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: State, device: torch.device) -> None:
    """Restore the generators from `random_state`; the CUDA generator only if `state` has one."""
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = decode_json(state["python"])
    random.setstate((version, tuple(numbers), gauss))
    keys, position, has_gauss, cached = decode_json(state["numpy"])
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, cached))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


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
