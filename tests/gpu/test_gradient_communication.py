"""Schemes of gradient communication on a real GPU: the host never waits for the device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from disttrain.config.sections.parallel import GradientCommunicationConfig
from disttrain.parallel.schemes.scheme import FlatGradient, build_scheme
from disttrain.runtime.process_group import World, ensure_group

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DEVICE = torch.device("cuda", 0)
ON_GPU = World(rank=0, size=1, local_rank=0, local_size=1, device=DEVICE, backend="nccl")


@pytest.mark.parametrize("scheme", ["bf16", "topk", "randomk", "powersgd"])
def test_the_host_does_not_wait_for_the_device(scheme: str) -> None:
    ensure_group(ON_GPU)
    try:
        made = build_scheme(GradientCommunicationConfig.model_validate({"scheme": scheme}), ON_GPU)
        values = torch.randn(64 * 48, device=DEVICE)
        made.average(FlatGradient(values.clone(), {"first": torch.Size((64, 48))}), 1)  # NCCL connects
        torch.cuda.set_sync_debug_mode("error")
        try:
            made.average(FlatGradient(values.clone(), {"second": torch.Size((64, 48))}), 2)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    finally:
        dist.destroy_process_group()
