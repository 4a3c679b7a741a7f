"""Targets against figures: met, missed, or not settled by the runs; the section, the sentence, exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.read.run import Run
from analysis.report.sections.targets import sentence
from analysis.report.sections.targets import targets as targets_section
from analysis.report.sentences import say
from analysis.results import targets
from analysis.results.curves import scaling_curves
from analysis.results.targets import TargetResult
from analysis.stats.estimates import Basis, Estimate
from analysis.study import make_study
from disttrain.errors import ConfigError
from disttrain.records.json_files import write_json
from disttrain.records.planned import Ingested
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import WHEN
from tests.support.golden import golden
from tests.support.studies import changed, rows_of, runs_of, section_of

RESULT = TargetResult(
    "s", "rank", 4, "4 ranks", "efficiency", 0.8, False, Estimate(0.7, 0.65, 0.75, 3), "missed", "",
    False, (),
)  # fmt: skip


def in_sweep(folder: Path, runs: Sequence[Run], *wanted: dict[str, Any]) -> list[Run]:
    """The runs in a sweep with these targets."""
    folder.mkdir()
    write_json(folder / "sweep.json", {"targets": wanted})
    return [replace(run, folder=RunDir(folder / run.name)) for run in runs]


def check(
    folder: Path, runs: Sequence[Run], *wanted: dict[str, Any], base: str | None = None
) -> list[TargetResult]:
    moved = in_sweep(folder / "s", runs, *wanted)
    return targets.required(moved, scaling_curves(moved, base))


def target(metric: str, value: float, at: int | str | None = None) -> dict[str, Any]:
    return {"metric": metric, "value": value, "at": at}


def measured(*shares: float) -> list[Run]:
    """Runs of one node, whose steps take 0.1 s for each of these shares of communication and MFUs."""
    return [
        changed(run, communication_overhead_percent=100 * share, mfu=share)
        for run, share in zip(runs_of(nodes=(1,)), shares, strict=False)
    ]


@pytest.mark.parametrize(
    ("metric", "value", "verdict"),
    [
        ("efficiency", 0.65, "met"), ("efficiency", 0.8, "missed"), ("efficiency", 0.7225, "cannot tell"),
        ("throughput", 200, "met"), ("throughput", 400, "missed"),
        ("throughput_per_gpu", 50, "met"), ("throughput_per_gpu", 60, "missed"),
        ("communication_share", 0.4, "met"), ("communication_share", 0.2, "missed"),
        ("mfu", 0.3, "met"), ("mfu", 0.5, "missed"),
    ],
)  # fmt: skip
def test_the_interval_decides(tmp_path: Path, metric: str, value: float, verdict: str) -> None:
    runs = [changed(run, communication_overhead_percent=28.0, mfu=0.4) for run in runs_of()]
    (result,) = check(tmp_path, runs, target(metric, value))
    assert (result.verdict, result.size, result.unit, len(result.runs)) == (verdict, 4, "rank", 3)
    assert result.at_most is (metric == "communication_share")


ONE_REPEAT, CONTAINED = "one repeat: no interval between repeats", "the interval contains the target"


@pytest.mark.parametrize(
    ("low", "high", "basis", "verdict", "reason"),
    [
        (190.0, 210.0, "repeats", "cannot tell", CONTAINED),
        (200.0, 210.0, "repeats", "cannot tell", CONTAINED),
        (190.0, 200.0, "repeats", "cannot tell", CONTAINED),
        (200.0, 200.0, "repeats", "met", ""),
        (201.0, 210.0, "repeats", "met", ""),
        (190.0, 199.0, "repeats", "missed", ""),
        (None, 210.0, "repeats", "cannot tell", ONE_REPEAT),
        (201.0, None, "repeats", "cannot tell", ONE_REPEAT),
        (201.0, 210.0, "within run", "cannot tell", ONE_REPEAT),
        (None, None, "not stationary", "cannot tell", "the runs are not stationary"),
        (None, None, "equal repeats", "cannot tell", "repeats are equal to the last digit: no interval"),
    ],
)
def test_an_interval_between_repeats_meets_a_target_that_it_does_not_contain(
    tmp_path: Path, low: float | None, high: float | None, basis: Basis, verdict: str, reason: str
) -> None:
    runs = in_sweep(tmp_path / "s", runs_of(nodes=(1,)), target("throughput", 200))
    (curve,) = scaling_curves(runs)
    (point,) = curve.points
    achieved = replace(point.samples_per_s, low=low, high=high, basis=basis)
    (result,) = targets.results(runs, [replace(curve, points=(replace(point, samples_per_s=achieved),))])
    assert (result.verdict, result.reason) == (verdict, reason)


BASE = "this size is the base, whose efficiency is 1 by definition"


def unfinished(run: Run) -> Run:
    return replace(run, included=False)


@pytest.mark.parametrize(
    ("nodes", "finished", "wanted", "reason"),
    [
        ((1, 2), 2, target("efficiency", 0.5, at=1), BASE),
        ((1, 2, 8), 2, target("efficiency", 0.5), "no finished run of 8 ranks"),
        ((1, 2), 2, target("efficiency", 0.5, at="4 nodes"), "no finished run of 4 nodes"),
        ((2,), 1, target("mfu", 0.5), "no finished run"),
        ((1,), 1, target("gpu_utilization", 0.5), "gpu_utilization was not measured in 3 runs"),
    ],
)  # fmt: skip
def test_a_figure_that_there_is_not_cannot_tell(
    tmp_path: Path, nodes: tuple[int, ...], finished: int, wanted: dict[str, Any], reason: str
) -> None:
    runs = [
        run if run.metrics and run.metrics.nodes <= finished else unfinished(run)
        for run in runs_of(nodes=nodes)
    ]
    (result,) = check(tmp_path, runs, wanted)
    assert (result.verdict, result.reason, result.achieved is None) == (
        "cannot tell",
        reason,
        "base" not in reason,
    )


def test_each_repeat_and_the_base_are_needed(tmp_path: Path) -> None:
    (result,) = check(tmp_path, [*measured(0.5), *runs_of(nodes=(1,))[1:]], target("mfu", 0.1))
    assert result.reason == "mfu was not measured in 2 runs"
    small, large = ([{"optim.lr": lr}] for lr in (0.1, 0.2))
    runs = [*runs_of(nodes=(1, 2), axes=small), *runs_of(nodes=(2, 4), axes=large)]
    (tmp_path / "two").mkdir()
    found = check(tmp_path / "two", runs, target("efficiency", 0.5), base="1")
    assert [each.reason for each in found] == ["", "no finished run of the base size"]


def test_communication_is_a_share_of_all_seconds_and_other_shares_are_means(tmp_path: Path) -> None:
    """Steps of 0.1 and 0.3 s with 10 and 50 % communication, and an MFU of 0.1 and 0.5."""
    short, long = measured(0.1, 0.5)
    assert long.metrics is not None
    long = changed(long, measured_s=0.3 * long.metrics.measured_steps, samples_per_s=8 / 0.3)
    found = check(tmp_path, [short, long], target("communication_share", 0.2), target("mfu", 0.2))
    communication, mfu = (each.achieved.value for each in found if each.achieved)
    assert (communication, mfu < 0.35) == (pytest.approx(0.4, rel=0.01), True)


def test_a_target_is_that_of_each_curve_at_the_largest_size_planned_for_it(tmp_path: Path) -> None:
    runs = [
        run if run.metrics and run.metrics.nodes == 1 else unfinished(run)
        for lr, nodes in ((0.1, (1, 2)), (0.2, (1, 4)))
        for run in runs_of(nodes=nodes, axes=[{"optim.lr": lr}])
    ]
    sizes = {each.curve: each.size for each in check(tmp_path, runs, target("throughput", 1))}
    assert sizes == {"lr 0.1": 2, "lr 0.2": 4}


def test_a_sweep_has_its_own_targets(tmp_path: Path) -> None:
    one, other = (
        in_sweep(tmp_path / name, runs_of(), target("efficiency", value))
        for name, value in (("one", 0.6), ("other", 0.95))
    )
    found = targets.required([*one, *other], scaling_curves([*one, *other]))
    assert {each.curve: each.verdict for each in found} == {"one": "met", "other": "missed"}


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["met", "met"], 0),
        (["met", "cannot tell"], 3),
        (["cannot tell", "missed", "met"], 1),
    ],
)
def test_exit_codes_put_a_missed_target_first(verdicts: list[Any], code: int) -> None:
    assert targets.exit_code([replace(RESULT, verdict=verdict) for verdict in verdicts]) == code


def test_sentences_as_they_were_approved() -> None:
    cases = [
        RESULT,
        replace(
            RESULT,
            metric="mfu",
            achieved=None,
            verdict="cannot tell",
            reason="mfu was not measured in 3 runs",
        ),
        replace(
            RESULT,
            metric="throughput",
            target=1000.0,
            achieved=Estimate(1230.0, 1200.0, 1260.0, 3),
            verdict="met",
        ),
        replace(
            RESULT,
            metric="communication_share",
            at_most=True,
            achieved=Estimate(0.28, None, None, 1),
            emulated=True,
        ),
    ]
    lines = [sentence(result) for result in cases]
    assert all(line.isascii() for line in lines), "for terminals of any encoding"
    golden("targets.txt", "\n".join(lines) + "\n")


def test_no_targets_and_corrupt_targets_are_refused(tmp_path: Path) -> None:
    runs = in_sweep(tmp_path / "s", runs_of(nodes=(1,)))
    with pytest.raises(ConfigError, match=r"^no targets in s: add a section `targets`"):
        targets.required(runs, [])
    table = Ingested(source="table.csv", sha256="", rows=1, ingested=WHEN)
    ingested = [
        replace(run, record=run.record and run.record.model_copy(update={"ingested": table})) for run in runs
    ]
    with pytest.raises(ConfigError, match="ingest the table under another --sweep"):
        targets.required(ingested, [])
    for content in ("{", "[]", '{"targets": [{"metric": "speed", "value": 1}]}'):
        (tmp_path / "s" / "sweep.json").write_text(content)
        with pytest.raises(ConfigError, match=r"^cannot read the targets in .*/s/sweep\.json: "):
            targets.required(runs, [])
    section = section_of(targets_section, make_study(runs))
    assert "s/sweep.json" in section.conclusion, "the report is written nevertheless"


def test_the_section_has_a_row_for_each_target_and_concludes(tmp_path: Path) -> None:
    wanted = (
        target("efficiency", 0.6),
        target("efficiency", 0.9),
        target("throughput", 1),
        target("mfu", 0.1),
    )
    section = section_of(targets_section, in_sweep(tmp_path / "s", runs_of(), *wanted))
    counts = {"met": 2, "missed": 1, "cannot tell": 1}
    assert section.conclusion == say("targets", 4, counts, ["efficiency at 4 ranks"])
    shares, rates = section.tables
    assert [row["verdict"] for row in rows_of(section)] == ["met", "missed", "cannot tell"]
    assert shares.emphasized == [1]
    assert [run.name for run in rates.sources[0]] == ["n4x1-r0", "n4x1-r1", "n4x1-r2"]
    assert targets_section(make_study(runs_of())) is None
