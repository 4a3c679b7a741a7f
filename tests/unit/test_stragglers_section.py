"""The section of stragglers and its sentence on the first screen, for runs with known delays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.read.run import Run
from analysis.report import first_screen
from analysis.report.export import exported
from analysis.report.sections.stragglers import stragglers
from analysis.report.sentences import say
from analysis.report.tables import table_view
from analysis.results.culprits import Culprit, Diagnosis, Recurrence
from analysis.results.links import SlowLink
from analysis.results.slow_ranks import Sensitivity
from analysis.stats.estimates import Estimate
from analysis.study import make_study
from disttrain.records.node import Preflight
from disttrain.records.run_directory import RunDir
from tests.support.golden import golden
from tests.support.link_rates import preflight_of, ring
from tests.support.straggler_records import delays
from tests.support.studies import changed, delayed, placed, rows_of, runs_of, section_of, study_of

HOSTS = ["c00", "c01", "c02", "c03"]
RANK = Culprit(
    "rank 3 on c01", "c01", (3,), "compute_s", Estimate(0.05, 0.049, 0.0512, 1, "within run"), 0.04,
    0.2, True, 11, 110,
)  # fmt: skip


def slow_runs(*slow_s: float) -> list[Run]:
    """A run of four ranks for each of these delays of rank 2, on nodes of the same names."""
    return [
        delayed(run, delays(4, 110, slow=[2], slow_s=seconds, jitter_s=0.003, seed=at), HOSTS)
        for at, (run, seconds) in enumerate(zip(runs_of(nodes=(4,)), slow_s, strict=False))
    ]


def part(count: int = 1, repeats: int = 1, nodes: int = 0, **changes: Any) -> Recurrence:
    """A culprit whose excess and cost grow by a tenth from one repeat to the next."""
    first = replace(RANK, **changes)
    named = [
        replace(first, excess_s=first.excess_s.scaled(1 + at / 10), cost_s=first.cost_s * (1 + at / 10))
        for at in range(count)
    ]
    return Recurrence(tuple(named), repeats, nodes)


def limits(*sensitivity: Any) -> dict[str, Any]:
    return {"repeats": [Diagnosis((), Sensitivity(*sensitivity), "")]}


CASES: dict[str, dict[str, Any]] = {
    "unknown": {"repeats": [], "lacking": "ranks 1, 2, 3 of 4 recorded 0 of 100 measured steps"},
    "waiting unknown": {},
    "rank": {"parts": [part()], "phase": "compute"},
    "for a while, on other nodes": {
        "parts": [part(2, 3, 2, persistent=False), part()], "phase": "compute",
    },
    "half": {"parts": [part(name="c02, c03", other_nodes="c00, c01")], "phase": "compute"},
    "link": {
        "parts": [part(name="the link of node c01", link=SlowLink("", 12e6, 120e6))],
        "phase": "transfer",
    },
    "once": {"repeats": [Diagnosis((RANK,), None, ""), *[Diagnosis((), None, "")] * 2]},
    "nobody": {**limits(0.0041, 0.061, 0), "links": "judged"},
    "elsewhere": {**limits(0.0041, 0.061, 0), "elsewhere": ["node c02 at 2 ranks"]},
    "no rates": {**limits(0.0041, 0.061, 0), "links": "not measured"},
    "few steps": limits(np.inf, 0.061, None),
    "not sensitive": {**limits(0.035, 0.061, 240), "links": "the nodes share a machine"},
    "ranks differ": limits(0.035, 0.061, None),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "place": "4 ranks", "repeats": [Diagnosis((), None, "")], "parts": [], "phase": "", "lacking": "",
    "links": "", "elsewhere": [],
}  # fmt: skip


def test_the_sentence_of_each_case() -> None:
    texts = {case: say("slow", **DEFAULTS | numbers) for case, numbers in CASES.items()}
    assert max(len(text.split()) for text in texts.values()) <= 40
    golden("slow.txt", "".join(f"{case}: {text}\n" for case, text in texts.items()))


def test_a_slow_rank_is_named_with_its_excess_cost_and_repeats() -> None:
    study = make_study(slow_runs(0.05, 0.05))
    section = section_of(stragglers, study)
    assert section.conclusion.startswith("On 4 ranks: rank 2 on c02 is slow (2 of 2 repeats): compute takes ")
    assert first_screen.answers(study, [])[first_screen.SLOW] == section.conclusion
    (named,) = rows_of(section)
    culprits = [each.culprits[0] for each in study.diagnoses(study.curves[0].points[-1])]
    assert (named["name"], named["phase"], named["last_share"]) == ("rank 2 on c02", "compute", 1.0)
    assert named["excess_s"].value == pytest.approx(np.mean([each.excess_s.value for each in culprits]))
    assert named["cost_s"] == pytest.approx(np.mean([each.cost_s for each in culprits]))
    whole_s = sum(each.step_s for each in culprits)
    assert named["share"].value == pytest.approx(sum(each.cost_s for each in culprits) / whole_s)
    assert [run.name for run in section.tables[0].sources[0]] == ["n4x1-r0", "n4x1-r1"]


def test_the_ranks_of_the_run_with_the_largest_cost_are_shown_by_their_blame() -> None:
    section = section_of(stragglers, slow_runs(0.05, 0.08))
    assert "n4x1-r1" in section.tables[1].caption
    first, *others = rows_of(section, "ranks")
    assert (first["rank"], first["host"], first["last_share"]) == (2, "c02", 1.0)
    assert first["wait_s"] == pytest.approx(0, abs=1e-4), "the others wait for it"
    assert min(row["wait_s"] for row in others) > 0.03
    assert first["own_s"].value > max(row["own_s"].value for row in others)
    assert first["blame_share"] == first["node_share"] > 0.9
    assert sum(row["blame_share"] for row in (first, *others)) == pytest.approx(1)
    assert "<title>rank 2 on c02</title>" in section.figures[0].svg


def test_equal_ranks_share_the_last_place_and_more_than_eight_are_folded() -> None:
    (run,) = runs_of(nodes=(10,), repeats=1)
    section = section_of(stragglers, [delayed(run, np.zeros((10, 110)))])
    assert [row["last_share"] for row in rows_of(section)] == pytest.approx([0.1] * 10)
    assert table_view(section.tables[-1]).folded


def test_waiting_of_the_ranks_is_that_of_the_phases() -> None:
    added = delays(4, 110, slow=[2], slow_s=0.002, jitter_s=0.004)
    noisy = delayed(runs_of(nodes=(4,))[0], added, noise_s=0.002)
    study = make_study([*runs_of(nodes=(1,), repeats=1), noisy])
    wait = study.curves[0].points[-1].phases.mean_s("comm_wait_s")
    assert wait is not None
    rows = rows_of(section_of(stragglers, study), "ranks")
    assert np.mean([row["wait_s"] for row in rows]) == pytest.approx(wait.value)


def test_of_many_ranks_the_latest_are_drawn_under_their_own_numbers() -> None:
    """Ranks 1 to 39 recorded 100 measured steps, of which the last is slow."""
    (run,) = runs_of(nodes=(40,), repeats=1)
    run = delayed(run, delays(40, 111, slow=[39], slow_s=0.05, jitter_s=0.001))
    section = section_of(stragglers, [replace(run, steps=run.steps.chosen(run.steps.rank > 0))])
    assert rows_of(section, "ranks")[0]["rank"] == 39
    cells = exported([section])[0]["lateness"].rows
    ranks = {rank for rank, *_ in cells}
    assert (len(ranks), len(cells)) == (32, 32 * 100)
    assert 39 in ranks
    assert np.mean([excess for rank, _, excess in cells if rank == 39]) == pytest.approx(0.05, abs=0.001)


@pytest.mark.parametrize(
    ("cluster", "expected"), [("slurm", "the link of node c01 is slow"), ("local", "share a machine")]
)
def test_a_slow_link_is_named_unless_the_nodes_share_a_machine(cluster: str, expected: str) -> None:
    run = delayed(runs_of(nodes=(4,))[0], delays(4, 110, jitter_s=0.003), HOSTS, transfer_s=0.3)
    run = placed(run, HOSTS, cluster=cluster)
    preflight = Preflight.model_validate(preflight_of(ring(4, {1: 0.1})))
    measured = replace(run, attempts=(replace(run.attempts[0], preflight=preflight),))
    assert expected in section_of(stragglers, [measured]).conclusion


def test_ranks_without_step_records_are_the_reason_why_none_is_slow() -> None:
    study = study_of()
    assert stragglers(study) is None
    assert "ranks 1, 2, 3 of 4 recorded" in first_screen.answers(study, [])[first_screen.SLOW]
    pipelines = [changed(run, strategy="pipeline") for run in study.runs]
    assert "stages of a pipeline" in first_screen.answers(make_study(pipelines), [])[first_screen.SLOW]
    some = [*pipelines[:-1], study.runs[-1]]
    assert "recorded" in first_screen.answers(make_study(some), [])[first_screen.SLOW]
    assert first_screen.SLOW not in first_screen.answers(study_of(nodes=(1,)), [])


def test_the_leading_curve_is_searched_before_the_limit_of_runs() -> None:
    """Of two configurations with five repeats, the second is a tenth faster."""
    axes = [{"optim.lr": 0.002}, {"optim.lr": 0.001}]
    known = runs_of(nodes=(2,), repeats=1, axes=axes, all_ranks=True)
    repeats = [
        replace(run, folder=RunDir(Path(f"{run.path}{number}"))) for run in known for number in range(5)
    ]
    study = make_study(repeats)
    assert study.leading_curve is study.curves[-1]
    assert [len(study.diagnoses(curve.points[-1])) for curve in study.curves] == [3, 5]
