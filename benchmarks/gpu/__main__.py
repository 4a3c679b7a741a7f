"""`make gpu`: tests, rates and training runs on the GPU of this machine, cheapest first.

    python -m benchmarks.gpu [--folder DIR] [--only PART ...] [--limit-s 530]
    python -m benchmarks.gpu --tiny --device cpu       every part in seconds on a CPU: a test of this program

With several GPUs and a longer --limit-s, training runs on 2, 4 and 8 of them follow; --only runs them too.

Each part is a process with a time limit of its own. Its result is written to `DIR/PART.json` as soon as it
ends, and its output to `DIR/PART.log`; a part that fails or runs out of time does not affect the others. On a
machine without a GPU the program says so and exits with code 0. Otherwise the exit code is the number of
parts that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.result_record import RESULTS, ROOT, provenance

LIMIT_S = 530.0
"""Seconds of all parts together: below the 10 minutes that shared machines lend."""


@dataclass(frozen=True)
class Part:
    """One process; its last line of output is its result if that line is a JSON object."""

    name: str
    limit_s: float
    module: str
    """Arguments of the interpreter, after which `--device` and `--tiny` are given."""
    options: bool = True
    """Whether the module takes `--device` and `--tiny`."""

    def command(self, device: str, tiny: bool, folder: Path) -> list[str]:
        words = [word.replace("FOLDER", str(folder / self.name)) for word in shlex.split(self.module)]
        given = ["--device", device, *(["--tiny"] if tiny else [])] if self.options else []
        return [sys.executable, *words, *given]


def training(name: str, limit_s: float, ranks: int = 1, part: str = "", options: str = "") -> Part:
    """A run of `benchmarks.gpu.training`; `part`: name of the part if not that of the run."""
    several = f"-m torch.distributed.run --standalone --nproc-per-node={ranks} " if ranks > 1 else ""
    module = f"{several}-m benchmarks.gpu.training {name} --folder FOLDER {options}"
    return Part(part or name, limit_s, module)


def several_gpu_parts(gpus: int) -> tuple[Part, ...]:
    """Runs on 2, 4 and 8 of the GPUs of this machine."""
    found = []
    for count in (count for count in (2, 4, 8) if count <= gpus):
        found += [
            training(name, limit_s, count, f"{name}-on-{count}-gpus")
            for name, limit_s in (("bf16", 90), ("resnet50", 90), ("gpt-1.3b", 150))
        ]
        found.append(training("bf16", 90, part=f"bf16-dp-on-{count}-gpus", options=f"--gpus {count}"))
    return tuple(found)


PARTS = (
    Part("matmul", 40, "-m benchmarks.gpu.matmul"),
    Part("attention", 30, "-m benchmarks.gpu.attention"),
    Part("tests", 120, "-m pytest tests/gpu -q -p no:xdist -p no:cacheprovider", options=False),
    Part("memory", 45, "-m benchmarks.gpu.memory"),
    training("bf16", 45),
    training("fp32", 45),
    training("tf32", 45),
    training("fp16-accumulation", 45),
    training("profile", 45),
    training("ddp-shared", 60, ranks=2),
    training("resnet50", 75),
    Part("overhead", 75, "-m benchmarks.trainer single --peers bare --launches 2 --rounds 10"),
    training("gpt2-124m", 110),
    training("gpt-1.3b", 110),
)
"""In this order. Their limits exceed `LIMIT_S` in sum: a part gets at most the time that is left."""


def run_part(part: Part, command: Sequence[str], folder: Path, limit_s: float) -> dict[str, Any]:
    """Run a part for at most `limit_s` seconds; write and return its record."""
    began = time.monotonic()
    log = folder / f"{part.name}.log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    lines = log.read_text(errors="replace").splitlines()
    record = {
        "part": part.name,
        "status": "timeout" if code is None else "ok" if code == 0 else "failed",
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 1),
        "limit_s": round(limit_s, 1),
        "command": list(command),
        "result": _json(lines[-1]) if lines else None,
        "last_lines": lines[-5:],
    }
    (folder / f"{part.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the part's process group, loader processes and ranks included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _json(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def run_all(
    parts: Sequence[Part], folder: Path, device: str, tiny: bool, limit_s: float
) -> list[dict[str, Any]]:
    """Run the parts in order; a part for which less than 5 s are left is recorded as not started."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text(json.dumps(provenance(("torch",)), indent=1) + "\n")
    ends = time.monotonic() + limit_s
    records = []
    for part in parts:
        left = ends - time.monotonic()
        if left < 5:
            record: dict[str, Any] = {"part": part.name, "status": "not started", "seconds": 0.0}
            (folder / f"{part.name}.json").write_text(json.dumps(record) + "\n")
        else:
            record = run_part(part, part.command(device, tiny, folder), folder, min(part.limit_s, left))
        records.append(record)
        print(
            f"{part.name:18} {record['status']:12} {record['seconds']:6.1f} s  {_headline(record)}",
            flush=True,
        )
    return records


def _headline(record: dict[str, Any]) -> str:
    """Main figures of a part, or the last line of a part that failed."""
    result = record.get("result")
    if not result:
        return (record.get("last_lines") or [""])[-1][:120]
    names = ("mfu", "tokens_per_s", "samples_per_s", "peak_memory_bytes")
    found = [f"{name}={result[name]:.4g}" for name in names if result.get(name) is not None]
    rates = {key: value["flops_per_s"] for key, value in result.items() if _is_rate(value)}
    return " ".join(found + [f"{dtype}={rate / 1e12:.1f} TFLOP/s" for dtype, rate in rates.items()])


def _is_rate(value: Any) -> bool:
    return isinstance(value, dict) and "flops_per_s" in value


def main(argv: Sequence[str] | None = None) -> int:
    import torch

    gpus = torch.cuda.device_count()
    every = [*PARTS, *several_gpu_parts(gpus)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="default: benchmarks/results/gpu/TIME")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in every], metavar="PART")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds of all parts together")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a test of this program")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not gpus:
        print("gpu: CUDA finds no GPU on this machine; nothing was run")
        return 0
    folder = arguments.folder or RESULTS / "gpu" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    wanted = arguments.only or [part.name for part in (every if arguments.limit_s > LIMIT_S else PARTS)]
    parts = [part for part in every if part.name in wanted]
    records = run_all(parts, folder.resolve(), arguments.device, arguments.tiny, arguments.limit_s)
    print(f"results: {folder}")
    return sum(record["status"] != "ok" for record in records)


if __name__ == "__main__":
    sys.exit(main())
