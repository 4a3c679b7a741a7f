"""`python -m disttrain.engine.memory_estimate`: peak memory of a rank, for any world size, without a GPU.

The model is built of fake tensors, which have shapes and no data, and runs two passes whose live bytes are
counted; weights, gradients and optimizer state follow from their formula. Reads a JSON list of configs from
standard input and writes the list of estimates, or of reasons why there is none.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from disttrain.config.auto_strategy import allowed, choose_strategy
from disttrain.config.config_tree import Config
from disttrain.config.sections.compile import CompileConfig
from disttrain.data.source import Sample
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.live_bytes import LiveBytes
from disttrain.engine.objective import Task
from disttrain.errors import ConfigError, in_one_line
from disttrain.models.blocks import model_size
from disttrain.models.state_memory import (
    StateMemory,
    moments,
    replicated_memory,
    sharded_memory,
)
from disttrain.parallel.gradient_communication.state_size import state_bytes
from disttrain.records.ranks import asks_for_gpus
from disttrain.transforms import transforms_of

_SHARDED = ("fsdp", "hsdp")
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16, "auto": torch.bfloat16}


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak bytes of one rank; the context of the device and the buffers of NCCL are not part of it."""

    strategy: str
    local_batch_size: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    communication_bytes: int
    """Copies in the buckets of DDP and state of a scheme of gradient communication, or gathered parameters
    and gradients of a sharded model."""
    activations_bytes: int
    """With temporary tensors of the backward pass."""
    total_bytes: int


def estimate(config: Config) -> MemoryEstimate:
    """The estimate of a config whose local batch size is filled in; `auto` counts as 1 sample.

    Raises `ConfigError` for a run without one.
    """
    if config.model.kind == "emulated":
        raise ConfigError("model.kind=emulated has no activations")
    if config.stages > 1:
        raise ConfigError("pipeline stages hold different layers")
    if config.gpus_per_rank > 1 and asks_for_gpus(config.resources.device):
        raise ConfigError(f"parallel.strategy=dp divides the batch among {config.gpus_per_rank} GPUs")
    given = config.train.local_batch_size
    local = given if isinstance(given, int) else 1
    source = build_source(config.data)
    task, sample = Task.of(source, config.memory.loss_in_model), source.train[0]
    fused = config.train.attention != "math"
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH] if fused else [SDPBackend.MATH]
    with FakeTensorMode(), sdpa_kernel(kernels):
        model = build_model(config.model, source)
        for transform in transforms_of(_uncompiled(config), torch.device("cpu")):
            model = transform(model)
        strategy, _ = choose_strategy(config.parallel.strategy, config.world_size)
        readers = config.world_size
        accumulates = (config.train.global_batch_size or local * readers) > local * readers
        state = _state(config, strategy, model, accumulates)
        kept = None
        if strategy in _SHARDED:
            kept = 0.0 if config.parallel.fsdp.cpu_offload else 1 / _shards(config, strategy)
            if config.precision.dtype in _HALF:
                cast_parameters(model, _HALF[config.precision.dtype])
        first, later = activation_peaks(model, task, sample, local, _autocast(config), kept)
    # gradients exist only from the backward pass on, when activations are freed, unless they are in buckets
    in_buckets = strategy == "ddp" and config.parallel.ddp.gradient_as_bucket_view
    fresh = not accumulates and not in_buckets
    activations = max(0, first - state.gradients) if fresh else later
    return MemoryEstimate(
        strategy=strategy,
        local_batch_size=local,
        parameters_bytes=state.parameters,
        gradients_bytes=state.gradients,
        optimizer_bytes=state.optimizer,
        communication_bytes=state.communication,
        activations_bytes=activations,
        total_bytes=state.total + activations,
    )


def activation_peaks(
    model: nn.Module,
    task: Task,
    sample: Sample,
    samples: int,
    autocast: AbstractContextManager[Any] | None = None,
    kept: float | None = None,
) -> tuple[int, int]:
    """Peak bytes beside the parameters in a forward and backward pass of `samples` like `sample`, and beside
    parameters and gradients in a second one. The model may be of fake tensors, within their mode.

    `kept` is the fraction of a gradient that stays on the device after it was computed, in float32; None: all
    of it as it is.
    """
    inputs, targets = sample
    batch = (_like(inputs, samples), _like(targets, samples))
    peaks: list[int] = []
    for _ in range(2):
        existing = [*model.parameters(), *model.buffers(), *batch]
        existing += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        with LiveBytes() as live, ExitStack() as stack:
            live.ignore(existing)
            if kept is not None and not peaks:
                _keep_fraction(model, live, kept, stack)
            with autocast or nullcontext():
                loss = task.batch_loss(model, batch)
            loss.backward()
            del loss
        peaks.append(live.peak)
    return peaks[0], peaks[1]


