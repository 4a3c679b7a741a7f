"""How far predictions are off, and how often their 90 % intervals hold.

    python -m benchmarks.prediction [--draws 300] [--save LABEL]
    python -m benchmarks.prediction RUNS/SWEEP ...       # blind: from 1, 2 and 4 nodes to the larger sizes

Without sweeps: an event simulation that shares no code with `analysis.predict`. Ranks compute with noise that
is correlated from step to step, some nodes are slow, launches differ, rare delays occur; buckets travel one
after another over a link with latency and rate. Each draw takes new parameters, measures 1, 2 and 4 nodes in
three launches, and predicts 8 to 64 nodes; the errors of 40 earlier clusters are the ledger. `exact`: largest
difference without noise. `published`: the laws on published curves, the largest size left out, beside each
law alone. With sweeps: runs of more than four nodes are left out and predicted.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.predict import ledger
from analysis.predict.basis import basis_of
from analysis.predict.forecast import Basis, Refusal, Size, forecast
from analysis.predict.laws import LAWS, law
from analysis.predict.ring import RingTimes
from analysis.read.load import load_runs
from analysis.read.profiled import Collective, ProfiledStep
from analysis.results.curves import scaling_curves
from benchmarks import result_record

MEASURED, TARGETS = (1, 2, 4), (8, 16, 32, 64)
STEPS, LAUNCHES, LEDGER = 60, 3, 40


@dataclass(frozen=True)
class Cluster:
    """A data-parallel training with one rank a node; times in seconds."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    buckets: tuple[int, ...]
    """Bytes, in order of readiness; they are ready at equal distances of the backward pass."""
    latency_s: float
    """Of one step of a ring."""
    bytes_per_s: float
    noise: float
    """Standard deviation of the compute of a rank and step, as a share."""
    correlation: float
    """Of the noise of successive steps."""
    node_spread: float
    launch_spread: float
    delay_s: float
    delay_probability: float
    """Of a rank and step."""

    def collective_s(self, size: float, nodes: int) -> float:
        return 2 * (nodes - 1) * (self.latency_s + size / nodes / self.bytes_per_s)


def drawn(random: np.random.Generator) -> Cluster:
    """A cluster with communication from nearly hidden to dominant."""
    backward_s = random.uniform(0.1, 0.4)
    buckets = (int(random.uniform(1, 8) * 2**20),) * int(random.integers(2, 16))
    share = random.uniform(0.3, 1.3)
    return Cluster(
        forward_s=backward_s / 2,
        backward_s=backward_s,
        optimizer_s=random.uniform(0.0, 0.02),
        buckets=buckets,
        latency_s=10 ** random.uniform(-5, -3.5),
        bytes_per_s=2 * sum(buckets) / (share * backward_s),
        noise=random.uniform(0.0, 0.02),
        correlation=random.uniform(0.0, 0.8),
        node_spread=random.uniform(0.0, 0.005),
        launch_spread=random.uniform(0.0, 0.004),
        delay_s=random.uniform(0.0, 0.1),
        delay_probability=10 ** random.uniform(-5, -3),
    )


