"""Targets against figures: met, missed, or not settled by the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.ingest.write import ingest
from analysis.read.load import load_runs
from analysis.report.section import Section
from analysis.report.sections import targets as targets_section
from analysis.results import targets
from analysis.results.curves import scaling_curves
from analysis.stats.estimates import Estimate, on_basis
from analysis.step_statistics import step_statistics
from analysis.study import make_study
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json
from tests.support.fake_runs import WHEN, fake_run, fake_sweep


def sweep_with(tmp_path: Path, wanted: list[dict[str, Any]], **options: Any) -> Path:
    sweep = fake_sweep(tmp_path, **options)
    write_json(sweep / "sweep.json", {"name": sweep.name, "base": {}, "created": WHEN, "targets": wanted})
    return sweep


def check(sweeps: list[Path], base: str | None = None, **options: Any) -> list[targets.TargetResult]:
    runs = load_runs(sweeps, **options)
    return targets.required(runs, scaling_curves(runs, base, step_statistics(runs)))


def verdict_of(sweep: Path) -> tuple[str, str]:
    (result,) = check([sweep])
    return result.verdict, result.reason


@pytest.mark.parametrize(
    ("metric", "value", "verdict"),
    [
        ("efficiency", 0.65, "met"),
        ("efficiency", 0.8, "missed"),
        ("efficiency", 0.7225, "cannot tell"),
        ("throughput", 200, "met"),
        ("throughput", 400, "missed"),
        ("communication_share", 0.4, "met"),
        ("communication_share", 0.2, "missed"),
        ("mfu", 0.3, "met"),
        ("mfu", 0.5, "missed"),
    ],
)
def test_the_interval_decides(tmp_path: Path, metric: str, value: float, verdict: str) -> None:
    overrides = {"communication_overhead_percent": 28.0, "mfu": 0.4}
    sweep = sweep_with(tmp_path, [{"metric": metric, "value": value}], **overrides)
    (result,) = check([sweep])
    assert (result.verdict, result.size, result.unit) == (verdict, 4, "rank")
    assert result.achieved is not None
    assert len(result.runs) == 3


def test_a_target_holds_at_its_size(tmp_path: Path) -> None:
    sweep = sweep_with(tmp_path, [{"metric": "efficiency", "value": 0.8, "at": 2}])
    (result,) = check([sweep])
    assert (result.verdict, result.size) == ("met", 2)


def test_one_repeat_cannot_tell(tmp_path: Path) -> None:
    sweep = sweep_with(tmp_path, [{"metric": "throughput", "value": 1}], repeats=1)
    assert verdict_of(sweep) == ("cannot tell", "one repeat: no interval between repeats")


@pytest.mark.parametrize("metric", ["throughput", "mfu", "communication_share"])
def test_runs_that_are_not_stationary_cannot_tell(tmp_path: Path, metric: str) -> None:
    overrides = {"communication_overhead_percent": 28.0, "mfu": 0.4}
    table = load_runs([sweep_with(tmp_path, [{"metric": metric, "value": 0.1}], **overrides)])
    (curve,) = scaling_curves(table)
    drifting = [
        replace(point, samples_per_s=on_basis(point.samples_per_s, "not stationary"))
        for point in curve.points
    ]
    (result,) = targets.results(table, [replace(curve, points=drifting)])
    assert (result.verdict, result.reason) == ("cannot tell", "the runs are not stationary")
    assert targets.exit_code([result]) == 3


def test_the_base_cannot_tell_its_own_efficiency(tmp_path: Path) -> None:
    sweep = sweep_with(tmp_path, [{"metric": "efficiency", "value": 0.5, "at": 1}])
    assert verdict_of(sweep) == ("cannot tell", "this size is the base, whose efficiency is 1 by definition")


def test_a_curve_without_the_base_cannot_tell_its_efficiency(tmp_path: Path) -> None:
    wanted = [{"metric": "efficiency", "value": 0.5}]
    sweep = sweep_with(tmp_path, wanted, axes=[{"optim.lr": 0.1}])
    fake_sweep(tmp_path, nodes=(2, 4), axes=[{"optim.lr": 0.2}])
    found = {each.curve: each.reason for each in check([sweep], base="1")}
    assert found["lr 0.2"] == "no finished run of the base size"


@pytest.mark.parametrize(
    ("low", "high", "verdict", "reason"),
    [
        (190.0, 210.0, "cannot tell", "the interval contains the target"),
        (200.0, 210.0, "cannot tell", "the interval contains the target"),
        (190.0, 200.0, "cannot tell", "the interval contains the target"),
        (200.0, 200.0, "met", ""),
        (201.0, 210.0, "met", ""),
        (190.0, 199.0, "missed", ""),
        (None, 210.0, "cannot tell", "one repeat: no interval between repeats"),
        (201.0, None, "cannot tell", "one repeat: no interval between repeats"),
    ],
)
def test_an_interval_meets_a_target_that_it_does_not_contain(
    tmp_path: Path, low: float | None, high: float | None, verdict: str, reason: str
) -> None:
    table = load_runs([sweep_with(tmp_path, [{"metric": "throughput", "value": 200}], nodes=(1,))])
    (curve,) = scaling_curves(table)
    (point,) = curve.points
    achieved = replace(point.samples_per_s, low=low, high=high)
    changed = replace(curve, points=(replace(point, samples_per_s=achieved),))
    (result,) = targets.results(table, [changed])
    assert (result.verdict, result.reason) == (verdict, reason)


def test_each_curve_has_the_largest_size_that_was_planned_for_it(tmp_path: Path) -> None:
    axes = [{"optim.lr": 0.1}, {"optim.lr": 0.2}, {}]
    sweep = sweep_with(tmp_path, [{"metric": "efficiency", "value": 0.5}], nodes=(1, 2), axes=axes)
    for lr, nodes in ((0.1, 4), (0.2, 8)):
        planned = {"resources.nodes": nodes, "optim.lr": lr}
        fake_run(sweep / f"{lr}-{nodes}", nodes=nodes, axes=planned, end="failed", message="crashed")
    sizes = {each.curve: each.size for each in check([sweep])}
    assert sorted(sizes.values()) == [2, 4, 8]
    assert (sizes["lr 0.1"], sizes["lr 0.2"]) == (4, 8)


def test_sizes_of_one_node_are_ranks(tmp_path: Path) -> None:
    wanted = [{"metric": "throughput", "value": 1}]
    sweep = sweep_with(tmp_path, wanted, nodes=(1,), gpus_per_node=(1, 2))
    planned = {"resources.nodes": 1, "resources.gpus_per_node": 4}
    fake_run(sweep / "n1x4", gpus_per_node=4, axes=planned, end="failed", message="crashed")
    (result,) = check([sweep])
    assert (result.unit, result.size, result.reason) == ("rank", 4, "no finished run of 4 ranks")


@pytest.mark.parametrize(
    ("metric", "field"), [("mfu", "mfu"), ("communication_share", "communication_overhead_percent")]
)
def test_a_figure_that_one_repeat_lacks_cannot_tell(tmp_path: Path, metric: str, field: str) -> None:
    sweep = sweep_with(tmp_path, [{"metric": metric, "value": 0.5}], **{field: 20.0})
    path = sweep / "n4x1-r1" / "metrics.json"
    write_json(path, read_json(path) | {field: None})
    assert verdict_of(sweep) == ("cannot tell", f"{metric} was not measured in 1 run")


def test_communication_is_a_share_of_all_seconds_and_other_shares_are_means(tmp_path: Path) -> None:
    """Steps of 0.1 and 0.3 s with 10 and 50 % communication, and an MFU of 0.1 and 0.5."""
    for repeat, (step_s, share) in enumerate(((0.1, 0.1), (0.3, 0.5))):
        overrides = {"communication_overhead_percent": 100 * share, "mfu": share}
        fake_run(tmp_path / "s" / f"r{repeat}", repeat=repeat, mean_s=step_s, overrides=overrides)
    wanted = [{"metric": name, "value": 0.2} for name in ("communication_share", "mfu")]
    write_json(tmp_path / "s" / "sweep.json", {"targets": wanted})
    communication, mfu = (each.achieved for each in check([tmp_path / "s"]))
    assert communication is not None
    assert communication.value == pytest.approx(0.4, rel=0.01)
    assert mfu is not None
    assert mfu.value < 0.35


def test_a_planned_size_without_a_finished_run_cannot_tell(tmp_path: Path) -> None:
    sweep = sweep_with(tmp_path, [{"metric": "efficiency", "value": 0.5}])
    fake_run(sweep / "n8x1-r0", nodes=8, end="failed", message="out of memory")
    assert verdict_of(sweep) == ("cannot tell", "no finished run of 8 ranks")


def test_a_figure_that_was_not_measured_cannot_tell(tmp_path: Path) -> None:
    sweep = sweep_with(tmp_path, [{"metric": "gpu_utilization", "value": 0.5}])
    assert verdict_of(sweep) == ("cannot tell", "gpu_utilization was not measured in 3 runs")


def test_a_sweep_without_finished_runs_cannot_tell(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n2x1-r0", nodes=2, end="running")
    write_json(tmp_path / "s" / "sweep.json", {"targets": [{"metric": "mfu", "value": 0.5}]})
    assert verdict_of(tmp_path / "s") == ("cannot tell", "no finished run")
    assert targets.exit_code(check([tmp_path / "s"])) == 3


def test_every_curve_has_its_own_result(tmp_path: Path) -> None:
    axes = [{"optim.fused": True}, {"optim.fused": False}]
    sweep = sweep_with(tmp_path, [{"metric": "throughput", "value": 270, "at": 4}], axes=axes, step_s=0.08)
    found = check([sweep])
    assert {result.curve: result.verdict for result in found} == {
        "fused True": "met",
        "fused False": "missed",
    }
    assert len({result.achieved.value for result in found if result.achieved}) == 2


def test_two_sweeps_have_their_own_targets(tmp_path: Path) -> None:
    one = sweep_with(tmp_path, [{"metric": "efficiency", "value": 0.6}], name="one")
    other = sweep_with(tmp_path, [{"metric": "efficiency", "value": 0.95}], name="other")
    found = {result.curve: result.verdict for result in check([one, other])}
    assert found == {"one": "met", "other": "missed"}


def test_exit_codes_put_a_missed_target_first(tmp_path: Path) -> None:
    def code(*values: float) -> int:
        sweep = sweep_with(tmp_path, [{"metric": "efficiency", "value": value} for value in values])
        return targets.exit_code(check([sweep]))

    assert code(0.6) == 0
    assert code(0.6, 0.9) == 1
    assert code(0.6, 0.7225) == 3
    assert code(0.7225, 0.9) == 1


def test_sentences_have_value_interval_target_and_reason(tmp_path: Path) -> None:
    wanted = [{"metric": "efficiency", "value": 0.8}, {"metric": "gpu_utilization", "value": 0.9, "at": 2}]
    sweep = sweep_with(tmp_path, [*wanted, {"metric": "throughput", "value": 200.0}])
    table = load_runs([sweep])
    missed, unknown, met = map(targets_section.sentence, targets.results(table, scaling_curves(table)))
    assert missed.startswith("missed: efficiency at 4 ranks is 0.7")
    assert missed.endswith("], target at least 0.800")
    assert unknown == (
        "cannot tell: gpu_utilization at 2 ranks is unknown, target at least 0.900 (gpu_utilization was not "
        "measured in 3 runs)"
    )
    assert met.startswith("met: throughput at 4 ranks is 229 [")
    assert met.endswith("] samples/s, target at least 200 samples/s")


def test_a_sentence_is_ascii_and_groups_all_thousands_by_commas(tmp_path: Path) -> None:
    sweep = sweep_with(tmp_path, [{"metric": "throughput", "value": 1000.0}])
    (result,) = check([sweep])
    large = replace(result, achieved=Estimate(1230.0, 1200.0, 1260.0, 3, "repeats"))
    assert " is 1,230 [1,200 to 1,260] samples/s, target at least 1,000" in targets_section.sentence(large)
    assert targets_section.sentence(large).isascii()


def test_sentences_say_which_bound_and_which_runs_are_emulated(tmp_path: Path) -> None:
    wanted = [{"metric": "communication_share", "value": 0.4}]
    sweep = sweep_with(tmp_path, wanted, emulated=True, communication_overhead_percent=28.0)
    (result,) = check([sweep])
    assert targets_section.sentence(result).startswith("met: communication_share at 4 ranks is 0.280")
    assert targets_section.sentence(result).endswith(", target at most 0.400, emulated")
    assert result.achieved.value == pytest.approx(0.28)


@pytest.mark.parametrize(
    ("metric", "at", "planned", "size", "at_most"),
    [("mfu", None, [2, 4], 4, False), ("mfu", 8, [2], 8, False), ("communication_share", None, [2], 2, True)],
)
def test_a_target_without_a_curve_has_the_size_that_was_planned(
    tmp_path: Path, metric: str, at: int | None, planned: list[int], size: int, at_most: bool
) -> None:
    for nodes in planned:
        fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes, end="running")
    write_json(tmp_path / "s" / "sweep.json", {"targets": [{"metric": metric, "value": 0.5, "at": at}]})
    assert check([tmp_path / "s"]) == [
        targets.TargetResult(
            "s",
            "rank",
            size,
            f"{size} ranks",
            metric,
            0.5,
            at_most,
            None,
            "cannot tell",
            "no finished run",
            False,
            (),
        )
    ]


def test_no_targets_and_corrupt_targets_are_refused(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    with pytest.raises(ConfigError, match="no targets in default: add a section `targets`"):
        check([sweep])
    for content in ("{", "[]", '{"targets": [{"metric": "speed", "value": 1}]}'):
        (sweep / "sweep.json").write_text(content)
        with pytest.raises(ConfigError, match=r"cannot read the targets in .*sweep.json"):
            check([sweep])


def test_messages_without_targets_say_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    sweep, other = fake_sweep(tmp_path, "s", nodes=(1,)), fake_sweep(tmp_path, "a", nodes=(1,))
    (sweep / "sweep.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^no targets in a, s: add a section"):
        check([sweep, other])
    (sweep / "sweep.json").write_text('{"targets": [{"metric": "mfu", "value": 1}, {"metric": "speed"}]}')
    with pytest.raises(ConfigError, match=r"s/sweep\.json: .*validation error.* for Target$"):
        check([sweep])
    steps = "".join(f"r,0,{step},{0.1 + step % 3 / 1000}\n" for step in range(1, 60))
    (tmp_path / "table.csv").write_text("run,rank,step,step_s\n" + steps)
    ingest(tmp_path / "table.csv", tmp_path, global_batch_size=8, warmup_steps=5)
    with pytest.raises(ConfigError, match=r"ingest the table under another --sweep, with --targets FILE$"):
        check([tmp_path / "table"])


def test_only_these_runs_are_checked(tmp_path: Path) -> None:
    sweep = sweep_with(tmp_path, [{"metric": "throughput", "value": 1}], nodes=(1,))
    (result,) = check([sweep], only={sweep / "n1x1-r0", sweep / "n1x1-r1"})
    assert [Path(run).name for run in result.runs] == ["n1x1-r0", "n1x1-r1"]


def section_of(sweep: Path) -> Section | None:
    table = load_runs([sweep])
    return targets_section.build(make_study(table))


def test_section_has_a_row_for_each_target_and_concludes(tmp_path: Path) -> None:
    assert section_of(fake_sweep(tmp_path, "without")) is None
    wanted = [{"metric": "efficiency", "value": 0.6}, {"metric": "efficiency", "value": 0.9}]
    section = section_of(sweep_with(tmp_path, [*wanted, {"metric": "throughput", "value": 1}]))
    assert section is not None
    assert section.conclusion == "2 of 3 targets met. Missed: efficiency at 4 ranks."
    shares, rates = section.tables
    assert [row[-2] for row in shares.rows] == ["met", "missed"]
    assert shares.emphasized == [1]
    assert [row[-2] for row in rates.rows] == ["met"]
    assert [link.name for link in rates.sources[0]] == ["n4x1-r0", "n4x1-r1", "n4x1-r2"]


def test_section_of_corrupt_targets_names_the_file(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    (sweep / "sweep.json").write_text("{")
    section = section_of(sweep)
    assert section is not None
    assert "sweep.json" in section.conclusion
