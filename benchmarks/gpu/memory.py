"""Peak memory of the device in optimizer steps, with and without the options that move tensors to the host.

    python -m benchmarks.gpu.memory [--device cuda] [--tiny]

Prints one JSON object: by case `peak_bytes` of PyTorch's allocator, beside what it held before the case, and
`estimate_bytes` of `--memory`; or the reason why the device does not run the case. Cases that begin alike
differ in one option.
"""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.arguments import parser
from benchmarks.gpu.training import config_of
from disttrain.config.config_tree import Config
from disttrain.config.parsing import Draft, check
from disttrain.engine.memory_estimate import estimate
from disttrain.engine.spec import spec_of_config
from disttrain.engine.step import build_stepper
from disttrain.errors import ConfigError
from disttrain.runtime.process_group import World, open_world
from tests.support.step_memory import allocated_peak

STEPS = 3
CASES: dict[str, dict[str, Any]] = {
    "single": {"parallel": {"strategy": "single"}},
    "single, offload_activations": {
        "parallel": {"strategy": "single"},
        "memory": {"offload_activations": True},
    },
    "fsdp": {"parallel": {"strategy": "fsdp"}},
    "fsdp, cpu_offload": {"parallel": {"strategy": "fsdp", "fsdp": {"cpu_offload": True}}},
}


def config_of_case(case: str, device: str, tiny: bool) -> Config:
    """GPT-2 124M in bf16 with the options of a case. Raises `ConfigError` for an option that the device does
    not have."""
    base = config_of("bf16", device, tiny).as_dict()
    return check(Draft({**base, **CASES[case]}))


def peak_memory(world: World, config: Config) -> int:
    """Bytes that the allocator of the device holds at most in some steps, beside those from before."""

    def run() -> None:
        spec = spec_of_config(config, world)
        stepper = build_stepper(spec, world)
        batches = itertools.repeat(spec.example())
        for step in range(1, STEPS + 1):
            stepper.step(step, batches)

    return _peak_on_gpu(run) if world.device.type == "cuda" else allocated_peak(run)


def _peak_on_gpu(run: Callable[[], None]) -> int:
    gc.collect()  # the model of the case before may be in reference cycles
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def peaks(device: str, tiny: bool) -> dict[str, Any]:
    """Peak and estimate of each case, or why there is none."""
    found: dict[str, Any] = {}
    plain = config_of("bf16", device, tiny)
    with open_world(plain) as world:
        for case in CASES:
            try:
                config = config_of_case(case, device, tiny)
                peak = peak_memory(world, config)
                found[case] = {"peak_bytes": peak, "estimate_bytes": estimate(config).total_bytes}
            except (ConfigError, RuntimeError) as error:
                found[case] = str(error).splitlines()[0]
    return found


def main() -> None:
    arguments = parser(__doc__).parse_args()
    print(json.dumps(peaks(arguments.device, arguments.tiny)))


if __name__ == "__main__":
    main()
