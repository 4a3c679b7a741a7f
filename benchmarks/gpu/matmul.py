"""FLOP/s of square matrix products on the device, by dtype: the reference of an MFU.

python -m benchmarks.gpu.matmul [--device cuda] [--tiny]
"""

from __future__ import annotations

import itertools
import json
import statistics
from typing import Any

import torch

from benchmarks.gpu.arguments import parser
from disttrain.models import peaks
from disttrain.runtime.device import device_name
from disttrain.telemetry.step_clock import make_clock

SIZES = (4096, 8192)
ROUNDS, PER_ROUND = 8, 10


def matmul_rates(device: torch.device, sizes: tuple[int, ...], dtypes: tuple[str, ...]) -> dict[str, Any]:
    """The highest median rate over sizes for each dtype in FLOP/s, beside the device's published peak."""
    known = peaks.find(device_name(device))
    found: dict[str, Any] = {"device": device_name(device), "torch": torch.__version__}
    for dtype in dtypes:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        kind = torch.float32 if dtype in ("float32", "tf32") else getattr(torch, dtype)
        rates = {size: _rate(device, size, kind) for size in sizes}
        best = max(rates, key=lambda size: rates[size])
        peak = known.tflops.get(dtype) if known else None
        found[dtype] = {
            "size": best,
            "flops_per_s": rates[best],
            "of_peak": rates[best] / (peak * 1e12) if peak else None,
        }
    return found


def _rate(device: torch.device, size: int, dtype: torch.dtype) -> float:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    clock = make_clock(device)
    a @ b
    instants = [clock.instant()]
    for _ in range(ROUNDS):
        for _ in range(PER_ROUND):
            a @ b
        instants.append(clock.instant())
    clock.wait(instants[-1])
    seconds = statistics.median(itertools.starmap(clock.between_s, itertools.pairwise(instants))) / PER_ROUND
    return 2 * size**3 / seconds


def main() -> None:
    arguments = parser(__doc__).parse_args()
    dtypes = (
        ("float32", "tf32", "bfloat16", "float16") if arguments.device == "cuda" else ("float32", "bfloat16")
    )
    sizes = (64,) if arguments.tiny else SIZES
    print(json.dumps(matmul_rates(torch.device(arguments.device), sizes, dtypes)))


if __name__ == "__main__":
    main()
