"""What commands of `submit.py` cost: wall time, processor time and memory, interpreter start included.

    python -m benchmarks.commands [NAME ...] [--repeats 5] [--save LABEL]

| name | command | goal |
|---|---|---|
| `help` | `--help` | 0.25 s |
| `status`, `status-json` | `status` of 10,000 runs that are done, running, queued and failed | 3 s |
| `dry-run`, `dry-run-local` | `sweep --dry-run` of 10,000 runs on five axes, on Slurm and here | 10 s |
| `report` | `report` of 1,000 runs of two ranks and 200 steps | 12 s, 600 MB |
| `report-wide` | `report` of a run of 512 ranks and 1,000 steps beside one of 8 | 10 s |
| `cluster-up` | `cluster up` of four nodes; as root, not among the defaults | 10 s |

Each command runs once uncounted, which fills the file cache and writes the byte code.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import result_record
from disttrain.records.collect_provenance import code_hash
from tests.support.fake_runs import fake_run
from tests.support.states import make_run

SUBMIT = result_record.ROOT / "submit.py"
RUNS = 10_000
STATES = ("done", "done", "done", "running", "queued", "failed")
SWEEP = """\
model: {kind: gpt, layers: 4, width: 128}
data: {kind: text}
train: {steps: 300, local_batch_size: 16}
optim: {schedule: cosine, warmup_steps: 20}
sweep:
  repeats: 5
  axes:
    resources.nodes: [1, 2, 4, 8]
    parallel.ddp.bucket_mb: [1, 5, 10, 25, 50]
    train.local_batch_size: [1, 2, 4, 8, 16]
    optim.lr: [1e-4, 2e-4, 5e-4, 1e-3, 2e-3]
    train.seed: [0, 1, 2, 3]
"""
CLUSTER = f"b{os.getpid()}"


def states(folder: Path, *flags: str) -> list[str]:
    code = code_hash()
    for number in range(RUNS):
        make_run(folder, f"many/n{number}", STATES[number % len(STATES)], code=code)
    return ["status", "--runs", str(folder), *flags]


def large_sweep(folder: Path, cluster: str) -> list[str]:
    file = folder / "large.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return ["sweep", str(file), "--dry-run", "--cluster", cluster, "--runs", str(folder / "runs")]


def report(folder: Path, sizes: list[tuple[int, int]], repeats: int, steps: int) -> list[str]:
    """`sizes`: nodes and ranks of a node."""
    for nodes, ranks in sizes:
        for repeat in range(repeats):
            run = folder / "sweep" / f"n{nodes}-r{repeat}"
            fake_run(run, nodes=nodes, gpus_per_node=ranks, repeat=repeat, steps=steps, all_ranks=True)
    return ["report", "sweep", "--runs", str(folder)]


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "help": lambda folder: ["--help"],
    "status": states,
    "status-json": lambda folder: states(folder, "--json"),
    "dry-run": lambda folder: large_sweep(folder, "slurm"),
    "dry-run-local": lambda folder: large_sweep(folder, "local"),
    "report": lambda folder: report(folder, [(1, 2), (2, 1)], 500, 200),
    "report-wide": lambda folder: report(folder, [(1, 8), (64, 8)], 1, 1000),
    "cluster-up": lambda folder: ["cluster", "up", "--name", CLUSTER],
}
"""What prepares the files of a command in an empty folder and returns its arguments."""
AFTER = {"cluster-up": ["cluster", "down", "--name", CLUSTER]}
"""What undoes each run of a command."""


def figures(raw: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """By command, medians over its runs and the extremes of the wall time."""
    return {
        name: {key: statistics.median(values) for key, values in taken.items()}
        | {"least_wall_s": min(taken["wall_s"]), "most_wall_s": max(taken["wall_s"])}
        for name, taken in raw.items()
    }


def once(arguments: list[str], folder: Path) -> dict[str, float]:
    """Wall time, processor time of all processes, and memory of the largest one of a run of `submit.py`."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(SUBMIT), *arguments], stdout=subprocess.DEVNULL, cwd=folder
    )
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    if status:
        raise RuntimeError(f"submit.py {' '.join(arguments)}: {os.waitstatus_to_exitcode(status)}")
    process.returncode = 0
    return {"wall_s": wall_s, "processor_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}


def measure(name: str, repeats: int) -> dict[str, list[float]]:
    """Figures of each run of a command but the first."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        arguments, taken = COMMANDS[name](folder), []
        for _ in range(repeats + 1):
            taken.append(once(arguments, folder))
            if name in AFTER:
                once(AFTER[name], folder)
    return {key: [run[key] for run in taken[1:]] for key in taken[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all but {', '.join(AFTER)}")
    parser.add_argument("--repeats", type=int, default=5)
    result_record.add_option(parser)
    given = parser.parse_args()
    if unknown := set(given.names) - set(COMMANDS):
        parser.error(f"{min(unknown)}: no such command; there are {', '.join(COMMANDS)}")
    raw = {}
    for name in given.names or [each for each in COMMANDS if each not in AFTER]:
        raw[name] = measure(name, given.repeats)
        print(name, "  ".join(f"{key} {value:.2f}" for key, value in figures(raw)[name].items()), flush=True)
    result_record.save("commands", given.save, figures(raw), raw, ("numpy", "pandas", "matplotlib"))


if __name__ == "__main__":
    main()
