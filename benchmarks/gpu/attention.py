"""Attention on the device: time of each kernel by shape, and the operators in the trace of a profiled step.

python -m benchmarks.gpu.attention [--device cuda] [--tiny]
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.arguments import parser
from disttrain.errors import ConfigError
from disttrain.runtime.device import device_name
from disttrain.runtime.kernels import KERNELS, attention_kernel, require_kernel
from disttrain.telemetry.step_clock import make_clock

SHAPES = {"gpt2-124m": (16, 12, 1024, 64), "gpt-1.3b": (8, 16, 2048, 128)}
"""Samples, heads, tokens and width of a head, as in the runs of these names."""
TINY_SHAPES = {"tiny": (1, 2, 16, 8)}
ROUNDS, PER_ROUND = 8, 5
_PREFIX = "aten::_scaled_dot_product_"


def attention_operators(trace: Path) -> dict[str, int]:
    """Calls of each attention operator in the trace of a rank, by its name without `aten::`, such as
    `_scaled_dot_product_cudnn_attention`."""
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = (event["name"] for event in events if event.get("cat") == "cpu_op")
    return dict(Counter(name.removeprefix("aten::") for name in names if name.startswith(_PREFIX)))


def kernel_times(device: torch.device, shapes: dict[str, tuple[int, int, int, int]]) -> dict[str, Any]:
    """Seconds of a forward and backward pass of causal attention in bf16 by shape and `train.attention`, the
    median over rounds; for a kernel that does not take the shape, the reason as a text.

    Tensors lie in memory as in `disttrain.models.gpt.Attention`: the values are views of the packed product,
    rotated queries and keys are contiguous, and the gradient is that of the transposed output.
    """
    found: dict[str, Any] = {"device": device_name(device), "cudnn": torch.backends.cudnn.version()}
    for name, shape in shapes.items():
        found[name] = {kernel: _seconds(device, shape, kernel) for kernel in ("auto", *KERNELS)}
    return found


def _seconds(device: torch.device, shape: tuple[int, int, int, int], kernel: str) -> float | str:
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    samples, heads, tokens, width = shape
    q, k, v = torch.randn(samples, tokens, 3, heads, width, **options).permute(2, 0, 3, 1, 4)
    q, k, v = (each.requires_grad_() for each in (q.contiguous(), k.contiguous(), v))
    gradient = torch.randn(samples, tokens, heads, width, **options).transpose(1, 2)
    clock, instants = make_clock(device), []
    try:
        require_kernel(kernel, device)
        with attention_kernel(kernel):
            for round_ in range(ROUNDS + 1):  # the first round warms up: cuDNN plans each new shape
                if round_:
                    instants.append(clock.instant())
                for _ in range(PER_ROUND):
                    output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    torch.autograd.grad(output, (q, k, v), gradient)
            instants.append(clock.instant())
    except (ConfigError, RuntimeError) as error:
        return str(error).splitlines()[0]
    clock.wait(instants[-1])
    return statistics.median(itertools.starmap(clock.between_s, itertools.pairwise(instants))) / PER_ROUND


def main() -> None:
    arguments = parser(__doc__).parse_args()
    shapes = TINY_SHAPES if arguments.tiny else SHAPES
    print(json.dumps(kernel_times(torch.device(arguments.device), shapes)))


if __name__ == "__main__":
    main()
