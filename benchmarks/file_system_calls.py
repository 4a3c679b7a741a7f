"""Calls to the shared file system of each node while it trains: `python -m benchmarks.file_system_calls`.

Goal: under 10 metadata calls per minute on a node other than node 0, since these calls grow with the size of
a job. Two agents with two ranks each train on this machine under `strace`. Metadata calls name a path below
the runs folder, or list a directory there; data calls write to an open file there. Node 0 also rewrites the
progress and the summary of the run, and looks for the user's `STOP` file. Intervals grow with the age of the
run: `--after 0 --seconds 60` counts the first minute.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import result_record
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir
from sweeps.expand import RunPlan, SweepPlan
from tests.support.jobs import FakeScheduler, agent_environment, submit

NODES, RANKS_PER_NODE = 2, 2
DATA_CALLS = frozenset({"write", "pwrite64", "writev", "fsync", "fdatasync", "ftruncate"})
TRACED = ",".join(["%file", "getdents64", *sorted(DATA_CALLS)])
_LINE = re.compile(r"^\d+ +(?P<time>[\d.]+) (?P<call>\w+)\(")


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Calls per minute of node 0 and of the other node."""
    minutes = raw["seconds"] / 60
    found: dict[str, Any] = {"seconds_s": raw["seconds"], "steps": raw["steps"]}
    for name, calls in (("node_0", raw["calls"][0]), ("other_node", raw["calls"][1])):
        data = sum(count for call, count in calls.items() if call in DATA_CALLS)
        found[f"{name}_metadata_calls"] = round((sum(calls.values()) - data) / minutes, 1)
        found[f"{name}_data_calls"] = round(data / minutes, 1)
    return found


def count_calls(lines: Iterable[str], below: str, first_s: float, last_s: float) -> Counter[str]:
    """Calls in the output of `strace -f -ttt -y` that name `below`, between two times since the epoch."""
    counts: Counter[str] = Counter()
    for line in lines:
        found = _LINE.match(line)
        if found and below in line and first_s <= float(found["time"]) < last_s:
            counts[found["call"]] += 1
    return counts


def plan() -> SweepPlan:
    """A run of steps of a tenth of a second, which ends when it is asked to."""
    config = Config.model_validate(
        {
            "model": {"kind": "tests.support.small_models:SlowDeep", "slow_s": 0.1},
            "data": {"kind": "tests.support.small_models:source"},
            "train": {"steps": 100_000, "local_batch_size": 4, "global_batch_size": 16},
            "resources": {"nodes": NODES, "gpus_per_node": RANKS_PER_NODE, "device": "cpu"},
            "job": {"time_limit_min": 60},
        }
    )
    ranks = NODES * RANKS_PER_NODE
    return SweepPlan("calls", {}, (RunPlan("n2", config, config_key(config), 0, {}, BatchPlan(4, 1, ranks)),))


def start(folder: Path, run: RunDir, node: int) -> subprocess.Popen[bytes]:
    """The agent of one node under `strace`, whose output is `strace-N` in `folder`."""
    trace = ["strace", "-f", "-ttt", "-y", "-qq", "--seccomp-bpf", "-e", f"trace={TRACED}"]
    agent = [sys.executable, "-m", "tests.support.scheduler", str(folder), "0", str(run.path), str(node)]
    env = agent_environment(run)
    env.pop("DISTTRAIN_LAUNCHER")
    return subprocess.Popen([*trace, "-o", str(folder / f"strace-{node}"), *agent, str(NODES)], env=env)


def newest_step(run: RunDir) -> int:
    """The newest step in the records of rank 0, which are a few seconds old."""
    return max((int(line["step"]) for line in read_jsonl(run.attempt(0).steps(0))), default=0)


def wait_for_progress(run: RunDir, within_s: float) -> None:
    """Wait for the first steps of the run. Raises `TimeoutError`."""
    deadline = time.monotonic() + within_s
    while not run.progress.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no step was done within {within_s:g} s")
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="time in which calls are counted")
    parser.add_argument("--after", type=float, default=600.0, help="seconds of training before that time")
    result_record.add_option(parser)
    given = parser.parse_args()
    if shutil.which("strace") is None:
        parser.error("strace is not installed; install with: apt-get install strace")
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "scheduler", Path(name) / "runs"
        folder.mkdir()
        submit(plan(), FakeScheduler(), root)
        run = RunDir(root / "calls" / "n2")
        agents = [start(folder, run, node) for node in range(NODES)]
        try:
            wait_for_progress(run, within_s=600)
            time.sleep(given.after)
            before, first_s = newest_step(run), time.time()
            time.sleep(given.seconds)
            last_s, reached = time.time(), newest_step(run)
            run.stop.touch()
            for agent in agents:
                agent.wait(300)
        finally:
            for agent in agents:
                agent.kill()
        calls = []
        for node in range(NODES):
            with open(folder / f"strace-{node}", encoding="utf-8") as lines:
                calls.append(dict(count_calls(lines, f"{root}/", first_s, last_s).most_common()))
    raw = {"seconds": given.seconds, "steps": reached - before, "calls": calls}
    for node, counted in enumerate(calls):
        print(f"node {node}: {counted}")
    for figure, value in figures(raw).items():
        print(f"{figure}: {value}")
    result_record.save("file_system_calls", given.save, figures(raw), raw)


if __name__ == "__main__":
    main()