def simulate(cluster: Cluster, nodes: int, random: np.random.Generator) -> tuple[Size, ProfiledStep]:
    """One launch, event by event, and what telemetry would record of it."""
    speed = np.exp(random.normal(0, cluster.node_spread, nodes) + random.normal(0, cluster.launch_spread))
    begin, noise = np.zeros(nodes), random.normal(0, 1, nodes)
    steps, waits, transfers, starts, ends = [], [], [], [], []
    for _ in range(STEPS):
        fresh = random.normal(0, 1, nodes)
        noise = cluster.correlation * noise + math.sqrt(1 - cluster.correlation**2) * fresh
        slow = speed * (1 + cluster.noise * noise)
        delays = cluster.delay_s * (random.random(nodes) < cluster.delay_probability)
        forward = begin + cluster.forward_s * slow + delays
        backward_end = forward + cluster.backward_s * slow
        free, wait, began = np.full(nodes, -np.inf), np.zeros(nodes), []
        for number, size in enumerate(cluster.buckets, 1):
            ready = forward + cluster.backward_s * slow * number / len(cluster.buckets)
            arrival = np.maximum(ready, free)
            start = float(arrival.max())
            began.append(float(arrival.min() - begin.min()))
            free = np.full(nodes, start + (cluster.collective_s(size, nodes) if nodes > 1 else 0.0))
        exposed = np.maximum(0.0, free - backward_end) if nodes > 1 else np.zeros(nodes)
        transfer = exposed.min()
        wait = exposed - transfer
        end = np.maximum(backward_end, free) + cluster.optimizer_s * slow
        steps.append(float((end - begin).mean()))
        waits.append(float(wait.mean()))
        transfers.append(float(transfer))
        starts.append(began)
        ends.append(float((backward_end - begin).min()))
        begin = end
    mean = float(np.mean(steps))
    known = nodes > 1
    recorded = Size(
        nodes, mean, float(np.mean(waits)) if known else None, float(np.mean(transfers)) if known else None,
        (16 * nodes / mean,),
    )  # fmt: skip
    begin_s = np.median(starts, axis=0)
    collectives = tuple(
        Collective("all_reduce", each, nodes, "world", float(at), 0.0)
        for each, at in zip(cluster.buckets, begin_s, strict=True)
    )
    return recorded, ProfiledStep(collectives, float(np.median(ends)))


def measured(cluster: Cluster, random: np.random.Generator) -> Basis:
    """What a sweep over `MEASURED` and a calibration on the largest of them yield."""
    sizes = []
    for nodes in MEASURED:
        launches = [simulate(cluster, nodes, random)[0] for _ in range(LAUNCHES)]
        step_s, wait_s, transfer_s = (
            None
            if nodes == 1 and name != "step_s"
            else float(np.mean([getattr(each, name) for each in launches]))
            for name in ("step_s", "wait_s", "transfer_s")
        )
        rates = tuple(each.launches[0] for each in launches)
        sizes.append(Size(nodes, step_s or 0.0, wait_s, transfer_s, rates))
    _, step = simulate(cluster, 2, random)
    most = MEASURED[-1]
    chunks = [2.0**power for power in range(8, 24)]
    seconds = [cluster.collective_s(chunk * most, most) / (2 * (most - 1)) for chunk in chunks]
    ring = RingTimes("gloo", {"all_reduce": tuple(zip(chunks, seconds, strict=True))})
    rate = 16 / sizes[0].step_s
    efficiency = sizes[0].step_s / sizes[-1].step_s
    return Basis("simulated", tuple(sizes), 1, 16, rate, efficiency, step, 2, False, ring)


