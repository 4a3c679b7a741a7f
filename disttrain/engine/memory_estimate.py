"""`python -m disttrain.engine.memory_estimate`: peak memory of a rank, for any world size, without a GPU.

The model is built of fake tensors, which have shapes and no data, and runs two passes whose live bytes are
counted; weights, gradients and optimizer state follow from their formula. Reads a JSON list of configs from
standard input and writes the list of estimates, or of reasons why there is none. On the ranks,
`parallel.strategy=auto` compares the estimates with the memory of the devices.
"""

from __future__ import annotations

import json
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from disttrain.config.auto_strategy import allowed, choose_strategy
from disttrain.config.batch_plan import plan_batch
from disttrain.config.config_tree import Config
from disttrain.data.source import Sample
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.memory_limits import total_memory
from disttrain.engine.objective import Task
from disttrain.errors import ConfigError, in_one_line
from disttrain.models.hooks import blocks_of
from disttrain.parallel.dp import dp_reason
from disttrain.parallel.schemes.scheme import state_bytes
from disttrain.records.run_json import asks_for_gpus
from disttrain.runtime.process_group import World
from disttrain.transforms import transforms_of

RESERVE = 0.08
"""Fraction of the device memory left free, for fragmentation, the device's context and buffers of NCCL."""
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


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters of a model; a tied one counts once."""

    parameters: int
    trained: int
    """Those with a gradient."""
    largest_block: int = 0
    """Parameters of the largest block; 0 without blocks: a sharded model is then gathered as a whole."""
    outside_blocks: int = 0
    """Parameters in no block, such as an embedding."""
    parameter_bytes: int = 4
    """Bytes of a parameter, and of its gradient and of each moment."""

    @classmethod
    def of(cls, model: nn.Module) -> ModelSize:
        blocks = [list(block.parameters()) for block in blocks_of(model).values()]
        inside = {id(parameter) for block in blocks for parameter in block}
        parameters = list(model.parameters())
        return cls(
            parameters=_count(parameters),
            trained=_count([p for p in parameters if p.requires_grad]),
            largest_block=max(map(_count, blocks), default=0),
            outside_blocks=_count([p for p in parameters if id(p) not in inside]),
            parameter_bytes=max((p.element_size() for p in parameters), default=4),
        )


def _count(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


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
    local = config.train.local_batch_size
    local = local if isinstance(local, int) else 1
    one_step = local * config.world_size
    accumulates = (config.train.global_batch_size or one_step) > one_step
    strategy, _ = choose_strategy(config.parallel.strategy, config.world_size)
    source = build_source(config.data)
    task, sample = Task.of(source, config.memory.loss_in_model), source.train[0]
    math_alone = config.train.attention == "math"
    with FakeTensorMode(), sdpa_kernel([SDPBackend.MATH] + [SDPBackend.FLASH_ATTENTION] * (not math_alone)):
        model = build_model(config.model, source)
        # compilation is left out: it fuses operators, which needs less memory than the estimate
        for transform in transforms_of(config.with_values("compile", scope="none"), torch.device("cpu")):
            model = transform(model)
        parts = [*state_memory(config, strategy, ModelSize.of(model), accumulates)]
        if strategy == "ddp":
            parts[-1] += state_bytes(config.parallel.gradient_communication, model.parameters())
        first, later = _activation_peaks(config, strategy, model, task, sample, local)
    # gradients exist only from the backward pass on, when activations are freed, unless they are in buckets
    in_buckets = strategy == "ddp" and config.parallel.ddp.gradient_as_bucket_view
    _, gradients, *_ = parts
    parts.append(later if accumulates or in_buckets else max(0, first - gradients))
    parts.append(sum(parts))
    return MemoryEstimate(strategy, local, *parts)


def state_memory(
    config: Config, strategy: str, size: ModelSize, accumulates: bool
) -> tuple[int, int, int, int]:
    """Bytes on one device of parameters, gradients, optimizer state, and what exists because they travel.

    With P parameters of b bytes, m moments each, and one copy of the state spread over s ranks, a device
    holds P b (2 + m) / s bytes from step to step (Rajbhandari et al. 2020, arXiv 1910.02054, section 3).
    """
    width = size.parameter_bytes
    moments = 2 if config.optim.name == "adamw" else int(config.optim.momentum > 0)
    trained = size.trained * width
    if strategy not in _SHARDED:
        # DDP does not see the first micro-steps: their gradients are formed outside of the buckets
        copied = strategy == "ddp" and (accumulates or not config.parallel.ddp.gradient_as_bucket_view)
        return size.parameters * width, trained, moments * trained, copied * trained

    options, shards = config.parallel.fsdp, _shards(config, strategy)
    unit = size.largest_block or size.parameters
    # Resharded, the parameters outside of the blocks stay gathered, and so do the block that computes and
    # those that are gathered ahead; on one rank, `fully_shard` copies what it would gather.
    forward, backward = (
        min(size.parameters, size.outside_blocks + (1 + ahead) * unit)
        if options.reshard_after_forward
        else size.parameters
        for ahead in (options.forward_prefetch, options.backward_prefetch or 1)
    )
    # in the backward pass beside the whole gradients of one block and of the parameters outside
    gathered = max(forward, backward + min(size.trained, size.outside_blocks + unit))
    gathered *= 2 if config.precision.dtype in _HALF else width
    whole = trained if accumulates and options.accumulation == "no_sync" else 0
    if options.cpu_offload:  # the shards of one group's parameters and gradients are copied at a time
        return 0, whole, 0, gathered + 2 * math.ceil(max(unit, size.outside_blocks) / shards) * width
    share = math.ceil(size.trained / shards) * width
    return math.ceil(size.parameters / shards) * width, max(share, whole), moments * share, gathered


def _shards(config: Config, strategy: str) -> int:
    """Ranks that share one copy of a sharded model."""
    if strategy == "fsdp":
        return config.world_size
    return config.parallel.hsdp.shard_size or config.resources.gpus_per_node


def _activation_peaks(
    config: Config, strategy: str, model: nn.Module, task: Task, sample: Sample, samples: int
) -> tuple[int, int]:
    """Peak bytes beside the parameters in a forward and backward pass of `samples` like `sample`, and beside
    parameters and gradients in a second one."""
    dtype = _HALF.get(config.precision.dtype)
    inputs, targets = (torch.zeros((samples, *each.shape), dtype=each.dtype) for each in sample)
    live, peaks = LiveBytes(), []
    if strategy in _SHARDED:
        kept = 0.0 if config.parallel.fsdp.cpu_offload else 1 / _shards(config, strategy)

        def reduce(parameter: Tensor) -> None:
            """A float32 share of the gradient stays on the device once it is reduced."""
            assert parameter.grad is not None
            live.count_as(parameter.grad, math.ceil(kept * parameter.numel() * 4))

        for parameter in model.parameters():
            if dtype and parameter.is_floating_point():  # `fully_shard` gathers it in the dtype of autocast
                parameter.data = parameter.data.to(dtype)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(reduce)
    with live:
        for tensor in (*model.parameters(), *model.buffers(), inputs, targets):
            live.count_as(tensor, 0)
        for _ in range(2):
            before = live.peak = live.now
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = task.batch_loss(model, (inputs, targets))
            loss.backward()
            del loss
            peaks.append(live.peak - before)
    return peaks[0], peaks[1]


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operators create within the block, until they are freed: as an allocator
    without rounding would, on any device and on fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Live bytes of storages that were created within the block."""
        self.peak = 0
        """The largest value of `now`; assign `now` to it to begin a new peak."""
        self._sizes: dict[int, int] = {}

    def count_as(self, tensor: Tensor, nbytes: int) -> None:
        """Count the storage of `tensor` as `nbytes` from now on: 0 for one from before the block."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            weakref.finalize(storage, self._freed, key).atexit = False
        self.now += nbytes - self._sizes.get(key, 0)
        self._sizes[key] = nbytes

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self._sizes:
                self.count_as(leaf, leaf.untyped_storage().nbytes())
        self.peak = max(self.peak, self.now)
        return result


def resolve_strategy(config: Config, world: World) -> tuple[str, str]:
    """(strategy, reason), the same on all ranks. All ranks together.

    `auto` on several ranks is the first of ddp, hsdp (nodes of several ranks) and fsdp whose estimated memory
    fits the smallest device. Raises `ConfigError` for `single` and `dp` on several ranks.
    """
    wanted = config.parallel.strategy
    if wanted == "dp" and world.size == 1:
        return wanted, dp_reason(world)
    if wanted != "auto" or world.size == 1:
        return choose_strategy(wanted, world.size)
    if config.model.kind == "emulated":
        return "ddp", "the layers of an emulated model take no device memory"
    strategies, why_ddp_alone = allowed(config, several_nodes=1 < world.local_size < world.size)
    if why_ddp_alone:
        return "ddp", why_ddp_alone
    device_bytes = -world.all_reduce_max([-_device_bytes(config, world)])[0]
    local, global_ = config.train.local_batch_size, config.train.global_batch_size
    plan = plan_batch(1 if local == "auto" else local, global_, world.size)
    config = config.with_values("train", local_batch_size=plan.local)
    chosen = choose_that_fits(_estimates(config, strategies), device_bytes) if world.rank == 0 else ("", "")
    return world.of_rank0(chosen)


def _estimates(config: Config, strategies: Iterable[str]) -> Iterator[MemoryEstimate]:
    for strategy in strategies:
        yield estimate(config.with_values("parallel", strategy=strategy))


def _device_bytes(config: Config, world: World) -> float:
    """Memory of this rank's device, its share where ranks share one; infinite if unknown."""
    if world.device.type != "cuda":
        return total_memory(world.local_size)
    ranks = world.local_size if config.resources.device == "shared" else 1
    return torch.cuda.get_device_properties(world.device).total_memory / ranks


