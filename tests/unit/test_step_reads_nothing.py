"""A step and its telemetry read no value of a tensor on the host, which would wait for a GPU.

On the CPU reading is free, and the operators that read are the same; fake tensors have a device and no
content. `tests/gpu` runs steps under `torch.cuda.set_sync_debug_mode("error")`.
"""

from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from disttrain.config.batch_plan import plan_batch
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.data import synthetic
from disttrain.engine.objective import Task
from disttrain.models import gpt, mlp, resnet
from disttrain.optim.precision import LossScale, Precision
from disttrain.parallel.base import Mesh, build_strategy
from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import CONTROL_SYNC, StepClock
from disttrain.telemetry.steps import StepResult
from disttrain.transforms.activations import checkpoint_activations
from disttrain.transforms.channels_last import build as channels_last
from tests.support.step_logs import step_log
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
    """The host read a value, or would have waited for the device."""


def read(*_, **__):
    raise HostRead


class NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return read() if func in READS else func(*args, **(kwargs or {}))


@contextmanager
def no_host_reads():
    """Reads raise `HostRead`: those by operators, and `tolist`, `numpy` and `cpu`, which read without one."""
    with pytest.MonkeyPatch.context() as patch, NoHostReads():
        for name in ("tolist", "numpy", "cpu"):
            patch.setattr(Tensor, name, read)
        yield


LANGUAGE = synthetic.build(task="language", vocab=32, seq_len=8, samples=4, valid_samples=0)
IMAGES = synthetic.build(shape=(3, 8, 8), classes=5, samples=4, valid_samples=0)


def a_gpt():
    return gpt.build(LANGUAGE, layers=2, width=16, heads=2, dropout=0.1), LANGUAGE


def a_checkpointed_gpt():
    return checkpoint_activations(a_gpt()[0], "full"), LANGUAGE


def a_resnet():
    return channels_last(resnet.build(IMAGES, width=8)), IMAGES


def a_perceptron():
    return mlp.build(IMAGES, hidden=(8,)), IMAGES


PRECISIONS = {
    "fp32": Precision,
    "checked": lambda: Precision(checks_gradients=True),
    "bf16": lambda: Precision(autocast_dtype=torch.bfloat16),
    "scaled": lambda: Precision(checks_gradients=True, loss_scale=LossScale(torch.device("cpu"))),
}


@pytest.mark.parametrize(
    ("build", "precision", "name", "parallel"),
    [
        (a_perceptron, "fp32", "adamw", "single"),
        (a_resnet, "checked", "sgd", "single"),
        (a_gpt, "scaled", "adamw", "single"),
        (a_gpt, "checked", "adamw", "ddp"),
        (a_gpt, "checked", "adamw", "fsdp"),
        (a_checkpointed_gpt, "bf16", "adamw", "fsdp"),
    ],
)
@pytest.mark.usefixtures("leaves_the_group")
def test_a_step_reads_nothing(build, precision, name, parallel):
    """Two micro-steps each. A group of one rank makes the collectives of any other group."""
    model, source = build()
    strategy = build_strategy(parallel, ParallelConfig(strategy=parallel))
    runner = stepper(
        strategy.apply(model, Mesh(rank=0), alone()), plan_batch(2, 4, 1), objective=Task.of(source),
        strategy=strategy, precision=PRECISIONS[precision](), name=name, grad_clip=1.0, weight_decay=0.1,
    )  # fmt: skip
    samples = [source.train[index] for index in range(2)]
    batch = tuple(
        torch.stack([torch.as_tensor(value) for value in column]) for column in zip(*samples, strict=True)
    )
    batches = iter(lambda: batch, None)
    if parallel != "single":
        runner.step(1, batches)  # DDP and fully_shard set themselves up
    with no_host_reads():
        results = [runner.step(step, batches) for step in (2, 3, 4)]
    assert all(isinstance(value, Tensor) for result in results for value in (result.loss, result.grad_norm))


@pytest.mark.parametrize("name", ["item", "__bool__", "tolist", "cpu"])
def test_reads_are_seen(name):
    with no_host_reads(), pytest.raises(HostRead):
        getattr(torch.ones(()), name)()


class NeverWaiting(TorchDispatchMode):
    """Raises where a host would wait: it reads a value, or a copy blocks or is from memory not pinned."""

    def __init__(self):
        super().__init__()
        self.pinned = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator is _aten._local_scalar_dense.default and args[0].device.type == "cuda":
            read()
        if operator is _aten._to_copy.default:
            here, there = args[0].device.type, torch.device(kwargs.get("device") or args[0].device).type
            is_pinned = any(args[0] is known for known in self.pinned)
            if here != there and not (kwargs.get("non_blocking") and (here == "cuda" or is_pinned)):
                read()
        return operator(*args, **kwargs)


class FakeEvent:
    """An event that the device has not reached."""

    synchronize = read

    def record(self): ...

    def query(self):
        return False


@pytest.fixture
def _never_waiting(monkeypatch):
    mode, make = NeverWaiting(), torch.tensor

    def tensor(*arguments, pin_memory=False, **options):  # memory can be pinned only where there is a GPU
        made = make(*arguments, **options)
        mode.pinned += [made] * pin_memory
        return made

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    with FakeTensorMode(), mode:
        yield


@pytest.mark.usefixtures("_never_waiting")
def test_waits_are_seen():
    value = torch.zeros(2, device="cuda:0")
    for waits in (
        value.sum().item,
        value.cpu,
        lambda: torch.tensor([1.0], device="cuda:0"),
        lambda: torch.tensor([1.0]).to("cuda:0", non_blocking=True),
    ):
        with pytest.raises(HostRead):
            waits()


@pytest.mark.usefixtures("_never_waiting")
def test_nothing_waits_when_ranks_compare_losses_and_times(tmp_path):
    """The newest steps are left for the next time, and each result is read once it has arrived."""
    device = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cuda", 0), backend=None)
    clock, compared = StepClock(), []
    log = step_log(tmp_path / "losses", clock, device)
    for step in range(1, 4):
        log.record(StepResult(step, torch.zeros((), device="cuda:0"), 0.1))
    log.reduce()
    assert len(log.series["loss"]) == 0
    log = step_log(tmp_path / "times", clock, device)
    submit = log.reductions.submit
    log.reductions.submit = lambda values, *a, **b: compared.append(len(values)) or submit(values, *a, **b)
    clock.start()
    for step in range(1, 6):
        clock.switch(CONTROL_SYNC)
        log.record(StepResult(step, 0.0, 0.1))
        clock.end_step()
        if step >= 3:
            log._losses.clear()  # fake tensors have no content
            log.reduce()
    assert compared == [2 * 3, 2 * 1]
    assert len(log.series["step_s"]) == 0
