"""Compare the losses of two code trees bit by bit: 50 steps on 1, 2 and 3 ranks.

GPT and ResNet under DDP; GPT under FSDP, as a pipeline, and resumed from the checkpoint of step 20.

    python -m benchmarks.bitwise --code ../before --out benchmarks/results/bitwise-losses.json
    python -m benchmarks.bitwise --compare benchmarks/results/bitwise-losses.json

Each training is a `torchrun -m disttrain` of its own on this machine's CPU. The file holds the loss of every
step on every rank and the validation losses, as Python prints them, so that equal text is an equal float64.
Sums depend on the order of additions in a kernel, so only files of one machine and one torch can be compared.
`--compare` exits with 1 and names the first loss that differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.result_record import ROOT, provenance

STEPS = 50
RESUMED_STEP = 20
"""A training `resumed` takes the steps after this one a second time, from the checkpoint of this step."""
RANKS = (1, 2, 3)
ONLY_RANKS = {"fsdp": (2, 3), "pipeline": (2,), "resumed": (1, 2)}

_COMMON: dict[str, Any] = {
    "resources": {"device": "cpu"},
    "telemetry": {"warmup_steps": 5, "sinks": []},
}
_GPT: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 2, "width": 64, "heads": 4, "dropout": 0.1},
    "data": {"kind": "text", "seq_len": 32},
    "optim": {"name": "adamw", "lr": 3e-3, "grad_clip": 1.0, "schedule": "cosine", "warmup_steps": 5},
    "accumulation": 2,
    "local": 4,
}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": _GPT,
    "fsdp": {**_GPT, "parallel": {"strategy": "fsdp"}},
    "pipeline": {
        **_GPT,
        "model": {**_GPT["model"], "tie_weights": False},
        "parallel": {"strategy": "pipeline", "pipeline": {"stages": 2}},
    },
    "resumed": {**_GPT, "checkpoint": {"every_steps": RESUMED_STEP, "keep": 9}},
    "resnet": {
        "model": {"kind": "resnet", "depth": 18, "width": 8},
        "data": {"kind": "digits"},
        "optim": {"name": "sgd", "lr": 0.05, "weight_decay": 1e-4},
        "accumulation": 1,
        "local": 8,
    },
}


def main() -> int:
    arguments = _parse_arguments()
    losses = {
        f"{model} on {ranks}": train(arguments.code.resolve(), model, ranks)
        for model in MODELS
        for ranks in ONLY_RANKS.get(model, RANKS)
        if not arguments.only or f"{model} on {ranks}" in arguments.only
    }
    if arguments.out:
        record = {**provenance(["torch"], arguments.code), "losses": losses}
        arguments.out.write_text(json.dumps(record, separators=(",", ":")) + "\n")
    if not arguments.compare:
        return 0
    known = json.loads(arguments.compare.read_text())
    if difference := first_difference(known["losses"], losses):
        print(f"not the same as {known['commit']}: {difference}")
        return 1
    values = sum(len(each) for run in losses.values() for each in run.values())
    print(f"bitwise the same as {known['commit']}: {values} losses of {len(losses)} trainings")
    return 0


def train(code: Path, model: str, ranks: int) -> dict[str, list[str]]:
    """The losses of one training: of each rank by step, and those of the validations."""
    chosen = dict(MODELS[model])
    local, accumulation = chosen.pop("local"), chosen.pop("accumulation")
    batch = {"local_batch_size": local, "global_batch_size": local * accumulation * ranks}
    config = {
        **_COMMON,
        **chosen,
        "train": {"steps": STEPS, "seed": 7, "eval_every": 20, "eval_samples": 64, **batch},
    }
    with tempfile.TemporaryDirectory(prefix="bitwise-") as scratch:
        config_file, run = Path(scratch) / "config.yaml", Path(scratch) / "run"
        config_file.write_text(yaml.safe_dump(config))
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
            *("-m", "disttrain", "--config", str(config_file), "--run-dir", str(run)),
        ]
        environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
        for _ in range(2 if model == "resumed" else 1):
            for checkpoint in run.glob("checkpoints/step-*"):
                if int(checkpoint.name.removeprefix("step-")) > RESUMED_STEP:
                    shutil.rmtree(checkpoint)
            done = subprocess.run(command, cwd=code, env=environment, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(f"{model} on {ranks} ranks failed:\n{done.stderr}")
        return read_losses(run, ranks)


def read_losses(run: Path, ranks: int) -> dict[str, list[str]]:
    """The losses in a run directory, as text."""
    found = {}
    for rank in range(ranks):
        files = sorted(run.glob(f"attempts/*/steps-{rank:05d}.jsonl"))
        steps = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        again = range(RESUMED_STEP + 1, STEPS + 1) if len(files) > 1 else ()
        if [step["step"] for step in steps] != [*range(1, STEPS + 1), *again]:
            raise SystemExit(f"{run}: rank {rank} lacks records of some of {STEPS} steps")
        found[f"rank {rank}"] = [repr(step["loss"]) for step in steps]
    evaluations = json.loads((run / "metrics.json").read_text())["eval_history"]
    found["validation"] = [repr(point["loss"]) for point in evaluations]
    return found


def first_difference(known: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first loss that differs between two files' `losses`, as one line; None if all are equal."""
    for training, series in found.items():
        for name, values in known[training].items():
            others = series.get(name, [])
            for index, value in enumerate(values):
                other = others[index] if index < len(others) else None
                if value != other:
                    return f"{training} ranks, {name}, number {index + 1}: {value} before, {other} now"
    return None


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--code", type=Path, default=ROOT, help="source tree of `disttrain`")
    parser.add_argument("--out", type=Path, help="write the losses to this JSON file")
    parser.add_argument("--compare", type=Path, help="compare with this JSON file")
    parser.add_argument("--only", nargs="+", help="only these trainings, such as 'gpt on 3'")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
