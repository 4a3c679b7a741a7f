"""Stationarity and within-run intervals of runs: from step records to the figures and sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import targets
from analysis.efficiency import Curve, scaling_curves
from analysis.read.frames import load
from analysis.report.cells import cell
from analysis.report.headline import headline
from analysis.report.sections import runs as runs_section
from analysis.step_statistics import measured_step_s, step_statistics
from analysis.study import make_study
from analysis.truncation import truncate, truncated_metrics
from disttrain.records.json_files import read_json, write_json
from tests.support.fake_runs import fake_run, fake_sweep


def change_records(run: Path, change: Callable[[list[dict[str, Any]]], Iterable[dict[str, Any]]]) -> None:
    """Replace the step records of each rank."""
    for path in (run / "attempts" / "000").glob("steps-*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(record) + "\n" for record in change(records)))


def reshape(run: Path, factor: Callable[[int], float]) -> None:
    """Multiply the recorded duration of each step; metrics.json stays."""
    change_records(
        run, lambda found: [{**each, "step_s": each["step_s"] * factor(each["step"])} for each in found]
    )


def aggregate(run: Path, after: int, size: int) -> None:
    """Records of `size` steps each in place of those of the steps after `after`."""

    def changed(found: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        yield from found[:after]
        for at in range(after, len(found), size):
            part = found[at : at + size]
            first = part[0]
            sums = {
                name: sum(each[name] for each in part)
                for name, value in first.items()
                if name.endswith("_s") and name != "start_s" and value is not None
            }
            counts = {"first": first["step"], "last": part[-1]["step"], "steps": len(part)}
            kept = {name: value for name, value in first.items() if name != "step"}
            yield {
                **kept,
                **sums,
                **counts,
                "samples": len(part) * first["samples"],
                "bins": [[1, len(part)]],
            }

    change_records(run, changed)


def drifting(step: int) -> float:
    return 1 + step / 100


def curve_of(sweep: Path) -> Curve:
    (curve,) = make_study(load([sweep])).curves
    return curve


def test_generated_runs_are_stationary_and_their_figures_unchanged(tmp_path: Path) -> None:
    table = load([fake_sweep(tmp_path)])
    statistics = step_statistics(table)
    assert {each.stationarity.verdict for each in statistics.values()} == {"stationary"}
    assert {each.measured_steps for each in statistics.values()} == {100}
    assert scaling_curves(table, None, statistics) == scaling_curves(table)


def test_a_size_with_a_drifting_run_keeps_its_value_and_loses_its_interval(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    before = curve_of(sweep)
    reshape(sweep / "n4x1-r1", drifting)
    after = curve_of(sweep)
    assert after.points[:2] == before.points[:2]
    four, was = after.points[2], before.points[2]
    assert (four.samples_per_s.value, four.samples_per_s.low) == (was.samples_per_s.value, None)
    for estimate in (four.samples_per_s, four.step_s, four.speedup, four.efficiency):
        assert estimate is not None
        assert (estimate.basis, estimate.low, estimate.high) == ("not stationary", None, None)
    assert headline(make_study(load([sweep])), after) == (
        "No statement: at 4 nodes, the step time rises by 59 % from start to end"
    )
    assert cell(four.efficiency, "share").interval == "not stationary, no interval"


def test_a_base_that_is_not_stationary_takes_all_efficiencies_with_it(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    reshape(sweep / "n1x1-r0", drifting)
    _, two, four = curve_of(sweep).points
    assert [each.efficiency.basis for each in (two, four) if each.efficiency] == ["not stationary"] * 2
    assert two.samples_per_s.basis == "repeats"


def test_a_longer_warm_up_is_left_out_of_all_repeats_and_said(tmp_path: Path) -> None:
    """Steps 11 to 40 of one repeat take twice as long; its metrics count them."""
    sweep = fake_sweep(tmp_path, nodes=(1, 2), all_ranks=True)
    truth = curve_of(fake_sweep(tmp_path, "quiet", nodes=(1, 2)))
    reshape(sweep / "n2x1-r0", lambda step: 2.0 if step <= 40 else 1.0)
    metrics = read_json(sweep / "n2x1-r0" / "metrics.json")
    slow = {name: metrics[name] / 1.3 for name in ("samples_per_s", "tokens_per_s") if metrics[name]}
    slow |= {"measured_s": metrics["measured_s"] * 1.3, "mfu": 0.2, "communication_overhead_percent": 10.0}
    write_json(sweep / "n2x1-r0" / "metrics.json", metrics | slow)
    study = make_study(load([sweep]))
    runs = study.runs.set_index("run")
    assert runs["truncated_steps"].tolist() == [0, 0, 0, 30, 30, 30]
    assert runs["measured_steps"].tolist() == [100, 100, 100, 70, 70, 70]
    assert json.loads(runs.loc["n2x1-r0", "left_out"])[-1] == [11, 40]
    (_, two), (_, expected) = study.curves[0].points, truth.points
    assert two.samples_per_s.basis == "repeats"
    assert two.samples_per_s.value == pytest.approx(expected.samples_per_s.value, rel=0.01)
    assert study.metrics["default", "n2x1-r0"].mfu == pytest.approx(0.26, rel=0.01)
    assert study.step_times_s["default", "n2x1-r0"].size == 70
    (caveat,) = [each for each in study.caveats if each.kind == "longer warm-up"]
    assert len(caveat.runs) == 3
    listed = runs_section.build(study)
    assert listed is not None
    (table,) = listed.tables
    shown = dict(zip([column.name for column in table.columns], table.rows[3], strict=True))
    assert shown["samples_per_s"] == pytest.approx(1.3 * slow["samples_per_s"], rel=0.01)


@pytest.mark.parametrize("samples", [0, 16])
def test_the_figures_without_a_longer_warm_up_are_those_of_the_later_steps(
    tmp_path: Path, samples: int
) -> None:
    """Steps up to 40 take twice as long, and have twice as many samples. Every second step has no input."""
    figures = {"tokens_per_s": 1000.0, "communication_overhead_percent": 10.0}
    figures |= {"communication_computation_ratio": 0.1}
    sweep = fake_sweep(tmp_path, nodes=(2,), repeats=1, all_ranks=True, **figures)
    run = sweep / "n2x1-r0"
    longer = {step: 2 if step <= 40 else 1 for step in range(1, 111)}

    def changed(found: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        for each in found:
            factor = longer[each["step"]]
            seconds = {name: each[name] * factor for name in ("step_s", "compute_s")}
            input_s = None if each["step"] % 2 else 0.001 * factor
            yield {**each, **seconds, "input_s": input_s, "samples": samples * factor}

    change_records(run, changed)
    table = load([sweep])
    changed_table, statistics = truncate(table, step_statistics(table))
    (before,), (after,) = (each.to_dict("records") for each in (table, changed_table))
    lines = (run / "attempts" / "000" / "steps-00000.jsonl").read_text().splitlines()
    measured = [each for line in lines if (each := json.loads(line))["step"] > 10]
    later = [each for each in measured if each["step"] > 40]
    all_s, later_s = (np.array([each["step_s"] for each in part]) for part in (measured, later))
    assert (after["truncated_steps"], after["measured_steps"]) == (30, 70)
    assert after["measured_s"] == pytest.approx(before["measured_s"] * later_s.sum() / all_s.sum())
    assert after["step_s"] == pytest.approx(after["measured_s"] / 70)
    counted = 130 if samples else 100
    faster = (70 / later_s.sum()) / (counted / all_s.sum())
    assert after["samples_per_s"] == pytest.approx(before["samples_per_s"] * faster)
    assert after["tokens_per_s"] == pytest.approx(1000 * faster)
    assert after["compute_s"] == pytest.approx(np.mean([each["compute_s"] for each in later]))
    assert after["input_s"] == pytest.approx(0.001)
    shares = {"step_p50_s": 50, "step_p95_s": 95, "step_p99_s": 99, "step_max_s": 100}
    assert {name: after[name] for name in shares} == pytest.approx(
        {name: np.percentile(later_s, share) for name, share in shares.items()}
    )
    assert statistics[str(run)].measured_steps == 70
    metrics = truncated_metrics(after)
    assert metrics is not None
    exposed_s = after["comm_wait_s"] + after["comm_transfer_s"]
    assert exposed_s > 0
    assert metrics.communication_overhead_percent == pytest.approx(100 * exposed_s / after["step_s"])
    assert metrics.communication_computation_ratio == pytest.approx(exposed_s / after["compute_s"])
    assert metrics.composition["compute_s"] == pytest.approx(after["compute_s"])
    assert metrics.left_out == [(1, 10), (11, 40)]


def test_repeats_whose_records_end_at_no_common_step_stay_whole(tmp_path: Path) -> None:
    """Their records end after 40 and 140, and after 41 and 141 measured steps; 41 would be left out."""
    for repeat, after in enumerate((50, 51)):
        run = tmp_path / "s" / f"n1-r{repeat}"
        fake_run(run, steps=after + 100, repeat=repeat)
        reshape(run, lambda step, after=after: 2.0 if step <= after else 1.0)
        aggregate(run, after=after, size=100)
    study = make_study(load([tmp_path / "s"]))
    assert study.runs["truncated_steps"].tolist() == [0, 0]
    reason = "s/n1-r0: fewer than 30 measured steps would be left"
    assert {each.not_truncated for each in study.statistics.values()} == {reason}


@pytest.mark.parametrize(
    ("rank", "text"),
    [("*", "no records of measured steps"), ("00001", "no step records of rank 1 of 2")],
)
def test_no_step_is_left_out_where_a_repeat_lacks_step_records(tmp_path: Path, rank: str, text: str) -> None:
    """Phases are means over all ranks: those of one rank alone would be others."""
    sweep = fake_sweep(tmp_path, nodes=(2,), all_ranks=True)
    before = load([sweep])
    reshape(sweep / "n2x1-r0", lambda step: 2.0 if step <= 40 else 1.0)
    for path in (sweep / "n2x1-r1" / "attempts" / "000").glob(f"steps-{rank}.jsonl"):
        path.unlink()
    study = make_study(load([sweep]))
    assert study.runs["truncated_steps"].tolist() == [0, 0, 0]
    phases = ["compute_s", "comm_wait_s", "comm_transfer_s"]
    assert study.runs[phases].equals(before[phases])
    assert study.curves[0].points[0].samples_per_s.basis == "not stationary"
    assert {each.not_truncated for each in study.statistics.values()} == {f"default/n2x1-r1: {text}"}


def test_an_aggregate_is_left_out_as_a_whole_and_counted(tmp_path: Path) -> None:
    """From step 31 on, a record holds seven steps: the slow ones end within the second of these records."""
    sweep = fake_sweep(tmp_path, nodes=(1,))
    for run in sweep.glob("n1x1-*"):
        reshape(run, lambda step: 2.0 if step <= 40 else 1.0)
        aggregate(run, after=30, size=7)
    study = make_study(load([sweep]))
    (dropped,) = {*study.runs["truncated_steps"]}
    assert dropped >= 30
    assert (dropped - 20) % 7 == 0
    assert {*study.runs["measured_steps"]} == {100 - dropped}
    assert {json.loads(each)[-1][1] for each in study.runs["left_out"]} == {10 + dropped}


def test_no_step_is_left_out_where_it_shares_its_record_with_all_later_ones(tmp_path: Path) -> None:
    run = tmp_path / "s" / "n1-r0"
    fake_run(run, steps=151)
    reshape(run, lambda step: 2.0 if step <= 51 else 1.0)
    aggregate(run, after=51, size=100)
    study = make_study(load([tmp_path / "s"]))
    assert study.runs["truncated_steps"].tolist() == [0]
    reason = "s/n1-r0: fewer than 30 measured steps would be left"
    assert {each.not_truncated for each in study.statistics.values()} == {reason}


def test_a_warm_up_whose_rest_drifts_in_another_repeat_is_named_and_refused(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1,))
    reshape(sweep / "n1x1-r0", lambda step: 2.0 if step <= 40 else 1.0)
    reshape(sweep / "n1x1-r1", drifting)
    study = make_study(load([sweep]))
    assert study.runs["truncated_steps"].tolist() == [0, 0, 0]
    assert study.curves[0].points[0].samples_per_s.basis == "not stationary"
    (caveat,) = [each for each in study.caveats if each.kind == "not stationary"]
    assert caveat.numbers["warmup"] == 40


def test_few_steps_are_published_and_said(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1-r0", steps=40)
    fake_run(tmp_path / "s" / "n1-r1", steps=40, repeat=1)
    study = make_study(load([tmp_path / "s"]))
    assert study.curves[0].points[0].samples_per_s.low is not None
    kinds = {each.kind: each.numbers for each in study.caveats}
    assert kinds["few steps"]["count"] == 2
    assert "not stationary" not in kinds


def test_neither_settles_a_target(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, repeats=3)
    write_json(sweep / "sweep.json", {"targets": [{"metric": "throughput", "value": 1.0}]})
    assert [each.verdict for each in targets.check([sweep])] == ["met"]
    reshape(sweep / "n4x1-r1", drifting)
    (result,) = targets.check([sweep])
    assert (result.verdict, result.reason) == ("cannot tell", "the runs are not stationary")


def test_runs_without_readable_step_records_have_no_statistics(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1,))
    (sweep / "n1x1-r0" / "attempts" / "000" / "steps-00000.jsonl").unlink()
    statistics = step_statistics(load([sweep]))
    assert sorted(Path(path).name for path in statistics) == ["n1x1-r1", "n1x1-r2"]
    assert curve_of(sweep).points[0].samples_per_s.low is not None


def test_measured_steps_are_those_of_the_lowest_rank_in_order() -> None:
    steps = {
        "rank": np.array([1, 0, 0, 0]),
        "step": np.array([1, 3, 1, 2]),
        "steps": np.array([1, 2, 1, 1]),
        "step_s": np.array([9.0, 6.0, 1.0, 2.0]),
        "measured": np.array([True, True, False, True]),
    }
    assert measured_step_s(steps) == pytest.approx([2.0, 3.0, 3.0])
    assert measured_step_s({}).size == 0
