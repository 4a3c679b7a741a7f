"""Peak memory of a training step with each option of the section `memory`, beside the estimate of `--memory`.

    python -m benchmarks.memory [--save LABEL] [--device cuda]

A GPT of 8 layers takes a forward and a backward pass of 8 x 256 tokens over 16,384 classes. Each option runs
in a process of its own. The peak is counted from the state before the pass, in which weights and gradients
exist: the growth of the resident set on the CPU, `max_memory_allocated` on a GPU. Other load on the machine
does not change it. The resident set also holds heap that is free and workspaces of libraries, so the estimate
is compared with the bytes that PyTorch's allocator holds, in one more pass.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import result_record
from disttrain.config.config_tree import Config
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.memory_estimate import estimate
from disttrain.engine.memory_limits import resident_bytes
from disttrain.engine.objective import Task
from disttrain.runtime.device import peak_memory_bytes, reset_peak_memory
from disttrain.transforms import transforms_of
from tests.support.step_memory import allocated_peak

SAMPLES = 8
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"activation_checkpointing": "selective"},
    "every-2": {"activation_checkpointing": "every-n", "every_blocks": 2},
    "full": {"activation_checkpointing": "full"},
    "loss-chunks": {"loss_chunk_tokens": 256},
    "full-and-loss-chunks": {"activation_checkpointing": "full", "loss_chunk_tokens": 256},
}
ON_GPU = {"offload": {"offload_activations": True}}


def config_of(case: str, device: str) -> Config:
    """The config of a case. With accumulation, as gradients exist before the pass."""
    return Config.model_validate(
        {
            "model": {"kind": "gpt", "layers": 8, "width": 256, "heads": 4},
            "data": {"kind": "synthetic", "task": "language", "vocab": 16384, "seq_len": 256},
            "train": {"steps": 1, "local_batch_size": SAMPLES, "global_batch_size": 2 * SAMPLES},
            "memory": (CASES | ON_GPU)[case],
            "resources": {"device": device},
        }
    )


def measure(case: str, device: torch.device) -> dict[str, int]:
    """Peak bytes of a pass beside weights and gradients, and the estimate."""
    config = config_of(case, device.type)
    torch.manual_seed(0)
    source = build_source(config.data)
    model = build_model(config.model, source).to(device)
    for transform in transforms_of(config, device):
        model = transform(model)
    task = Task.of(source, config.memory.loss_in_model)
    sample = source.train[0]
    _pass(model, task, sample, 1, device)  # gradients, and memory of libraries
    ctypes.CDLL(None).malloc_trim(0)
    before = torch.cuda.memory_allocated() if device.type == "cuda" else resident_bytes()
    reset_peak_memory(device)
    _pass(model, task, sample, SAMPLES, device)
    peak = peak_memory_bytes(device) - before
    allocated = peak
    if device.type == "cpu":
        allocated = allocated_peak(lambda: _pass(model, task, sample, SAMPLES, device))
    found = {"peak_bytes": peak, "allocated_bytes": allocated}
    return {**found, "estimate_bytes": estimate(config).activations_bytes}


def _pass(
    model: nn.Module, task: Task, sample: tuple[Tensor, Tensor], samples: int, device: torch.device
) -> None:
    batch = tuple(value.expand(samples, *value.shape).contiguous().to(device) for value in sample)
    task.batch_loss(model, (batch[0], batch[1])).backward()


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Peaks in MiB, their reduction against no option, and the error of the estimate, in percent."""
    cases = raw["cases"]
    before = cases["none"]["peak_bytes"]
    made = {
        name: {
            "peak_mib": round(case["peak_bytes"] / 2**20, 1),
            "allocated_mib": round(case["allocated_bytes"] / 2**20, 1),
            "reduction_percent": round(100 * (1 - case["peak_bytes"] / before), 1),
            "estimate_error_percent": round(100 * (case["estimate_bytes"] / case["allocated_bytes"] - 1), 1),
        }
        for name, case in cases.items()
    }
    largest = max(abs(case["estimate_error_percent"]) for case in made.values())
    return {"cases": made, "largest_estimate_error_percent": largest}


def main() -> None:
    """Measure every case, print and save the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--case", choices=[*CASES, *ON_GPU], help="measure this case in this process")
    result_record.add_option(parser)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, torch.device(arguments.device))))
        return
    cases = {}
    for name in CASES if arguments.device == "cpu" else CASES | ON_GPU:
        command = [sys.executable, "-m", "benchmarks.memory", "--device", arguments.device, "--case", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        cases[name] = json.loads(done.stdout.splitlines()[-1])
    raw = {"device": arguments.device, "cases": cases}
    found = figures(raw)
    print(json.dumps(found, indent=2))
    result_record.save("memory", arguments.save, found, raw)


if __name__ == "__main__":
    main()
