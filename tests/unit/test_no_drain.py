"""What telemetry asks of a device between two steps is queued behind them, and never waited for.

On a machine without a GPU the tensors are fake: they have a device and no content, and each operation on them
is seen. `tests/gpu` has the same of real steps on a real device.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import CONTROL_SYNC, HostClock
from disttrain.telemetry.steps import StepResult
from tests.support.step_logs import step_log

ON_DEVICE = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cuda", 0), backend=None)


class Drained(AssertionError):
    """The host would have waited for the device."""


class NeverWaiting(TorchDispatchMode):
    """Raises where the host would wait: it reads a value, or a copy blocks or is from memory not pinned."""

    def __init__(self):
        super().__init__()
        self.pinned = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "cuda":
            raise Drained("a value is read")
        if operator is torch.ops.aten._to_copy.default:
            here, there = args[0].device.type, torch.device(kwargs.get("device") or args[0].device).type
            if here != there and not kwargs.get("non_blocking"):
                raise Drained(f"a copy from {here} to {there} blocks")
            if (here, there) == ("cpu", "cuda") and not any(args[0] is known for known in self.pinned):
                raise Drained("a copy from memory that is not pinned")
        return operator(*args, **kwargs)


class FakeEvent:
    """An event that the device has not reached."""

    def record(self):
        pass

    def query(self):
        return False

    def synchronize(self):
        raise Drained("an event is awaited")


@pytest.fixture
def never_waiting(monkeypatch):
    mode, make = NeverWaiting(), torch.tensor

    def tensor(*arguments, pin_memory=False, **options):  # memory can be pinned only where there is a GPU
        made = make(*arguments, **options)
        if pin_memory:
            mode.pinned.append(made)
        return made

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    with FakeTensorMode(), mode:
        yield


def test_the_mode_sees_what_would_wait(never_waiting):
    value = torch.zeros(2, device="cuda:0")
    for act in (
        value.tolist,
        value.sum().item,
        value.cpu,
        lambda: torch.tensor([1.0], device="cuda:0"),
        lambda: torch.tensor([1.0]).to("cuda:0", non_blocking=True),
    ):
        with pytest.raises(Drained):
            act()


def test_nothing_is_waited_for_when_ranks_compare_losses_and_times(never_waiting, tmp_path):
    """The newest steps are left for the next time, and each result is read once it has arrived."""
    clock = HostClock()
    log, compared = step_log(tmp_path / "steps.jsonl", clock, ON_DEVICE), []
    for step in range(1, 4):
        log.record(StepResult(step, torch.zeros((), device="cuda:0"), 0.1))
    log.reduce()
    assert len(log.series["loss"]) == 0
    log = step_log(tmp_path / "more.jsonl", clock, ON_DEVICE)
    submit = log.reductions.submit
    log.reductions.submit = lambda values, *a, **b: compared.append(len(values)) or submit(values, *a, **b)
    clock.start()
    for step in range(1, 6):
        clock.switch(CONTROL_SYNC)
        log.record(StepResult(step, 0.0, 0.1))
        clock.end_step()
        if step in (3, 4, 5):
            log._losses.clear()  # fake tensors have no content
            log.reduce()
    assert compared == [2 * 3, 2 * 1]
    assert len(log.series["step_s"]) == 0
