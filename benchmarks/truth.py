"""Accuracy of the telemetry: seconds injected into a run, beside the seconds in its records.

    python -m benchmarks.truth ranks                    three ranks of this machine: phases, profiler, shards
    sudo .venv/bin/python -m benchmarks.truth links     mini-cluster: transfer over links of 1 Gbit/s

A check compares one figure of one rank with its known value: a delay in its phase, 0 in every other phase,
the time of a bucket on a link of measured rate. Goal: each figure within 2 ms or 5 % of its known value.
Ranks wait instead of computing, and run at real-time priority if the user is root.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import exposed, result_record
from benchmarks.ring import step_s
from benchmarks.trace_steps import operators, spans, traced_steps
from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.records.steps import PHASES
from disttrain.runtime.process_group import World
from disttrain.telemetry.profiled.profiled_steps import LARGEST_SHARE
from disttrain.telemetry.profiled.step_trace import comm_sample, covered, length, merged
from tests.support import emulated_shards
from tests.support import injected_delays as delays
from tests.support.injected_delays import LATE_RANK, LATE_S, STEP, WARM_UP, Phases
from tests.support.link_rate import linked, real_time, stream_bytes_per_s
from tests.support.minicluster import SUBMIT, MiniCluster
from tests.support.ranks import Ranks

RANKS = 3
WITHIN_S = 3600.0
"""Time limit of a run: `--steps` may ask for many."""
BOUND_S, BOUND = 0.002, 0.05
MIB = 1 << 20
LAYERS, LAYER_MB, FORWARD_S, BACKWARD_S = 8, 4, 0.160, 0.320
"""The model of sweeps/emulated.yaml."""


@dataclass(frozen=True)
class Check:
    """One figure of one rank beside its known value, in seconds."""

    scenario: str
    rank: int
    figure: str
    known_s: float
    found_s: float


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Errors over all checks, and by scenario."""
    by_scenario: dict[str, list[dict[str, Any]]] = {}
    for check in raw["checks"]:
        by_scenario.setdefault(check["scenario"].replace(" ", "-"), []).append(check)
    return {
        **summary(raw["checks"]),
        "scenarios": {name: summary(each) for name, each in by_scenario.items()},
    }


