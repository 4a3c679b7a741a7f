"""The emulated model on a real GPU: the device sleeps as long as the table says."""

from __future__ import annotations

import pytest
import torch

from disttrain.models.emulated_device import make_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_the_device_is_busy_for_the_seconds_asked_for():
    device = make_device(torch.device("cuda", 0))
    took = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        device.start()
        for _ in range(10):
            device.advance(0.01)
        device.end()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) / 1e3)
    assert sorted(took)[2] == pytest.approx(0.1, rel=0.03)
