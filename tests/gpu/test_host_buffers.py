"""Copies of CUDA tensors for a checkpoint: pinned, and taken before training changes the tensors."""

from __future__ import annotations

import pytest
import torch

from disttrain.checkpoint.share import HostBuffers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_a_copy_is_pinned_and_taken_before_the_next_change() -> None:
    value = torch.ones(1 << 24, device="cuda")
    buffers = HostBuffers()
    for expected in (1.0, 2.0):
        copies = buffers.copy({"a": value})
        value += 1  # queued behind the copy
        buffers.wait()
        assert copies["a"].is_pinned()
        assert copies["a"].unique().tolist() == [expected]
