"""Sweeps and configurations compared, on runs with known ratios, and their recorded differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import comparison
from analysis.comparison import PointComparison, repeat_plan
from analysis.read.differences import Difference, differences, unrecorded
from analysis.read.run import Run
from analysis.report.sections.comparison import comparison as comparison_section
from analysis.report.sections.comparison import configurations
from analysis.report.sentences import say
from analysis.results.curves import Curve
from analysis.stats.estimates import Estimate, on_basis
from analysis.study import Study, make_study
from disttrain.records.json_files import write_json
from disttrain.records.planned import AutoRepeats, Ingested
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run
from tests.support.golden import golden
from tests.support.studies import BUCKET, STRATEGY, curves_of, run_of, sweep_of

SLOW, FAST = (0.1000, 0.1003, 0.0997), (0.0900, 0.0902, 0.0898)
RATE = "optim.lr"


def study_against(runs: Sequence[Run], others: Sequence[Run]) -> Study:
    return make_study(runs, against=make_study(others))


def pairs(compared: Sequence[PointComparison]) -> list[tuple[str, str, int]]:
    return [(each.curve.label, each.base_curve.label, each.point.size) for each in compared]


@pytest.mark.parametrize(
    ("new", "old", "verdict", "reason"),
    [
        (FAST, SLOW, "faster", ""),
        (SLOW, FAST, "slower", ""),
        (SLOW, (0.1001, 0.0999, 0.1003), "equivalent", ""),
        (SLOW, (0.08, 0.1, 0.12), "unsettled", "the interval is too wide"),
        (SLOW, (0.05,), "unsettled", "one repeat"),
        ((0.05,), SLOW, "unsettled", "one repeat"),
        ((0.080, 0.0801, 0.104, 0.1041), (0.3, 0.301), "unsettled", "repeats fall into two groups"),
        ((0.1, 0.1, 0.1), FAST, "unsettled", "equal repeats"),
        (FAST, (0.1, 0.1, 0.1), "unsettled", "equal repeats"),
    ],
)
def test_points_of_one_shape_are_compared(
    new: Sequence[float], old: Sequence[float], verdict: str, reason: str
) -> None:
    compared = comparison.against(curves_of((2, 4), new, sweep="new"), curves_of((1, 2), old, sweep="old"))
    assert pairs(compared) == [("new", "old", 2)]
    (each,) = compared
    assert (each.verdict, each.reason) == (verdict, reason)
    assert each.ratio.value == pytest.approx(each.point.samples_per_s.value / each.base.samples_per_s.value)


@pytest.mark.parametrize("side", [0, 1])
def test_a_point_that_is_not_stationary_settles_nothing(side: int) -> None:
    both = curves_of((1,), groups=[{STRATEGY: "ddp"}, {STRATEGY: "fsdp"}])
    (point,) = both[side].points
    moving = replace(point, samples_per_s=on_basis(point.samples_per_s, "not stationary"))
    both[side] = replace(both[side], points=(moving,))
    (each,) = comparison.against([both[0]], [both[1]])
    assert (each.verdict, each.reason) == ("unsettled", "not stationary")


def test_curves_match_by_their_common_axes_or_where_one_side_has_a_single_curve() -> None:
    def of(sweep: str, *groups: dict[str, Any], **options: Any) -> list[Curve]:
        return curves_of((2,), groups=groups or [{}], sweep=sweep, **options)

    strategies = [{STRATEGY: kind} for kind in ("ddp", "fsdp")]
    plain, new = of("plain"), of("new", *strategies)
    labels = [f"strategy {kind}" for kind in ("ddp", "fsdp")]
    assert pairs(comparison.against(new, of("old", *strategies))) == [(each, each, 2) for each in labels]
    assert pairs(comparison.against(new, plain)) == [(each, "plain", 2) for each in labels]
    low, high = ([{RATE: rate} for rate in rates] for rates in ((0.1, 0.2), (0.3, 0.4)))
    ours, theirs = of("ours", *low), of("theirs", *high)
    assert comparison.against(ours, theirs) == []
    assert len(comparison.against(ours[:1], theirs)) == len(comparison.against(ours, theirs[:1])) == 2
    emulated = of("emulated", metrics={"emulated": True})
    assert comparison.against(plain, emulated) == comparison.against(emulated, plain) == []


@pytest.mark.parametrize(
    ("kinds", "base"),
    [(("fsdp", "ddp"), "ddp"), (("fsdp", "hsdp"), "fsdp"), (("dp", "ddp", "single"), "ddp")],
)
def test_strategies_are_compared_with_the_lowest_base_where_all_else_is_equal(
    kinds: Sequence[str], base: str
) -> None:
    groups = [{STRATEGY: kind, "train.seed": seed} for kind in kinds for seed in (0, 1)]
    compared = comparison.options(curves_of((2,), groups=groups), STRATEGY)
    assert [(each.base_curve.axes[STRATEGY], each.base_curve.axes["train.seed"]) for each in compared] == [
        (base, each.curve.axes["train.seed"]) for each in compared
    ]
    assert {each.curve.axes[STRATEGY] for each in compared} == {*kinds} - {base}
    assert comparison.options(curves_of(), STRATEGY) == []


def test_configurations_are_the_others_of_the_sweep_that_are_as_real_as_the_lead() -> None:
    lead, second, third = curves_of((1,), groups=[{RATE: rate} for rate in (0.1, 0.2, 0.3)])
    others = [lead, second, replace(third, emulated=True), replace(third, sweep="other")]
    (each,) = comparison.configurations(lead, others)
    assert (each.curve, each.base_curve) == (lead, second)


def test_the_best_of_many_is_corrected_for_having_been_chosen() -> None:
    (curve,) = curves_of((2,))

    def of(*rates: float) -> Curve:
        return replace(curve, points=(replace(curve.points[0], samples_per_s_by_run=rates),))

    lead, rest = of(1.019, 1.024, 1.029), [of(0.99, 1.0, 1.01) for _ in range(4)]
    for others, verdict in ((rest[:1], "faster"), (rest, "unsettled")):
        assert {each.verdict for each in comparison.configurations(lead, [lead, *others])} == {verdict}


def test_the_repeat_plan_is_by_the_spread_of_sizes_whose_repeats_differ() -> None:
    spread, equal = curves_of((1,), SLOW), curves_of((1,), (0.1, 0.1, 0.1))
    plan = repeat_plan(spread)
    assert plan is not None
    assert plan == repeat_plan([*spread, *equal])
    assert plan == {"spread": pytest.approx(0.003, rel=0.01), "needed": {"5": 2, "2": 2}}
    assert repeat_plan(equal) is repeat_plan(curves_of((1,), (0.1,))) is None


def test_each_size_lacks_the_repeats_that_narrow_its_interval(tmp_path: Path) -> None:
    for nodes, steps_s in ((1, (0.099, 0.1, 0.101)), (2, (0.1,)), (4, (0.1, 0.1))):
        for repeat, mean_s in enumerate(steps_s):
            fake_run(tmp_path / "s" / f"n{nodes}-r{repeat}", nodes=nodes, mean_s=mean_s, steps=30)
    lacking = comparison.repeats_lacking(tmp_path / "s", 0.02)
    of_first = {f"n1-r{repeat}": 1 for repeat in range(3)}
    assert lacking == of_first | {"n2-r0": 1, "n4-r0": 0, "n4-r1": 0}
    assert set(comparison.repeats_lacking(tmp_path / "s", 0.1).values()) == {0, 1}


def with_environment(run: Run, folder: Path, **variables: str) -> Run:
    """The run in another folder, with these variables in its env.json."""
    moved = replace(run, folder=RunDir(folder / run.sweep / run.name))
    records = {name: {"value": value, "reason": "", "source": "site"} for name, value in variables.items()}
    write_json(moved.folder.env_json, {"variables": records})
    return moved


def test_differences_name_config_code_and_environment(tmp_path: Path) -> None:
    old = run_of(metrics={"torch": "2.12.0"})
    new = run_of(axes={RATE: 0.5, "train.log_every": 7})  # the second changes neither results nor speed
    assert new.record is not None
    code = new.record.provenance.code.model_copy(update={"git_commit": "a" * 40})
    provenance = new.record.provenance.model_copy(update={"code": code})
    new = replace(new, record=new.record.model_copy(update={"provenance": provenance}))
    new = with_environment(new, tmp_path, NCCL_SOCKET_IFNAME="eth0")
    assert differences([new], [old]) == [
        Difference("config", RATE, "0.5", "0.001"),
        Difference("code", "commit", "a" * 40, "f" * 40),
        Difference("environment", "NCCL_SOCKET_IFNAME", "eth0", "\N{EN DASH}"),
        Difference("environment", "torch", "2.13.0", "2.12.0"),
    ]
    assert differences([new], [new]) == []
    (both, *_) = differences([new, old], [old])
    assert (both.value, both.base) == ("0.001, 0.5", "0.001")


def test_what_follows_from_time_run_directory_or_code_hash_is_no_difference(tmp_path: Path) -> None:
    def run(at: int, more: str = "") -> Run:
        folder = tmp_path / f"runs{at}"
        path = f"{folder}/.code/{at}06a639f880cc4e9/src:.:/home/someone{more}"
        own = {name: f"{folder}/{at}" for name in ("RUN_DIR", "CHECKPOINT_DIR", "ATTEMPT", "DEADLINE")}
        own = {f"DISTTRAIN_{name}": value for name, value in own.items()}
        return with_environment(run_of(), folder, PYTHONPATH=path, **own)

    assert differences([run(0)], [run(1)]) == []
    (each,) = differences([run(0, ":/opt/other")], [run(1)])
    assert (each.name, each.value) == ("PYTHONPATH", ".code/src:.:/home/someone:/opt/other")


def test_of_what_one_side_does_not_record_only_common_properties_are_compared() -> None:
    run = run_of()
    lost = replace(run, record=None)
    assert {(each.name, each.value) for each in differences([lost], [run])} == {
        ("Python", "\N{EN DASH}"),
        ("host of the submission", "\N{EN DASH}"),
    }
    assert (unrecorded([lost]), unrecorded([run, lost])) == (["config", "code"], [])
    assert run.record is not None
    table = Ingested(source="t.csv", sha256="", rows=1, ingested="")
    ingested = replace(run, record=run.record.model_copy(update={"ingested": table}))
    assert unrecorded([ingested]) == ["config"]


def test_the_section_compares_with_the_other_sweep(tmp_path: Path) -> None:
    new, old = (
        sweep_of(step_s=FAST, sweep="new"),
        sweep_of(step_s=SLOW, sweep="old", metrics={"torch": "2.12.0"}),
    )
    section = comparison_section(study_against(new, old))
    assert section is not None
    assert [table.name for table in section.tables] == ["comparison", "differences"]
    assert [row[1] for row in section.tables[1].rows] == ["torch"]
    assert section.figures[0].svg.startswith("<svg")
    assert comparison_section(make_study(new)) is None
    moved = [replace(run, folder=RunDir(tmp_path / "new" / run.name)) for run in old]
    section = comparison_section(study_against(new, moved))
    assert section is not None
    assert section.conclusion.startswith(f"/runs/new is faster than {tmp_path / 'new'} at ")
    emulated = sweep_of(sweep="emulated", metrics={"emulated": True})
    section = comparison_section(study_against(new, emulated))
    assert section is not None
    assert section.tables == []


def test_the_section_of_configurations_compares_the_fastest_and_explains_what_was_swept() -> None:
    groups = [{BUCKET: size} for size in (4, 32)]
    for step_s, verdict in ((SLOW, ("faster", "")), ((0.1,), ("unsettled", "one repeat"))):
        section = configurations(make_study(sweep_of((1, 2), step_s, groups)))
        assert section is not None
        rows = [row[-3:] for row in section.tables[0].rows]
        assert [tuple(row[1:]) for row in rows] == [verdict] * 2
        assert [row[0].value for row in rows] == pytest.approx([1.1] * 2)
        assert [text.partition(":")[0] for text in section.paragraphs] == [BUCKET]
    assert configurations(make_study(sweep_of())) is None


def test_sentences_of_comparisons() -> None:
    """Each macro with its cases."""
    ratio, alone = Estimate(1.1, 1.06, 1.14, 3), Estimate(1.2, None, None, 1)
    faster, unsettled = ("faster", "a", "b", ""), ("unsettled", "a", "b", "one repeat")
    slower, equivalent = ("slower", "a", "b", ""), ("equivalent", "a", "b", "")
    at_2, alone_at_2 = {"size": "2 nodes", "ratio": ratio}, {"size": "2 nodes", "ratio": alone}
    several = [
        {"size": "1 node", "ratio": Estimate(0.8, 0.7, 0.9, 3)},
        {"size": "2 nodes", "ratio": Estimate(0.9, 0.8, 0.95, 3)},
    ]
    one = Difference("environment", "torch", "2.13.0", "2.12.0")
    texts = [
        say("verdicts", [(faster, [at_2]), (unsettled, [alone_at_2])], 3),
        say("verdicts", [(slower, several), (equivalent, [at_2]), (faster, [at_2])], 2),
        say(
            "repeat_plan",
            {"spread": 0.012, "needed": {"5": 3, "2": None}},
            [AutoRepeats(within=0.02, most=10)],
        ),
        say("compared_records", [one], [], {}, "new", "old"),
        say("compared_records", [one, one], [], {"new": [], "old": ["code"]}, "new", "old"),
        say("compared_records", [], ["config", "code"], {}, "new", "old"),
        say("compared_records", [], [], {"new": ["config"], "old": ["config"]}, "new", "old"),
        say("nothing_compared", "old"),
        say("unmatched", ["a of new", "b of old"]),
        say("caveat", "limits", {"largest": "4 nodes", "few": []}, False),
        say("caveat", "limits", {"largest": "8 ranks", "few": ["bucket_mb"]}, False),
    ]
    golden("comparisons.txt", "\n".join(texts) + "\n")