def summary(checks: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors of several checks; of a single one the known and the found value, too."""
    errors_s = [abs(check["found_s"] - check["known_s"]) for check in checks]
    bounds_s = [max(BOUND_S, BOUND * abs(check["known_s"])) for check in checks]
    found = {
        "checks": len(checks),
        "within_bounds": sum(error <= bound for error, bound in zip(errors_s, bounds_s, strict=True)),
        "median_error_ms": 1e3 * statistics.median(errors_s),
        "max_error_ms": 1e3 * max(errors_s),
    }
    if len(checks) > 1:
        return found
    known_s, found_s = checks[0]["known_s"], checks[0]["found_s"]
    error_percent = 100 * (found_s / known_s - 1)
    return {**found, "known_ms": 1e3 * known_s, "found_ms": 1e3 * found_s, "error_percent": error_percent}


def added(scenario: str, found: list[Phases], base: list[Phases], expected: list[Phases]) -> Iterator[Check]:
    """Each phase of each rank less that of the run without delays."""
    for rank, phases in enumerate(found):
        for name in PHASES:
            more_s = phases[name] - base[rank][name]
            yield Check(scenario, rank, f"added {name}", expected[rank].get(name, 0.0), more_s)


def of_ranks(folder: Path, steps: int) -> Iterator[Check]:
    """Checks on three ranks of this machine, and on four where pairs of them hold copies."""
    ranks = Ranks(RANKS, nodes=1)
    try:
        yield from of_phases(ranks, folder, steps)
        yield from of_jitter(ranks, "jitter", folder / "jitter", 2 * steps)
        yield from of_checkpoints(ranks, "slow checkpoint", folder, steps)
        for buckets in (4, 1):
            yield from of_hidden(ranks, folder / f"hidden-{buckets}", buckets)
        yield from of_profiler(ranks, folder / "profiler", steps)
        yield from of_methods(ranks, steps)
        yield from of_shards(ranks, folder, steps)
        yield from of_sharded_strategy(ranks, folder, steps, delays.FSDP["parallel"])
    finally:
        ranks.close()
    ranks = Ranks(4, nodes=1)
    try:
        yield from of_sharded_strategy(ranks, folder, steps, delays.HSDP["parallel"])
    finally:
        ranks.close()


def train(ranks: Ranks, folder: Path, steps: int, **sections: dict[str, Any]) -> list[Phases]:
    """Median seconds of each phase, by rank."""
    given = {**sections, "train": {"steps": WARM_UP + steps}}
    ranks.call(delays.train_rank, delays.config(ranks.size, **given), folder, answer_within_s=WITHIN_S)
    return delays.medians(folder, ranks.size)


def of_phases(ranks: Ranks, folder: Path, steps: int) -> Iterator[Check]:
    clean = train(ranks, folder / "clean", steps)
    for name, delay in delays.DELAYS.items():
        found = train(ranks, folder / name, steps, **delay.sections)
        yield from added(name, found, clean, delays.one_late(RANKS, LATE_S, delay.phase))
    all_slow = {"optimizer_s": STEP["model"]["optimizer_s"] + LATE_S}
    found = train(ranks, folder / "all", steps, model=all_slow)
    yield from added("slow optimizer everywhere", found, clean, [{"optimizer_s": LATE_S}] * RANKS)
    found = train(ranks, folder / "buffers", steps, **delays.BUFFERS)
    expected = delays.one_late(RANKS, LATE_S, "input_s", late_rank=0)
    yield from added("broadcast of buffers", found, clean, expected)


def of_jitter(
    ranks: Ranks, scenario: str, folder: Path, steps: int, **sections: dict[str, Any]
) -> Iterator[Check]:
    """Random seconds of each step: the median difference between recorded and drawn ones."""
    train(ranks, folder, steps, **delays.JITTER, **sections)
    by_rank = [delays.measured_steps(folder, rank) for rank in range(ranks.size)]
    drawn = [delays.jitter_of(each, rank) for rank, each in enumerate(by_rank)]
    largest = [max(step) for step in zip(*drawn, strict=True)]
    compute_s = STEP["model"]["forward_s"] + STEP["model"]["backward_s"]
    for rank, (lines, own) in enumerate(zip(by_rank, drawn, strict=True)):
        known = {"compute_s": [compute_s + each for each in own],
                 "comm_wait_s": [most - each for most, each in zip(largest, own, strict=True)]}  # fmt: skip
        for name, seconds in known.items():
            errors = [line[name] - each for line, each in zip(lines, seconds, strict=True)]
            yield Check(scenario, rank, f"{name} less drawn", 0.0, statistics.median(errors))


def of_checkpoints(
    ranks: Ranks, scenario: str, folder: Path, steps: int, **sections: dict[str, Any]
) -> Iterator[Check]:
    """A blocking checkpoint with one slow rank, beside one without."""
    quick, slow = folder / f"{scenario} saving", folder / f"{scenario} slow-saving"
    train(ranks, quick, steps, **delays.SAVING, **sections)
    train(ranks, slow, steps, **delays.SLOW_SAVING, **sections)
    found, base = (delays.medians_after_saving(each, ranks.size) for each in (slow, quick))
    expected = delays.one_late(ranks.size, delays.SLOW_WRITE_S, "checkpoint_s")
    yield from added(scenario, found, base, expected)


def of_hidden(ranks: Ranks, folder: Path, buckets: int) -> Iterator[Check]:
    """A late rank keeps the buckets of its peers in flight from their first bucket to their last."""
    model = STEP["model"]
    sections = {
        **delays.DELAYS["slow rank"].sections,
        "parallel": {"ddp": {"bucket_mb": model["layer_mb"] * model["layers"] / buckets}},
        "telemetry": {"profiled_steps": 1},
    }
    train(ranks, folder, LARGEST_SHARE, **sections)
    scenario = f"hidden communication {buckets} buckets"
    for rank in range(RANKS):
        clock = {line["step"]: line["comm_exposed_s"] for line in delays.measured_steps(folder, rank)}
        for sample in map(CommSample.model_validate, read_jsonl(RunDir(folder).attempt(0).comm(rank))):
            yield Check(scenario, rank, "profiler's exposed_s", clock[sample.step], sample.exposed_s)
            if rank != LATE_RANK:
                hidden_s = model["backward_s"] * (1 - 1 / buckets)
                yield Check(scenario, rank, "hidden_s", hidden_s, sample.hidden_s)


def of_profiler(ranks: Ranks, folder: Path, steps: int) -> Iterator[Check]:
    """Compute and exposed communication of traced steps, by the profiler."""
    traced = {"steps": [WARM_UP + 2, WARM_UP + min(steps, 10)], "ranks": list(range(RANKS))}
    train(ranks, folder, steps, **delays.DELAYS["slow rank"].sections, profile=traced)
    compute_s = STEP["model"]["forward_s"] + STEP["model"]["backward_s"]
    for rank in range(RANKS):
        steps_by_profiler = by_profiler(RunDir(folder).attempt(0), rank)
        late = rank == LATE_RANK
        known = {"compute_s": compute_s + late * LATE_S, "exposed_s": 0.0 if late else LATE_S}
        for name, seconds in known.items():
            found = statistics.median(step[name] for step in steps_by_profiler)
            yield Check("profiler", rank, name, seconds, found)


def by_profiler(attempt: Attempt, rank: int) -> list[dict[str, float]]:
    """Compute and exposed communication of each step in a CPU rank's trace, without the clock's phases:
    compute is the time in operators of the training thread up to the end of the backward pass."""
    figures = []
    for events, mark in traced_steps(attempt.trace(rank)):
        own, origin_s = operators(events, mark), events[0]["ts"] / 1e6
        passes = spans(e for e in own if e["name"].startswith("autograd::engine::evaluate_function"))
        last_s = max(until for _, until in passes)
        compute = merged(span for span in spans(own) if span[0] < last_s)
        calls = comm_sample(0, {"traceEvents": events}).collectives
        starts = [(origin_s + call.start_s, call.duration_s) for call in calls]
        union = merged((start_s, start_s + duration_s) for start_s, duration_s in starts)
        exposed_s = length(union) - sum(covered(union, compute))
        figures.append({"compute_s": length(compute), "exposed_s": exposed_s})
    return figures


def of_methods(ranks: Ranks, steps: int) -> Iterator[Check]:
    """Exposed communication by DDP's logger and by passes without communication, beside the step clock's."""
    for rank, found in enumerate(ranks.call(compare_methods, steps, answer_within_s=WITHIN_S)):
        ours = found.pop("ddp_backward_tail")
        for method, seconds in found.items():
            yield Check("exposed by three methods", rank, method, ours, seconds)


def compare_methods(world: World, rounds: int) -> dict[str, float]:
    model = exposed.build(layers=4, layer_mb=1.0, forward_s=0.01, backward_s=0.02, late_s=LATE_S)
    with delays.real_time_priority():
        return exposed.median_exposed_s(world, model, bucket_mb=1.0, rounds=rounds)


def of_shards(ranks: Ranks, folder: Path, steps: int) -> Iterator[Check]:
    """An emulated model sharded by `fully_shard`, layer by layer."""

    def trained(name: str, **options: Any) -> list[Phases]:
        path = folder / f"shards {name}" / "n1"
        ranks.call(emulated_shards.train, path, steps=WARM_UP + steps, answer_within_s=WITHIN_S, **options)
        return delays.medians(path, RANKS)

    clean = trained("clean")
    for rank, phases in enumerate(clean):
        yield Check("shards", rank, "compute_s", emulated_shards.COMPUTE_S, phases["compute_s"])
        yield Check("shards", rank, "optimizer_s", emulated_shards.OPTIMIZER_S, phases["optimizer_s"])
    found = trained("slow", slow_ranks=(LATE_RANK,), slow_s=LATE_S)
    yield from added("shards late in compute_s", found, clean, delays.one_late(RANKS, LATE_S, "compute_s"))


def of_sharded_strategy(ranks: Ranks, folder: Path, steps: int, parallel: dict[str, Any]) -> Iterator[Check]:
    """Delays in a run of the trainer whose model is sharded."""
    strategy = parallel["strategy"]
    clean = train(ranks, folder / f"{strategy}-clean", steps, parallel=parallel)
    for name, delay in delays.DELAYS.items():
        found = train(ranks, folder / f"{strategy}-{name}", steps, parallel=parallel, **delay.sections)
        expected = delays.one_late(ranks.size, LATE_S, delay.phase)
        yield from added(f"{strategy} {name}", found, clean, expected)
    yield from of_jitter(
        ranks, f"{strategy} jitter", folder / f"{strategy}-jitter", 2 * steps, parallel=parallel
    )
    yield from of_checkpoints(ranks, f"{strategy} slow checkpoint", folder, steps, parallel=parallel)
    yield from of_hidden_shards(ranks, folder / f"{strategy}-hidden", parallel)


def of_hidden_shards(ranks: Ranks, folder: Path, parallel: dict[str, Any]) -> Iterator[Check]:
    """FSDP2 waits for each collective on a CPU, also for one that it prefetches: none is hidden."""
    sections = {
        **delays.DELAYS["slow rank"].sections,
        "parallel": {**parallel, **delays.PREFETCH["parallel"]},
        "telemetry": {"profiled_steps": 1},
    }
    train(ranks, folder, LARGEST_SHARE, **sections)
    scenario = f"{parallel['strategy']} hidden communication"
    for rank in range(ranks.size):
        for sample in map(CommSample.model_validate, read_jsonl(RunDir(folder).attempt(0).comm(rank))):
            yield Check(scenario, rank, "hidden_s", 0.0, sample.hidden_s)


def of_links(folder: Path, steps: int) -> Iterator[Check]:
    """Emulated nodes on a mini-cluster, beside a calculation from the rate of one TCP stream."""
    ahead = real_time()
    with linked(f"b{os.getpid()}", 4, ahead) as cluster:
        rate = stream_bytes_per_s(cluster, ahead)
        for nodes, bucket_mb in ((1, 4), (2, 4), (2, 32), (4, 4), (4, 32)):
            known_s = step_s(
                ranks=nodes,
                layers=LAYERS,
                layer_bytes=LAYER_MB * MIB,
                forward_s=FORWARD_S,
                backward_s=BACKWARD_S,
                layers_per_bucket=bucket_mb // LAYER_MB,
                link_bytes_per_s=rate,
            )
            run = RunDir(submitted(cluster, folder / f"{nodes}-{bucket_mb}", nodes, bucket_mb, steps))
            lines = list(read_jsonl(run.attempt(0).steps(0)))[WARM_UP:]
            found_s = statistics.median(line["step_s"] for line in lines)
            yield Check(f"links {nodes} nodes buckets of {bucket_mb} MiB", 0, "step_s", known_s, found_s)
            if (nodes, bucket_mb) == (2, 32):
                found_s = statistics.median(line["comm_transfer_s"] for line in lines)
                yield Check("links transfer", 0, "comm_transfer_s", LAYERS * LAYER_MB * MIB / rate, found_s)


def submitted(cluster: MiniCluster, folder: Path, nodes: int, bucket_mb: int, steps: int) -> Path:
    """The run directory of a completed emulated run."""
    folder.mkdir()
    settings = [f"parallel.ddp.bucket_mb={bucket_mb}", f"train.steps={WARM_UP + steps}"]
    settings += [f"telemetry.warmup_steps={WARM_UP}", "telemetry.profiled_steps=0"]
    sweep = SUBMIT.parent / "sweeps" / "emulated.yaml"
    command = ["sweep", str(sweep), "--nodes", str(nodes), "--set", *settings]
    cluster.submit(*command, "--cluster", "slurm", "--no-report", "--wait", cwd=folder)
    (run,) = (folder / "runs" / "emulated").glob("n*")
    assert Metrics.model_validate(read_json(RunDir(run).metrics)).status == "completed"
    return run


SECTIONS = {"ranks": of_ranks, "links": of_links}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of a run")
    result_record.add_option(parser)
    given = parser.parse_args()
    checks = []
    with tempfile.TemporaryDirectory() as folder:
        for check in SECTIONS[given.section](Path(folder), given.steps):
            checks.append(asdict(check))
            error_ms = 1e3 * (check.found_s - check.known_s)
            print(
                f"{check.scenario}, rank {check.rank}, {check.figure}: {1e3 * check.known_s:.2f} ms known, "
                f"{error_ms:+.2f} ms",
                flush=True,
            )
    raw = {"section": given.section, "steps": given.steps, "checks": checks}
    found = figures(raw)
    print(
        f"{found['within_bounds']} of {found['checks']} within 2 ms or 5 %; error: median "
        f"{found['median_error_ms']:.2f} ms, at most {found['max_error_ms']:.2f} ms"
    )
    result_record.save("truth", given.save, found, raw)


if __name__ == "__main__":
    main()