def simulated(draws: int, seed: int) -> dict[str, Any]:
    """log(predicted / true) and whether the 90 % interval held, by number of nodes; refused predictions. The
    first `LEDGER` clusters are past predictions."""
    random = np.random.default_rng(seed)
    found: dict[str, Any] = {str(nodes): {"errors": [], "inside": []} for nodes in TARGETS}
    refused, past = 0, list[ledger.Score]()
    for number in range(LEDGER + draws):
        cluster = drawn(random)
        basis = measured(cluster, random)
        for nodes in TARGETS:
            made = forecast(basis, nodes, past if number >= LEDGER else ())
            if isinstance(made, Refusal) or made.method != "replay":
                refused += 1
                continue
            truth = simulate(cluster, nodes, random)[0].step_s
            if number < LEDGER:
                error = math.log(truth / made.step_s)
                past.append(ledger.Score(str(number), "replay", nodes / MEASURED[-1], error))
                continue
            low, high = made.bounds(90)
            found[str(nodes)]["errors"].append(math.log(made.step_s / truth))
            found[str(nodes)]["inside"].append(low <= truth <= high)
    return {**found, "refused": refused}


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Errors and coverage by multiple of the largest measured size; what else was measured as it is."""
    sizes = {str(nodes): f"{nodes // MEASURED[-1]}x" for nodes in TARGETS}
    made = {
        name: {
            "mean_error_percent": 100 * float(np.mean(np.abs(raw["simulated"][nodes]["errors"]))),
            "largest_error_percent": 100 * float(np.max(np.abs(raw["simulated"][nodes]["errors"]))),
            "bias_percent": 100 * float(np.mean(raw["simulated"][nodes]["errors"])),
            "inside_90_percent": 100 * float(np.mean(raw["simulated"][nodes]["inside"])),
        }
        for nodes, name in sizes.items()
        if "simulated" in raw
    }
    return {**{name: value for name, value in raw.items() if name != "simulated"}, "simulated": made}


def exact(seed: int, clusters: int = 100) -> float:
    """Largest relative difference of replay and simulation without noise, over all sizes."""
    random, worst = np.random.default_rng(seed), 0.0
    for _ in range(clusters):
        cluster = replace(drawn(random), noise=0.0, node_spread=0.0, launch_spread=0.0, delay_probability=0.0)
        basis = measured(cluster, random)
        for nodes in TARGETS:
            made = forecast(basis, nodes)
            if not isinstance(made, Refusal) and made.method == "replay":
                truth = simulate(cluster, nodes, random)[0].step_s
                worst = max(worst, abs(made.step_s / truth - 1))
    return worst


def seconds_at_4096() -> float:
    """Of one prediction for 4,096 nodes from 256, with 200 buckets."""
    random = np.random.default_rng(0)
    cluster = replace(drawn(random), buckets=(4 * 2**20,) * 200)
    basis = measured(cluster, random)
    basis = replace(basis, sizes=(*basis.sizes[:2], basis.largest._replace(nodes=256)))
    began = time.perf_counter()
    forecast(basis, 4096)
    return time.perf_counter() - began


def published() -> dict[str, float]:
    """Mean error of the largest size by law, and of their mean."""
    curves = ledger.published_curves()
    found = {"ensemble_percent": 100 * float(np.mean([abs(score.error) for score in ledger.published()]))}
    for name in LAWS:
        off = [
            abs(math.log(times[target] / law(name, known, [times[size] for size in known], target)))
            for times in curves.values()
            for *known, target in [sorted(times)]
            if len(known) > 1
        ]
        found[f"{name}_percent"] = 100 * float(np.mean(off))
    return found


def blind(sweeps: Sequence[Path]) -> dict[str, Any]:
    """Of each curve of the sweeps and each size beyond four nodes: predicted, measured, and each law."""
    found: dict[str, Any] = {}
    for sweep in sweeps:
        runs = load_runs([sweep])
        whole = scaling_curves(runs)
        for curve in scaling_curves([run for run in runs if run.shape and run.shape.nodes <= MEASURED[-1]]):
            basis = basis_of(curve)
            truth = next(each for each in whole if each.axes == curve.axes)
            for point in truth.points:
                if point.nodes <= MEASURED[-1]:
                    continue
                name = f"{sweep.name} {curve.label} {point.nodes}"
                made = basis if isinstance(basis, Refusal) else forecast(basis, point.nodes)
                if isinstance(made, Refusal) or isinstance(basis, Refusal):
                    found[name] = {"refused": made.reason if isinstance(made, Refusal) else ""}
                    continue
                real, several = point.step_s.value, [size for size in basis.sizes if size.nodes > 1]
                nodes, seconds = [size.nodes for size in several], [size.step_s for size in several]
                low, high = made.bounds(90)
                found[name] = {
                    "ratio": point.nodes / basis.largest.nodes,
                    "method": made.method,
                    "measured_ms": 1e3 * real,
                    "error_percent": 100 * (made.step_s / real - 1),
                    "inside": low <= real <= high,
                    **{
                        f"{each}_percent": 100 * (law(each, nodes, seconds, point.nodes) / real - 1)
                        for each in LAWS
                    },
                }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="*", type=Path, metavar="RUNS/SWEEP")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    result_record.add_option(parser)
    given = parser.parse_args()
    raw: dict[str, Any] = (
        {"blind": blind(given.sweeps)}
        if given.sweeps
        else {
            "simulated": simulated(given.draws, given.seed),
            "exact": exact(given.seed),
            "published": published(),
            "prediction_s": seconds_at_4096(),
        }
    )
    found = figures(raw)
    print(json.dumps(found, indent=1))
    result_record.save("prediction", given.save, found, raw, packages=("numpy", "scipy"))


if __name__ == "__main__":
    main()
