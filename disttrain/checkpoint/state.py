"""What is alive, as tensors by name, and back: model, optimizer, random numbers.

Nothing else is needed of them: hyperparameters come from the config, the learning rate is a formula of
the step, and so is the place in the order of samples.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from disttrain.checkpoint.storage import State

MODEL, OPTIMIZER = "model.", "optimizer."

Shapes = Mapping[str, tuple[torch.Size, torch.dtype]]


def of_model(model: nn.Module, buffers: bool = True) -> State:
    """Parameters and, if wanted, persistent buffers of the bare model; they share memory with it."""
    left_out = set() if buffers else {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {
        MODEL + name: value
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor) and name not in left_out
    }


def of_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The optimizer's tensors under the names of the parameters they belong to, in the same memory."""
    return {
        f"{OPTIMIZER}{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def empty_optimizer(model: nn.Module, shapes: Shapes) -> State:
    """Tensors to load the optimizer's state into: before its first step it has none of its own."""
    state = {}
    for name, parameter in model.named_parameters():
        prefix = f"{OPTIMIZER}{name}."
        for key, (size, dtype) in shapes.items():
            if key.startswith(prefix) and "." not in key[len(prefix) :]:
                moment = size == parameter.shape
                like = torch.empty_like(parameter, dtype=dtype) if moment else torch.empty(size, dtype=dtype)
                state[key] = like
    return state


def put_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Give the optimizer the loaded tensors of `empty_optimizer`."""
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


def of_random(device: torch.device) -> State:
    """The state of every generator of random numbers in this process."""
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": as_tensor(random.getstate()),
        "numpy": as_tensor([np.asarray(keys).tolist(), position, has_gauss, cached]),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def put_random(state: State, device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = as_value(state["python"])
    random.setstate((version, tuple(numbers), gauss))
    keys, position, has_gauss, cached = as_value(state["numpy"])
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, cached))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def preserve_state(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Whatever happens within, random numbers, buffers and gradients are afterwards as they were (no
    gradients)."""
    numbers = of_random(device)
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        put_random(numbers, device)


@contextmanager
def dropped_gradients(model: nn.Module) -> Iterator[None]:
    """Within, each gradient is dropped as it comes, so that they need no memory beside DDP's buckets."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    hooks = [p.register_post_accumulate_grad_hook(drop) for p in model.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def on_host(state: State) -> State:
    """A copy in host memory that training leaves alone."""
    return {
        name: value.detach().to("cpu", copy=True) if value.is_cuda else value.detach().clone()
        for name, value in state.items()
    }


def as_tensor(value: Any) -> Tensor:
    """Plain data as bytes of JSON, so that a checkpoint is tensors and nothing else."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def as_value(tensor: Tensor) -> Any:
    return json.loads(tensor.numpy().tobytes())
