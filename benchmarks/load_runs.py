"""Time and peak memory of reading many runs: `python benchmarks/load_runs.py [--runs 1000]`.

Goal: 1,000 runs of 8 ranks and 1,000 steps in under 10 s and 1 GB on two cores. The runs, with 3 GB of step
records, are made in a temporary folder. Each reading is a process of its own:

- `cold`: table of runs and sums of each rank; the cache is empty and is written.
- `warm`: the same from the cache, whose keys are hashes of the step records.
- `frames`: all steps as one frame, which parses the step records again: the sums alone are cached by then.

Processor time counts the reading processes; peak memory is that of the program plus that of the largest
reading process times their number.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks and tests are not installed

from benchmarks import result_record, timing
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_run

READINGS = ("cold", "warm", "frames")


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Wall time in seconds, least processor time and peak memory of each reading."""
    found = {name: raw[name] for name in ("runs", "ranks", "steps")}
    found["records_gb"] = round(raw["records_bytes"] / 1e9, 2)
    for reading in READINGS:
        found |= {f"{reading}_{name}": value for name, value in timing.summary(raw[f"{reading}_s"]).items()}
        found[f"{reading}_cpu_s"] = round(min(raw[f"{reading}_cpu_s"]), 1)
        found[f"{reading}_peak_gb"] = round(max(raw[f"{reading}_peak_bytes"]) / 1e9, 2)
    return found


def make_runs(sweep: Path, runs: int, ranks: int, steps: int) -> int:
    """Write the runs, whose step records differ in the first line; the bytes of all step records."""
    source = random.Random(0)
    bodies = ["".join(_line(source, step) for step in range(2, steps + 1)) for _ in range(ranks)]
    total = 0
    for number in range(runs):
        run = fake_run(sweep / f"n{number}", nodes=1, gpus_per_node=ranks, steps=steps, repeat=number)
        for rank, body in enumerate(bodies):
            content = (_line(source, 1) + body).encode()
            run.attempt(0).steps(rank).write_bytes(content)
            total += len(content)
    return total


def _line(source: random.Random, step: int) -> str:
    phases = {name: round(source.gauss(0.05, 0.005), 6) for name in PHASES}
    record = {
        "schema_version": 1,
        "step": step,
        "start_s": round(0.35 * step, 6),
        "step_s": round(sum(phases.values()), 6),
        **phases,
        "comm_exposed_s": round(phases["comm_wait_s"] + phases["comm_transfer_s"], 6),
        "samples": 64,
        "loss": source.random(),
        "lr": 3e-4 * source.random(),
        "grad_norm": source.random(),
        "skipped": False,
    }
    return json.dumps(record) + "\n"


def read(sweep: Path, reading: str) -> None:
    """Read the runs in this process and print what it took as JSON."""
    start = time.perf_counter()
    from analysis.runs.frames import load_frames
    from analysis.runs.load import load
    from analysis.runs.rank_summaries import summarize_ranks

    frame = load_frames([sweep]).steps if reading == "frames" else summarize_ranks(load([sweep]))[0]
    rows = len(frame)
    taken_s = time.perf_counter() - start
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peaks_kib = [used[0].ru_maxrss, used[1].ru_maxrss * len(os.sched_getaffinity(0))]
    found = {"rows": rows, "taken_s": taken_s, "cpu_s": sum(each.ru_utime + each.ru_stime for each in used)}
    print(json.dumps(found | {"peak_bytes": sum(peaks_kib) * 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--read", nargs=2, metavar=("SWEEP", "READING"), help=argparse.SUPPRESS)
    result_record.add_option(parser)
    given = parser.parse_args()
    if given.read:
        read(Path(given.read[0]), given.read[1])
        return
    raw: dict[str, Any] = {"runs": given.runs, "ranks": given.ranks, "steps": given.steps}
    with tempfile.TemporaryDirectory(prefix="load-runs-") as folder:
        sweep = Path(folder) / "many"
        raw["records_bytes"] = make_runs(sweep, given.runs, given.ranks, given.steps)
        print(f"{given.runs} runs, {raw['records_bytes'] / 1e9:.2f} GB of step records")
        for reading in READINGS:
            measured = [_measured(sweep, reading) for _ in range(given.repeats)]
            raw[f"{reading}_s"] = [each["taken_s"] for each in measured]
            raw[f"{reading}_cpu_s"] = [each["cpu_s"] for each in measured]
            raw[f"{reading}_peak_bytes"] = [each["peak_bytes"] for each in measured]
            peak_gb = max(raw[f"{reading}_peak_bytes"]) / 1e9
            times = ", ".join(f"{taken_s:.1f}" for taken_s in raw[f"{reading}_s"])
            print(
                f"{reading}: {measured[0]['rows']} rows in {times} s, "
                f"{min(raw[f'{reading}_cpu_s']):.1f} s of processor time, at most {peak_gb:.2f} GB",
                flush=True,
            )
    result_record.save("load_runs", given.save, figures(raw), raw, packages=("numpy", "pandas", "pyarrow"))


def _measured(sweep: Path, reading: str) -> dict[str, Any]:
    if reading == "cold":
        for path in (sweep / ".analysis-cache").glob("*.parquet"):
            path.unlink()
    command = [sys.executable, __file__, "--read", str(sweep), reading]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