def choose_that_fits(estimates: Iterable[MemoryEstimate], device_bytes: float) -> tuple[str, str]:
    """The first strategy that needs at most `device_bytes` less `RESERVE`, or the last; and the arithmetic.

    ddp if the memory cannot be estimated.
    """
    strategy, tried = "ddp", []
    try:
        for needed in estimates:
            strategy = needed.strategy
            tried.append(f"{strategy} needs {arithmetic(needed)}")
            if needed.total_bytes <= (1 - RESERVE) * device_bytes:
                break
        else:
            tried.append("nothing fits: lower train.local_batch_size or set memory.activation_checkpointing")
    except Exception as error:  # a model of the user may fail in any way without real tensors
        return "ddp", f"memory not estimated: {in_one_line(error)}"
    limit = f"{_size(device_bytes)} a rank, less {RESERVE:.0%} in reserve"
    if not math.isfinite(device_bytes):
        limit = "unknown"
    return strategy, f"{'; '.join(tried)}; device memory: {limit}"


def arithmetic(needed: MemoryEstimate) -> str:
    """`1.2 GiB = weights 0.3 + gradients 0.3 + ...`"""
    _, samples, *parts, total = astuple(needed)
    names = ("weights", "gradients", "optimizer", "communication", f"activations of {samples} samples")
    terms = (f"{name} {_size(value)}" for name, value in zip(names, parts, strict=True))
    return f"{_size(total)} = {' + '.join(terms)}"


def _size(value: float) -> str:
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def answer(config: Config) -> dict[str, Any]:
    """Fields of the estimate; for `parallel.strategy=auto` on several ranks, `strategy` and `candidates`: the
    estimates from which the ranks choose the first that fits their devices."""
    if config.parallel.strategy != "auto" or config.world_size == 1:
        return asdict(estimate(config))
    strategies, _ = allowed(config, several_nodes=1 < config.resources.gpus_per_node < config.world_size)
    return {"strategy": "auto", "candidates": [asdict(each) for each in _estimates(config, strategies)]}


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
