"""Coverage of the report's intervals, and false alarms: `python -m benchmarks.interval_coverage`.

Simulated experiments with known truth: step times are an AR(1) process of 3 % variation with 2 % long steps,
and repeats differ by 1 %. Goals: 95 % intervals over repeats cover in 93 to 97 % of experiments, and within a
run in 90 % or more; equal configurations are called different in at most 5 %; a stationary run is refused
in at most 5 %; of equal ranks with correlated jitter, one is named in at most 5 % of runs, and in at most
10 % where the jitter of four ranks or more drifts.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from analysis.results.slow_ranks import find_episodes, slow_ranks
from analysis.stats.estimates import geometric_mean, relative_half_width
from analysis.stats.stationarity import stationarity
from analysis.stats.verdicts import compare, verdicts
from benchmarks import result_record
from tests.support.step_series import MEAN_S, ar1, autocorrelated

SPREAD = 0.01
"""Standard deviation of the logarithm of a repeat's true throughput."""


def repeats_cover(rng: np.random.Generator, repeats: int, steps: int, lag_1: float) -> bool:
    """Whether the interval over repeats, each the mean of its correlated steps, contains the true rate."""
    rates = [
        np.exp(rng.normal(0, SPREAD)) / float(autocorrelated(rng, steps, lag_1).mean())
        for _ in range(repeats)
    ]
    estimate = geometric_mean(rates)
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= 1 / MEAN_S <= estimate.high


def steps_cover(rng: np.random.Generator, steps: int, lag_1: float) -> bool:
    """Whether the interval within a run contains the true mean of its steps."""
    series = autocorrelated(rng, steps, lag_1)
    half = relative_half_width(series)
    assert half is not None
    return bool(abs(np.log(series.mean() / MEAN_S)) <= half)


def is_called_different(rng: np.random.Generator, repeats: int) -> bool:
    """Whether two equal configurations get a verdict of faster or slower."""
    values, base = np.exp(rng.normal(0, SPREAD, (2, repeats)))
    return verdicts([compare(values, base)])[0] in ("faster", "slower")


def is_refused(rng: np.random.Generator, steps: int, lag_1: float) -> bool:
    """Whether a stationary run is called not stationary, or its warm-up too short."""
    return not stationarity(autocorrelated(rng, steps, lag_1)).publishable


def names_a_rank(rng: np.random.Generator, ranks: int, lag_1: float, steps: int = 200) -> bool:
    """Whether steps of equal ranks with jitter of 30 % name a slow rank, throughout or for a while."""
    own_s = np.stack([np.maximum(ar1(rng, steps, lag_1, 0.3), 0.1) for _ in range(ranks)])
    return bool(slow_ranks(own_s)) or bool(find_episodes(own_s))


def names_a_drifting_rank(rng: np.random.Generator, ranks: int, steps: int = 200) -> bool:
    """Whether an episode is named in equal ranks whose jitter of 15 % drifts as a random walk."""
    white, walk = rng.normal(0, 0.15, (ranks, steps)), rng.normal(0, 0.015, (ranks, steps)).cumsum(axis=1)
    return bool(find_episodes(np.maximum(1 + white + walk, 0.1)))


def finds_an_episode(rng: np.random.Generator, ranks: int, lag_1: float, deviations: float) -> bool:
    """Whether 40 of 200 steps in which rank 1 is slower by so many standard deviations of its jitter, 5 %,
    are found: at least half of the union of the known and the found ones is in both."""
    own_s = np.stack([ar1(rng, 200, lag_1, 0.05) for _ in range(ranks)])
    first = int(rng.integers(0, 160))
    own_s[1, first : first + 40] += deviations * 0.05
    known, found = set(range(first, first + 40)), find_episodes(own_s).get(1)
    steps = set(range(found.start, found.stop)) if found else set()
    return 2 * len(known & steps) >= len(known | steps)


def simulate(experiments: int) -> dict[str, Any]:
    """Number of experiments in which each statement was true, by case."""
    rng = np.random.default_rng(20)
    cases: dict[str, Any] = {}
    for repeats in (3, 5, 10):
        cases[f"repeats_{repeats}"] = [repeats_cover(rng, repeats, 200, 0.5) for _ in range(experiments)]
        cases[f"called_different_{repeats}"] = [is_called_different(rng, repeats) for _ in range(experiments)]
    for steps in (60, 200, 1000):
        for lag_1 in (0.0, 0.5, 0.8):
            case = f"{steps}_steps_lag_{lag_1:.1f}".replace(".", "_")
            cases[f"within_run_{case}"] = [steps_cover(rng, steps, lag_1) for _ in range(experiments)]
            cases[f"refused_{case}"] = [is_refused(rng, steps, lag_1) for _ in range(experiments)]
    for ranks in (2, 8):
        for lag_1 in (0.0, 0.5, 0.8):
            case = f"named_{ranks}_ranks_lag_{lag_1:.1f}".replace(".", "_")
            cases[case] = [names_a_rank(rng, ranks, lag_1) for _ in range(experiments)]
    for ranks in (4, 8, 32):
        cases[f"named_{ranks}_drifting_ranks"] = [
            names_a_drifting_rank(rng, ranks) for _ in range(experiments)
        ]
    for ranks in (2, 4, 8):
        for lag_1 in (0.0, 0.5, 0.8):
            for deviations in (2, 3, 5):
                case = f"found_{ranks}_ranks_lag_{lag_1:.1f}_{deviations}_deviations".replace(".", "_")
                cases[case] = [finds_an_episode(rng, ranks, lag_1, deviations) for _ in range(experiments)]
    for steps in (12, 20):
        for lag_1 in (0.0, 0.8, 0.95):
            case = f"named_2_ranks_{steps}_steps_lag_{lag_1:.2f}".replace(".", "_")
            cases[case] = [names_a_rank(rng, 2, lag_1, steps) for _ in range(experiments)]
    return {"experiments": experiments, "true": {name: int(sum(found)) for name, found in cases.items()}}


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Share of experiments in percent, by case."""
    shares = {f"{name}_percent": 100 * count / raw["experiments"] for name, count in raw["true"].items()}
    return {"experiments": raw["experiments"], **shares}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=4000)
    result_record.add_option(parser)
    given = parser.parse_args()
    raw = simulate(given.experiments)
    for name, value in figures(raw).items():
        print(f"{name:45}{value:8.1f}")
    result_record.save("interval_coverage", given.save, figures(raw), raw, packages=("numpy", "scipy"))


if __name__ == "__main__":
    main()
