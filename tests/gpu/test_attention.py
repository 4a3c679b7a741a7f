"""The attention kernel that PyTorch chooses on a real GPU."""

from __future__ import annotations

import os

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from disttrain.models.gpt import Attention, rotary_angles
from disttrain.runtime.kernels import attention_kernel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def expected_operator() -> str:
    """PyTorch 2.13 prefers cuDNN later than 9.15.0 on compute capabilities 9.0 and 10.0
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""
    prefers = (torch.backends.cudnn.version() or 0) > 91500 and os.environ.get(
        "TORCH_CUDNN_SDPA_DEPRIORITIZED"
    ) != "1"
    hopper = torch.cuda.get_device_capability() in ((9, 0), (10, 0))
    return "cudnn" if prefers and hopper else "flash"


@pytest.mark.skipif(not torch.cuda.is_bf16_supported(False), reason="no bf16")
@pytest.mark.parametrize("kernel", ["auto", "cudnn", "flash", "efficient"])
def test_attention_in_bf16_is_cudnn_on_hopper_and_flash_elsewhere_unless_configured(kernel: str) -> None:
    device = torch.device("cuda", 0)
    attention = Attention(width=512, heads=8, dropout=0.0).to(device)
    x = torch.randn(2, 256, 512, device=device, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with attention_kernel(kernel), torch.autocast("cuda", torch.bfloat16):
            output = attention(x, rotary_angles(256, 64, device))
        output.float().sum().backward()
        torch.cuda.synchronize()
    called = {event.key for event in profiler.key_averages()}
    name = expected_operator() if kernel == "auto" else kernel
    operator = f"aten::_scaled_dot_product_{name}_attention"
    assert {operator, f"{operator}_backward"} <= called
