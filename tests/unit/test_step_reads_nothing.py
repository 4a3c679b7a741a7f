"""A step reads no value of a tensor on the host: on a GPU, each read would wait for the device.

The tensors are on the CPU, where reading is free; the operators that read are the same. `tests/gpu` runs
steps under `torch.cuda.set_sync_debug_mode("error")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from disttrain.config.batch_plan import plan_batch
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.data import synthetic
from disttrain.data.source import Source
from disttrain.engine.objective import Task
from disttrain.models import gpt, mlp, resnet
from disttrain.optim.precision import LossScale, Precision
from disttrain.parallel.base import Mesh, build_strategy
from disttrain.transforms.activations import checkpoint_activations
from disttrain.transforms.channels_last import build as channels_last
from tests.support.steppers import stepper
from tests.support.stopping import alone

_aten = torch.ops.aten
READS = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.equal.default,
    _aten.repeat_interleave.Tensor,
}
"""Operators whose result on the host, or whose shape, depends on the values of a tensor."""


class HostRead(AssertionError):
    """The host read a value."""


class NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise HostRead(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_reads() -> Iterator[None]:
    """Reads raise `HostRead`: those by operators, and `tolist`, `numpy` and `cpu`, which read without one."""

    def read(*_: object, **__: object) -> None:
        raise HostRead("a conversion")

    with pytest.MonkeyPatch.context() as patch, NoHostReads():
        for name in ("tolist", "numpy", "cpu"):
            patch.setattr(Tensor, name, read)
        yield


def language() -> Source:
    return synthetic.build(task="language", vocab=32, seq_len=8, samples=4, valid_samples=0)


def images() -> Source:
    return synthetic.build(shape=(3, 8, 8), classes=5, samples=4, valid_samples=0)


def a_gpt() -> tuple[nn.Module, Source]:
    source = language()
    return gpt.build(source, layers=2, width=16, heads=2, dropout=0.1), source


def a_checkpointed_gpt() -> tuple[nn.Module, Source]:
    model, source = a_gpt()
    return checkpoint_activations(model, "full"), source


def a_resnet() -> tuple[nn.Module, Source]:
    source = images()
    return channels_last(resnet.build(source, width=8)), source


def a_perceptron() -> tuple[nn.Module, Source]:
    source = images()
    return mlp.build(source, hidden=(8,)), source


def batches(source: Source) -> Iterator[tuple[Tensor, Tensor]]:
    pairs = [source.train[index] for index in range(2)]
    batch = (torch.stack([x for x, _ in pairs]), torch.stack([torch.as_tensor(y) for _, y in pairs]))
    while True:
        yield batch


PRECISIONS = {
    "fp32": Precision(),
    "checked": Precision(checks_gradients=True),
    "bf16": Precision(autocast_dtype=torch.bfloat16),
}


@pytest.mark.parametrize(
    ("build", "kind", "name", "parallel"),
    [
        (a_perceptron, "fp32", "adamw", "single"),
        (a_perceptron, "scaled", "sgd", "single"),
        (a_resnet, "checked", "sgd", "single"),
        (a_gpt, "scaled", "adamw", "single"),
        (a_checkpointed_gpt, "bf16", "adamw", "single"),
        (a_gpt, "checked", "adamw", "ddp"),
        (a_gpt, "checked", "adamw", "fsdp"),
        (a_checkpointed_gpt, "bf16", "adamw", "fsdp"),
    ],
)
@pytest.mark.usefixtures("leaves_the_group")
def test_a_step_reads_nothing(build: Any, kind: str, name: str, parallel: str) -> None:
    """Two micro-steps each. A group of one rank makes the collectives of any other group."""
    model, source = build()
    device = torch.device("cpu")
    scaled = Precision(checks_gradients=True, loss_scale=LossScale(device))
    strategy = build_strategy(parallel, ParallelConfig(strategy=parallel))
    model = strategy.apply(model, Mesh(rank=0), alone())
    precision = scaled if kind == "scaled" else PRECISIONS[kind]
    optim = {"name": name, "grad_clip": 1.0, "weight_decay": 0.1}
    plan, task = plan_batch(2, 4, 1), Task.of(source)
    runner = stepper(model, plan, objective=task, strategy=strategy, precision=precision, **optim)
    given = batches(source)
    if parallel != "single":
        runner.step(1, given)  # DDP and fully_shard set themselves up
    with no_host_reads():
        results = [runner.step(step, given) for step in (2, 3, 4)]
    assert all(isinstance(result.loss, Tensor) and isinstance(result.grad_norm, Tensor) for result in results)


@pytest.mark.parametrize(
    "act", [lambda t: t.item(), lambda t: bool(t > 0), lambda t: float(t), lambda t: t.tolist()]
)
def test_reads_are_seen(act: Any) -> None:
    value = torch.ones(())
    with no_host_reads(), pytest.raises(HostRead):
        act(value)
