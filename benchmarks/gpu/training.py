"""The training runs of `make gpu`, by name: config, smaller config for a test, and figures.

    python -m benchmarks.gpu.training NAME --folder DIR [--device cuda] [--gpus N] [--tiny]

Prints the figures as one JSON object. Under torchrun each rank runs this module and rank 0 prints.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.arguments import parser
from benchmarks.gpu.attention import attention_operators
from benchmarks.gpu.idle_gaps import idle_gaps
from disttrain.config.config_tree import Config
from disttrain.config.parsing import Draft, check
from disttrain.engine.train import train
from disttrain.records.json_files import read_json
from disttrain.records.metrics import Metrics
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import open_world
from disttrain.runtime.run_output import RunOutput

VOCABULARY = 50_304
"""GPT-2's 50,257 tokens, rounded up to a multiple of 128."""
_TEXT = {"kind": "synthetic", "task": "language", "vocab": VOCABULARY, "seq_len": 1024, "samples": 512}
_GPT2 = {"kind": "gpt", "layers": 12, "width": 768, "heads": 12}
_STEPS = {"steps": 40, "log_every": 10}


def _gpt2(dtype: str, batch: int, accumulation: int = 1, steps: int = 40, **more: Any) -> dict[str, Any]:
    train_section = {
        **_STEPS,
        "steps": steps,
        "local_batch_size": batch,
        "global_batch_size": batch * accumulation,
    }
    return {"model": _GPT2, "data": _TEXT, "train": train_section, "precision": {"dtype": dtype}, **more}


RUNS: dict[str, dict[str, Any]] = {
    "gpt2-124m": _gpt2("bf16", 16, compile={"scope": "model"}),
    "gpt-1.3b": {
        "model": {"kind": "gpt", "layers": 24, "width": 2048, "heads": 16},
        "data": {**_TEXT, "seq_len": 2048},
        "train": {**_STEPS, "steps": 30, "local_batch_size": 8},
        "precision": {"dtype": "bf16"},
        "compile": {"scope": "blocks"},
    },
    "resnet50": {
        "model": {
            "kind": "resnet",
            "depth": 50,
            "transforms": ["channels_last"],
        },
        "data": {
            "kind": "synthetic",
            "shape": [3, 224, 224],
            "classes": 1000,
            "workers": 8,
            "samples": 20_000,
        },
        "train": {**_STEPS, "steps": 60, "local_batch_size": 256},
        "optim": {"name": "sgd", "lr": 0.1},
        "precision": {"dtype": "bf16"},
    },
    "fp32": _gpt2("fp32", 8),
    "tf32": _gpt2("tf32", 8),
    "bf16": _gpt2("bf16", 8),
    "fp16-accumulation": _gpt2("fp16", 4, accumulation=2),
    "ddp-shared": _gpt2("bf16", 4, steps=20, resources={"device": "shared"}),
    "profile": _gpt2("bf16", 16, profile={"steps": [20, 20]}),
}
"""One optimizer step of `fp16-accumulation` has the samples of one of `bf16`."""
SEVERAL_RANKS = {"bf16": "ddp", "resnet50": "ddp", "gpt-1.3b": "fsdp"}
"""Strategy of a run on several ranks."""
TINY: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 2, "width": 32, "heads": 2},
    "resnet": {"depth": 18, "width": 4},
    "language": {"vocab": 128, "seq_len": 16, "samples": 64},
    "images": {"shape": [3, 64, 64], "classes": 8, "samples": 64, "workers": 0},
}
"""Overrides of model and data for a test on a CPU."""


def config_of(name: str, device: str, tiny: bool, gpus: int = 1) -> Config:
    """The config of run `name` on the ranks of this process's world, or with DataParallel on `gpus` GPUs of
    one rank. On a CPU, fp16 and tf32 become bf16 and fp32, and a compiled model is captured without
    inductor."""
    given = copy.deepcopy(RUNS[name])
    given["data"]["valid_samples"] = 0
    given["telemetry"] = {"warmup_steps": 10, "profiled_steps": 0, "sinks": [], "gpu_every_s": 0.2}
    shape = {"nodes": rank_info().nodes, "gpus_per_node": rank_info().local_size * gpus}
    given["resources"] = {"device": device, **given.get("resources", {}), **shape}
    if tiny:
        given["model"].update(TINY[given["model"]["kind"]])
        given["data"].update(TINY["language" if given["data"].get("task") else "images"])
        accumulation = given["train"].get("global_batch_size", 1) // given["train"]["local_batch_size"] or 1
        given["train"] = {"steps": 6, "local_batch_size": 2, "global_batch_size": 2 * accumulation}
        given["telemetry"]["warmup_steps"] = 2
        if "profile" in given:
            given["profile"] = {"steps": [4, 4]}
    if gpus > 1:
        given["parallel"] = {"strategy": "dp"}
        given["train"]["local_batch_size"] *= gpus  # DataParallel divides it among the GPUs
    elif rank_info().size > 1 and name in SEVERAL_RANKS:
        given["parallel"] = {"strategy": SEVERAL_RANKS[name]}
    if "global_batch_size" in given["train"]:
        given["train"]["global_batch_size"] *= rank_info().size * gpus
    if device == "cpu":
        given["resources"]["device"] = "cpu"
        dtype = given["precision"]["dtype"]
        given["precision"]["dtype"] = {"fp16": "bf16", "tf32": "fp32"}.get(dtype, dtype)
        if "compile" in given:
            given["compile"]["backend"] = "aot_eager"
    return check(Draft(given))


def figures_of(metrics: Metrics, output: RunOutput) -> dict[str, Any]:
    """Figures of a run, NVML fields without a value and, of a profiled run, the idle gaps of the device and
    the attention operators."""
    found: dict[str, Any] = metrics.model_dump(mode="json", include={
        "device", "precision", "strategy", "world_size", "local_batch_size", "accumulation", "parameters",
        "measured_steps", "samples_per_s", "tokens_per_s", "model_flops_per_s_per_rank", "peak_flops", "mfu",
        "peak_memory_bytes", "peak_reserved_memory_bytes", "composition", "comm_method", "gpu",
        "null_reasons",
    })  # fmt: skip
    found["step_p50_s"] = metrics.step_time.p50_s if metrics.step_time else None
    devices = output.attempt.gpu_devices(0)
    if devices.exists():
        found["nvml_devices"] = read_json(devices)
    trace = output.attempt.trace(0)
    if trace.exists():
        found["profile"] = idle_gaps(trace)
        found["attention"] = attention_operators(trace)
    return found


def measure(name: str, folder: Path, device: str, tiny: bool, gpus: int = 1) -> dict[str, Any] | None:
    """Train run `name` in `folder` and return its figures on rank 0, None on the others."""
    config = config_of(name, device, tiny, gpus)
    output = RunOutput.of_job(folder, 0)
    with open_world(config) as world:
        if world.rank == 0:
            output.attempt.path.mkdir(parents=True, exist_ok=True)
        world.on_all_ranks(lambda: None)
        metrics = train(config, output, world)
        return figures_of(metrics, output) if world.rank == 0 else None


def main() -> None:
    options = parser(__doc__)
    options.add_argument("name", choices=RUNS)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--gpus", type=int, default=1, help="of one rank: DataParallel")
    arguments = options.parse_args()
    found = measure(arguments.name, arguments.folder, arguments.device, arguments.tiny, arguments.gpus)
    if found is not None:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
