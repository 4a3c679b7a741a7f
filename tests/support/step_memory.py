"""Memory of a training step on a rank, by PyTorch's allocator, and of the parameters that are gathered."""

from __future__ import annotations

import bisect
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.testing._internal.distributed.fake_pg import FakeStore

from disttrain.config.config_tree import Config
from disttrain.engine.spec import spec_of_config
from disttrain.engine.step import Stepper, build_stepper
from disttrain.models.hooks import blocks_of
from disttrain.runtime.fully_shard_hooks import param_groups, sharded_modules
from disttrain.runtime.process_group import World

STEPS, MEASURED = 5, 3
"""Steps, of which the last ones are measured."""
_STEP = "optimizer step"

CASES: dict[str, dict[str, Any]] = {
    "ddp": {"parallel": {"strategy": "ddp"}},
    "ddp-bucket-copies": {"parallel": {"strategy": "ddp", "ddp": {"gradient_as_bucket_view": False}}},
    "fsdp": {"parallel": {"strategy": "fsdp"}},
    "fsdp-kept-gathered": {"parallel": {"strategy": "fsdp", "fsdp": {"reshard_after_forward": False}}},
    "fsdp-prefetch": {
        "parallel": {"strategy": "fsdp", "fsdp": {"forward_prefetch": 3, "backward_prefetch": 3}}
    },
    "fsdp-accumulation": {"parallel": {"strategy": "fsdp"}, "train": {"global_batch_size": 16}},
    "fsdp-no-sync": {
        "parallel": {"strategy": "fsdp", "fsdp": {"accumulation": "no_sync"}},
        "train": {"global_batch_size": 16},
    },
    "fsdp-bf16": {"parallel": {"strategy": "fsdp"}, "precision": {"dtype": "bf16"}},
    "fsdp-recompute": {"parallel": {"strategy": "fsdp"}, "memory": {"activation_checkpointing": "full"}},
    "hsdp": {"parallel": {"strategy": "hsdp", "hsdp": {"shard_size": 2}}, "resources": {"nodes": 2}},
    "hsdp-replicated": {"parallel": {"strategy": "hsdp", "hsdp": {"shard_size": 1}}},
}


def config_of(case: str) -> Config:
    """The config of a case, on two ranks unless it has more nodes than one."""
    base: dict[str, dict[str, Any]] = {
        "model": {"kind": "gpt", "layers": 6, "width": 128, "heads": 2},
        "data": {"kind": "synthetic", "task": "language", "vocab": 512, "seq_len": 32, "samples": 64},
        "train": {"steps": STEPS, "local_batch_size": 4},
        "resources": {"nodes": 1, "gpus_per_node": 2, "device": "cpu"},
        "precision": {"on_non_finite": "ignore"},  # without transport, gathered parameters may be anything
    }
    given = CASES[case]
    return Config.model_validate(
        {name: {**base.get(name, {}), **given.get(name, {})} for name in {*base, *given}}
    )


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one rank."""

    peaks: tuple[int, ...]
    """Largest total of live tensors within each measured step: weights, optimizer state, gradients,
    activations, and inputs and outputs of collectives. A copy that gloo frees on its own thread, where the
    profiler does not see it, counts until the end."""
    gathered: int
    """Largest total of the parameters that are gathered when a layer computes; 0 without sharding."""
    model: int
    """Parameters of the whole model."""

    @property
    def peak(self) -> int:
        """The least of the peaks."""
        return min(self.peaks)


def measure(world: World, config: Config) -> StepMemory:
    """The steps of a run on the CPU. All ranks together."""
    torch.set_num_threads(1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        # The profiler does not see a tensor freed on gloo's thread, where DDP's first broadcast can end.
        with patch("torch.nn.parallel.distributed._sync_module_states"):
            stepper = _build(world, config)
        batches = itertools.repeat(stepper.spec.example())
        for step in range(1, STEPS + 1):
            with record_function(_STEP), _gathered(stepper.model) as gathered:
                stepper.step(step, batches)
    model = sum(parameter.numel() * parameter.element_size() for parameter in stepper.model.parameters())
    return StepMemory(step_peaks(_events(profiler)), max(gathered, default=0), model)


def _build(world: World, config: Config) -> Stepper:
    world = replace(world, local_rank=world.rank, local_size=world.size)
    train = config.train.model_copy(update={"steps": STEPS})
    spec = spec_of_config(config.model_copy(update={"train": train}), world)
    return build_stepper(spec, world)


def strategy_state_bytes(world: World, config: Config) -> int:
    """Bytes of the strategy's state on this rank after two steps. All ranks together.

    The profiler does not see the state of a scheme of gradient communication, which another thread allocates.
    """
    stepper = _build(world, config)
    batches = itertools.repeat(stepper.spec.example())
    for step in (1, 2):
        stepper.step(step, batches)
    return sum(tensor.nbytes for tensor in stepper.strategy.state_dict().values())


@contextmanager
def _gathered(model: nn.Module) -> Iterator[list[int]]:
    """Bytes of gathered parameters after each pass of a linear layer."""
    found: list[int] = []
    parameters = [p for m in sharded_modules(model) for group in param_groups(m) for p in group.fsdp_params]

    def count(*_: object) -> None:
        storages = (output.untyped_storage() for p in parameters for output in p.all_gather_outputs)
        found.append(sum(storage.nbytes() for storage in storages))

    hooks: list[Any] = []
    blocks = blocks_of(model).values() if parameters else ()
    for module in (child for block in blocks for child in block.modules() if isinstance(child, nn.Linear)):
        hooks.append(module.register_forward_hook(count))
        hooks.append(module.register_full_backward_hook(count))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _events(profiler: profile) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return list(json.loads(path.read_text())["traceEvents"])


def allocated_peak(run: Callable[[], object]) -> int:
    """Bytes that the CPU allocator holds at most during `run`, beside those from before."""
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        record_function(_STEP),
    ):
        run()
    return step_peaks(_events(profiler))[-1]


def step_peaks(events: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Live bytes of the CPU allocator at most in each measured step, by the events of a profile.

    Memory from before the profile does not count, nor does its end: an earlier test may have left it.
    """
    steps = sorted(e["ts"] for e in events if e.get("name") == _STEP and e.get("cat") == "user_annotation")
    peaks = [0] * (len(steps) + 1)
    live: dict[int, int] = {}  # bytes by address
    now = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            live[address] = size
            now += size
        else:
            now -= live.pop(address, 0)
        step = bisect.bisect(steps, event["ts"])
        peaks[step] = max(peaks[step], now)
    return tuple(peaks[-MEASURED:])


class _InFakeWorld(World):
    """Rank 0 of ranks whose collectives exchange nothing."""

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value] * self.size

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        return list(values)


def measure_without_transport(config: Config) -> StepMemory:
    """`measure` for rank 0 in a process group that exchanges and copies nothing. DDP cannot run in it."""
    ranks = config.world_size
    world = _InFakeWorld(
        rank=0, size=ranks, local_rank=0, local_size=ranks, device=torch.device("cpu"), backend="fake"
    )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        return measure(world, config)
    finally:
        dist.destroy_process_group()
