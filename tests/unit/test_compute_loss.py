"""Causes of lost compute: each is found from its evidence, and none is made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.read.load import load_runs
from analysis.report.sections import pop
from analysis.results.caveats import Caveat, Gravity
from analysis.results.culprits import Culprit, Diagnosis, diagnose
from analysis.results.lost_time import Cause, compute_causes
from analysis.stats.estimates import Estimate
from analysis.study import make_study
from tests.support.fake_runs import fake_run, with_metrics
from tests.support.straggler_records import delays, generate, seconds_of
from tests.unit.test_stragglers_section import STEPS, write_run


def size(
    compute_s: float,
    ranks: int = 1,
    batch: int = 8,
    *,
    clock: float | None = None,
    shared: bool = False,
    repeats: Sequence[Diagnosis] = (),
    one_machine: bool = False,
) -> Any:
    """A point with these records."""
    gpu = SimpleNamespace(sm_clock_ratio_mean=clock)
    steps_s = [each.culprits[0].step_s if each.culprits else 2.0 for each in repeats] or [2.0]
    return SimpleNamespace(
        step_s=Estimate(compute_s, None, None, 1),
        samples_per_s=Estimate(1.0, None, None, 1),
        composition={"compute_s": compute_s},
        world_size=ranks,
        local_batch_size=batch,
        metrics=[SimpleNamespace(gpu=gpu, oversubscribed=shared, measured_steps=100)] * max(1, len(repeats)),
        runs=[SimpleNamespace(one_machine=one_machine)],
        repeats=repeats,
        phases=SimpleNamespace(step_s=np.array(steps_s)),
        paths=frozenset({"one"}),
    )


def causes(
    point: Any, base: Any, work: float = 1.0, *, doubts: Sequence[str] = (), emulated: bool = False
) -> list[Cause]:
    point.work_ratio = lambda of: work
    caveats = [
        Caveat(kind, Gravity.NOTE, point.paths, forbids=frozenset({"transfer advice"})) for kind in doubts
    ]
    study: Any = SimpleNamespace(caveats=caveats, diagnoses=lambda of: of.repeats)
    curve: Any = SimpleNamespace(base=base, emulated=emulated)
    return compute_causes(study, curve, point)


def names(*arguments: Any, **keywords: Any) -> list[tuple[str, ...]]:
    return [tuple(cause.evidence) for cause in causes(*arguments, **keywords)]


def slow(name: str, excess_s: float, *ranks: int, cost_s: float = 0.1, steps: int = 100) -> Culprit:
    excess = Estimate(excess_s, None, None, 1)
    return Culprit(name, name, ranks, "compute_s", excess, cost_s, 2.0, steps == 100, 1, steps)


@pytest.mark.parametrize(("strategy", "named"), [("ddp", ["rank 1 on c01"]), ("pipeline", [])])
def test_a_straggler_is_named_but_for_stages_of_a_pipeline(
    tmp_path: Path, strategy: str, named: list[str]
) -> None:
    fake_run(tmp_path / "s" / "n1", mean_s=0.15, overrides={"strategy": strategy})
    write_run(tmp_path / "s" / "n4", delays(4, STEPS, slow=[1], slow_s=0.05))
    runs = with_metrics(load_runs([tmp_path / "s"]), strategy=strategy)
    study = make_study(runs)
    study.__dict__["overlaps"] = []
    (curve,) = study.curves
    first, *_ = compute_causes(study, curve, curve.points[-1])
    parts = first.evidence.get("slow ranks", {"parts": []})["parts"]
    assert [part.first.name for part in parts] == named
    assert (pop.build(study) is None) == (strategy == "pipeline")


def repeat_of(seed: int, slow: dict[str, list[int]], slow_s: float = 0.05) -> Diagnosis:
    """60 steps of eight ranks, two a node; `slow`: ranks that are slow, by the node they are on."""
    every = [rank for ranks in slow.values() for rank in ranks]
    rows = generate(delays(8, 60, slow=every, slow_s=slow_s, jitter_s=0.002, seed=seed), ranks_per_node=2)
    for host, ranks in slow.items():
        rows.loc[rows["rank"] // 2 == ranks[0] // 2, "host"] = host
    found = seconds_of(rows)
    assert found is not None
    return diagnose(found)


@pytest.mark.parametrize(
    ("nodes", "ranks"),
    [
        ([{"n2": [4, 5]}] * 3, 2),
        ([{"n1": [2, 3], "n2": [4, 5]}] * 3, 4),
        ([{"n2": [2 * seed, 2 * seed + 1]} for seed in range(3)], 2),
        ([{f"n{seed}": [4]} for seed in range(3)], 1),
        ([{"n2": [4, 5]}] * 2 + [{"n2": [4]}] * 2, 1.5),
    ],
)
def test_a_slow_node_or_rank_has_the_size_of_its_delay_wherever_it_is(nodes: Any, ranks: float) -> None:
    """A node with other ranks in each repeat, a rank that moves, and one that is alone in some repeats."""
    repeats = [repeat_of(seed, of_repeat) for seed, of_repeat in enumerate(nodes)]
    point = size(1.0, 8, repeats=repeats)
    point.metrics[0].measured_steps = 60
    first, *_ = causes(point, size(0.98))
    assert list(first.evidence) == ["slow ranks"]
    assert first.seconds == pytest.approx(0.05 * ranks / 8, rel=0.05)
