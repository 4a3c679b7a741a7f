"""The bubble of a pipeline of equal stages, from the step records of the trainer, beside the formula.

    torchrun --nproc-per-node 4 -m benchmarks.pipeline_bubble [--save LABEL]

Each rank is a stage, which sleeps in its passes: 20 ms forward and 40 ms backward for a micro-batch. The
bubble of a step is its exposed communication / its duration, mean over the ranks, and that of a case is the
median over its steps. The formula is (p - 1) / (m + p - 1), with p stages and m micro-batches. A busy machine
wakes sleepers late, which also makes the stages unequal.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import result_record
from disttrain.config.config_tree import Config
from disttrain.config.sections.job import ResourcesConfig
from disttrain.engine.train import train
from disttrain.records.json_files import read_jsonl
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World, open_world
from disttrain.runtime.run_output import RunOutput

FORWARD_S, BACKWARD_S = 0.020, 0.040
STEPS, WARM_UP = 12, 2
CLASSES = 2
MICRO_BATCHES = (4, 8, 16)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        time.sleep(BACKWARD_S)
        return gradient.clone()


class SleepingStage(nn.Module):
    """Sleeps in each pass; every stage of the model is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def pipeline_stage(self, stage: int, stages: int) -> nn.Module:
        self.scale = nn.ParameterDict({str(stage): self.weight})
        del self.weight
        return self

    def forward(self, x: Tensor) -> Tensor:
        weight = next(iter(self.parameters()))
        output: Tensor = _Sleep.apply(x * weight)
        return output


def formula(stages: int, micro_batches: int) -> float:
    """Idle share of the schedule (Huang et al. 2019, arXiv:1811.06965, section 2.3)."""
    return (stages - 1) / (micro_batches + stages - 1)


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Measured bubble and formula by case, in percent, and the largest difference."""
    cases = {}
    for name, case in raw["cases"].items():
        by_step = zip(*case["exposed_and_step_s"], strict=True)
        measured = statistics.median(
            statistics.mean(exposed / step for exposed, step in ranks) for ranks in by_step
        )
        expected = formula(raw["stages"], case["micro_batches"])
        cases[name] = {
            "measured_percent": round(100 * measured, 2),
            "formula_percent": round(100 * expected, 2),
            "difference_points": round(100 * (measured - expected), 2),
        }
    largest = max(abs(case["difference_points"]) for case in cases.values())
    return {"stages": raw["stages"], "cases": cases, "largest_difference_points": largest}


def measure(world: World, folder: Path, schedule: str, micro_batches: int) -> list[list[tuple[float, float]]]:
    """(exposed communication, duration) in seconds, by rank and measured step. All ranks together."""
    output = RunOutput.of_job(folder / f"{schedule}-{micro_batches}", 0)
    config = Config.model_validate(
        {
            "model": {"kind": "benchmarks.pipeline_bubble:SleepingStage"},
            "data": {"kind": "synthetic", "shape": [CLASSES], "classes": CLASSES, "valid_samples": 0},
            "train": {"steps": STEPS, "local_batch_size": 1, "global_batch_size": micro_batches},
            "precision": {"on_non_finite": "ignore"},
            "parallel": {
                "strategy": "pipeline",
                "pipeline": {"stages": world.size, "schedule": schedule},
            },
            "resources": {"gpus_per_node": world.size, "device": "cpu"},
            "telemetry": {"warmup_steps": WARM_UP, "sinks": [], "gpu_every_s": 0},
        }
    )
    train(config, output, world)
    world.all_gather_object(None)  # every rank has written its records
    found = []
    for rank in range(world.size):
        steps = [step for step in read_jsonl(output.attempt.steps(rank)) if step["step"] > WARM_UP]
        found.append([(step["comm_exposed_s"], step["step_s"]) for step in steps])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    result_record.add_option(parser)
    arguments = parser.parse_args()
    info = rank_info()
    config = Config(resources=ResourcesConfig(gpus_per_node=info.local_size, device="cpu"))
    raw: dict[str, Any] = {"stages": info.size, "cases": {}}
    with open_world(config) as world:
        folder = Path(world.all_gather_object(tempfile.mkdtemp(prefix="pipeline-bubble-"))[0])
        for schedule in ("gpipe", "1f1b"):
            for micro_batches in MICRO_BATCHES:
                taken = measure(world, folder, schedule, micro_batches)
                name = f"{schedule}-{micro_batches}"
                raw["cases"][name] = {"micro_batches": micro_batches, "exposed_and_step_s": taken}
    if info.rank == 0:
        found = figures(raw)
        for name, case in found["cases"].items():
            print(name, case)
        print("largest difference:", found["largest_difference_points"], "points")
        result_record.save("pipeline_bubble", arguments.save, found, raw)


if __name__ == "__main__":
    main()
