"""False verdicts and power of `disttrain fabric ab` on generated durations: `python -m benchmarks.fabric_ab`.

Each trial is a whole experiment on the durations of a simulated machine: independent, autocorrelated,
drifting, or with bursts of a neighbour. Goal: of trials with equal arms at most 5 % end as a gain or a loss.
`margin_0`: the same with a margin of 0, where each interval without the ratio 1 is a false verdict; it shows
the coverage of the confidence sequence, which the margin hides. `repeated_t`: for comparison, a 95 % interval
of Student's t at each pair from the fifth on, which is not valid at a data-dependent stop.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import replace
from functools import cache
from typing import Any

from scipy.stats import t as student_t

from benchmarks import result_record
from disttrain.records.comm_bench import AbComparison
from jobs.arms.experiment import Options
from tests.support.paired_blocks import NOISE, SLOW, experiment

OPTIONS = Options(pairs=200, seconds=1e9)
EFFECT = 0.03
"""Share by which the slower arm's step is longer, in trials with a difference."""


def trial(kind: str, seed: int, slower: float, options: Options) -> AbComparison:
    """One comparison; `slower` is the share by which the variable makes the step longer."""
    return experiment(kind, seed, {SLOW: str(slower)}, replace(options, seed=seed)).alone[0]


def repeated_t_finds(found: AbComparison) -> bool:
    """Whether a t interval at any pair from the fifth on excludes the ratio 1."""
    logs = [math.log(a / b) for a, b in zip(found.without_s, found.with_s, strict=True)]
    for count in range(5, len(logs) + 1):
        some = logs[:count]
        half = _quantile(count - 1) * statistics.stdev(some) / math.sqrt(count)
        if abs(statistics.fmean(some)) > half:
            return True
    return False


@cache
def _quantile(freedom: int) -> float:
    return float(student_t.ppf(0.975, freedom))


def simulate(trials: int) -> dict[str, Any]:
    """Verdicts and numbers of pairs, by case."""
    cases: dict[str, Any] = {}
    for kind in NOISE:
        for name, slower, options in (
            ("equal", 0.0, OPTIONS),
            ("margin_0", 0.0, replace(OPTIONS, margin=0.0)),
            ("slower", EFFECT, OPTIONS),
        ):
            found = [trial(kind, seed, slower, options) for seed in range(trials)]
            cases[f"{kind}_{name}"] = {
                "verdicts": {verdict: sum(each.verdict == verdict for each in found) for verdict in VERDICTS},
                "pairs": sorted(each.pairs for each in found),
            }
            if name == "margin_0":
                cases[f"{kind}_repeated_t"] = sum(map(repeated_t_finds, found))
    return {"trials": trials, "cases": cases}


VERDICTS = ("gain", "loss", "equivalent", "undecided")


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Shares of the trials in percent, and the median number of pairs, by case."""
    shares: dict[str, Any] = {"trials": raw["trials"]}
    for kind in NOISE:
        for name in ("equal", "margin_0"):
            verdicts = raw["cases"][f"{kind}_{name}"]["verdicts"]
            shares[f"{kind}_{name}_false_percent"] = _percent(verdicts["gain"] + verdicts["loss"], raw)
        shares[f"{kind}_repeated_t_false_percent"] = _percent(raw["cases"][f"{kind}_repeated_t"], raw)
        equal, slower = raw["cases"][f"{kind}_equal"], raw["cases"][f"{kind}_slower"]
        shares[f"{kind}_equal_equivalent_percent"] = _percent(equal["verdicts"]["equivalent"], raw)
        shares[f"{kind}_equal_median_pairs"] = statistics.median(equal["pairs"])
        shares[f"{kind}_slower_loss_percent"] = _percent(slower["verdicts"]["loss"], raw)
        shares[f"{kind}_slower_gain_percent"] = _percent(slower["verdicts"]["gain"], raw)
        shares[f"{kind}_slower_median_pairs"] = statistics.median(slower["pairs"])
    return shares


def _percent(count: int, raw: dict[str, Any]) -> float:
    return 100 * count / raw["trials"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200)
    result_record.add_option(parser)
    given = parser.parse_args()
    raw = simulate(given.trials)
    for name, value in figures(raw).items():
        print(f"{name:45}{value:8.1f}")
    result_record.save("fabric_ab", given.save, figures(raw), raw, packages=("scipy",))


if __name__ == "__main__":
    main()