def _keep_fraction(model: nn.Module, live: LiveBytes, kept: float, stack: ExitStack) -> None:
    """Count this fraction of each gradient once it is computed, until `stack` is closed."""

    def reduced(parameter: Tensor) -> None:
        if parameter.grad is not None:
            live.recount(parameter.grad, math.ceil(kept * parameter.numel() * 4))

    for parameter in model.parameters():
        if parameter.requires_grad:
            stack.callback(parameter.register_post_accumulate_grad_hook(reduced).remove)


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Have the fake `model` hold its floating-point parameters in `dtype`, in which `fully_shard` gathers
    them: autocast then makes no copies."""
    cast: dict[int, nn.Parameter] = {}
    parameters = list(model.parameters())  # keeps the identities alive
    for parameter in parameters:
        if parameter.is_floating_point():
            cast[id(parameter)] = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = cast.get(id(value), value)


def _like(sample: Tensor, samples: int) -> Tensor:
    return torch.zeros((samples, *sample.shape), dtype=sample.dtype)


def _autocast(config: Config) -> AbstractContextManager[Any] | None:
    dtype = _HALF.get(config.precision.dtype)
    return None if dtype is None else torch.autocast("cpu", dtype)


def _uncompiled(config: Config) -> Config:
    """Compilation is left out: it fuses operators, which needs less memory than the estimate."""
    return config.model_copy(update={"compile": CompileConfig()})


def _shards(config: Config, strategy: str) -> int:
    """Ranks that share one copy of a sharded model."""
    if strategy == "fsdp":
        return config.world_size
    return config.parallel.hsdp.shard_size or config.resources.gpus_per_node


def _state(config: Config, strategy: str, model: nn.Module, accumulates: bool) -> StateMemory:
    size, held = model_size(model), moments(config.optim.name, config.optim.momentum)
    if strategy in _SHARDED:
        options = config.parallel.fsdp
        return sharded_memory(
            size,
            held,
            _shards(config, strategy),
            gathered_bytes=2 if config.precision.dtype in _HALF else None,
            reshard=options.reshard_after_forward,
            whole_gradients=accumulates and options.accumulation == "no_sync",
            offload=options.cpu_offload,
            forward_prefetch=options.forward_prefetch,
            backward_prefetch=options.backward_prefetch or 1,
        )
    if strategy != "ddp":
        return replicated_memory(size, held)
    # DDP does not see the first micro-steps: their gradients are formed outside of the buckets
    copies = accumulates or not config.parallel.ddp.gradient_as_bucket_view
    scheme = state_bytes(config.parallel.gradient_communication, model.parameters())
    return replicated_memory(size, held, bucket_copy=copies, communication_state=scheme)


def answer(config: Config) -> dict[str, Any]:
    """Fields of the estimate; for `parallel.strategy=auto` on several ranks, `strategy` and `candidates`: the
    estimates from which the ranks choose the first that fits their devices."""
    if config.parallel.strategy != "auto" or config.world_size == 1:
        return asdict(estimate(config))
    per_node = config.resources.gpus_per_node
    candidates, _ = allowed(config, several_nodes=1 < per_node < config.world_size)
    found = []
    for strategy in candidates:
        parallel = config.parallel.model_copy(update={"strategy": strategy})
        found.append(asdict(estimate(config.model_copy(update={"parallel": parallel}))))
    return {"strategy": "auto", "candidates": found}


def main() -> None:
    """Answer a list of configs on standard input."""
    answers: list[dict[str, Any]] = []
    for plain in json.load(sys.stdin):
        try:
            answers.append(answer(Config.model_validate(plain)))
        except Exception as error:  # a model of the user may fail in any way on fake tensors
            reason = str(error) if isinstance(error, ConfigError) else in_one_line(error)
            answers.append({"reason": reason})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
