"""Sweeps and strategies compared, on generated sweeps with known ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import comparison
from analysis.comparison import PointComparison
from analysis.ingest.write import ingest
from analysis.read.differences import Difference, differences, unrecorded
from analysis.read.load import load_runs
from analysis.report.sections import comparison as comparison_section
from analysis.report.sections import configurations
from analysis.report.sentences import say
from analysis.results.curves import Curve, scaling_curves
from analysis.stats.estimates import Estimate, on_basis
from analysis.study import Study, make_study
from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import AutoRepeats
from tests.support.fake_runs import fake_run, fake_sweep
from tests.support.golden import golden

STRATEGIES = [{"parallel.strategy": "ddp"}, {"parallel.strategy": "fsdp"}]


def curves_of(sweep: Path) -> list[Curve]:
    return scaling_curves(load_runs([sweep]))


def study_of(sweep: Path, against: Path | None = None) -> Study:
    other = None if against is None else study_of(against)
    table = load_runs([sweep])
    return make_study(table, against=other)


def steady(root: Path, name: str, step_s: Sequence[float], **options: Any) -> Path:
    """A sweep on 1 and 2 nodes; its repeats have these mean step times at each size."""
    for nodes in (1, 2):
        for repeat, mean_s in enumerate(step_s):
            run = root / name / f"n{nodes}-r{repeat}"
            fake_run(run, nodes=nodes, repeat=repeat, mean_s=mean_s, **options)
    return root / name


def verdicts(found: Sequence[PointComparison]) -> list[tuple[str, str, int, str]]:
    return [(each.curve.label, each.base_curve.label, each.point.size, each.verdict) for each in found]


def test_a_sweep_that_is_a_tenth_faster_is_faster_at_each_size(tmp_path: Path) -> None:
    new = steady(tmp_path, "new", [0.0900, 0.0902, 0.0898])
    old = steady(tmp_path, "old", [0.1000, 0.1003, 0.0997])
    found = comparison.against(curves_of(new), curves_of(old))
    assert verdicts(found) == [("new", "old", 1, "faster"), ("new", "old", 2, "faster")]
    assert [each.ratio.value for each in found] == pytest.approx([1 / 0.9] * 2, rel=1e-3)
    assert [each.reason for each in found] == ["", ""]
    back = comparison.against(curves_of(old), curves_of(new))
    assert [each.verdict for each in back] == ["slower", "slower"]


def test_equal_sweeps_are_equivalent_and_noisy_ones_unsettled(tmp_path: Path) -> None:
    new = steady(tmp_path, "new", [0.1000, 0.1002, 0.0998])
    same = steady(tmp_path, "same", [0.1001, 0.0999, 0.1003])
    noisy = steady(tmp_path, "noisy", [0.08, 0.1, 0.12])
    alone = steady(tmp_path, "alone", [0.05])
    assert {each.verdict for each in comparison.against(curves_of(new), curves_of(same))} == {"equivalent"}
    unsettled = comparison.against(curves_of(new), curves_of(noisy))
    assert {(each.verdict, each.reason) for each in unsettled} == {("unsettled", "the interval is too wide")}
    once = comparison.against(curves_of(new), curves_of(alone))
    assert {(each.verdict, each.reason) for each in once} == {("unsettled", "one repeat")}


def test_configurations_are_compared_with_the_fastest_and_one_repeat_settles_nothing(tmp_path: Path) -> None:
    axes = [{"parallel.ddp.bucket_mb": 4}, {"parallel.ddp.bucket_mb": 32}]
    sweep = fake_sweep(tmp_path, nodes=(1, 2), axes=axes)
    section = configurations.build(study_of(sweep))
    assert section is not None
    assert "bucket_mb 4 is faster than bucket_mb 32 at 1 rank and 2 ranks: 1.10" in section.conclusion
    once = fake_sweep(tmp_path, "once", nodes=(1, 2, 4, 8), axes=axes, repeats=1)
    study = make_study(load_runs([once]))
    section = configurations.build(study)
    assert section is not None
    for row in section.tables[0].rows:
        ratio, verdict, reason = row[-3:]
        assert isinstance(ratio, Estimate)
        assert (ratio.value, ratio.low) == (pytest.approx(1.1, rel=0.05), None)
        assert (verdict, reason) == ("unsettled", "one repeat")
    assert configurations.build(study_of(fake_sweep(tmp_path, "one"))) is None


def test_curves_match_by_their_common_axes_and_points_by_shape(tmp_path: Path) -> None:
    new = fake_sweep(tmp_path, "new", nodes=(2, 4), axes=STRATEGIES)
    old = fake_sweep(tmp_path, "old", nodes=(1, 2), axes=STRATEGIES)
    found = comparison.against(curves_of(new), curves_of(old))
    assert [each[:3] for each in verdicts(found)] == [
        ("strategy ddp", "strategy ddp", 2),
        ("strategy fsdp", "strategy fsdp", 2),
    ]
    plain = fake_sweep(tmp_path, "plain", nodes=(2,))
    assert [each.base_curve.label for each in comparison.against(curves_of(new), curves_of(plain))] == [
        "plain",
        "plain",
    ]


def test_curves_with_other_values_match_only_where_one_side_has_a_single_curve(tmp_path: Path) -> None:
    new, old = (
        curves_of(fake_sweep(tmp_path, name, nodes=(1,), axes=[{"optim.lr": lr} for lr in rates]))
        for name, rates in (("new", (0.1, 0.2)), ("old", (0.3, 0.4)))
    )
    assert comparison.against(new, old) == []
    assert [each.base_curve.label for each in comparison.against(new[:1], old)] == ["lr 0.3", "lr 0.4"]
    assert [each.curve.label for each in comparison.against(new, old[:1])] == ["lr 0.1", "lr 0.2"]


def test_an_emulated_curve_is_never_compared_with_a_real_one(tmp_path: Path) -> None:
    real = fake_sweep(tmp_path, "real")
    emulated = fake_sweep(tmp_path, "emulated", emulated=True)
    assert comparison.against(curves_of(real), curves_of(emulated)) == []
    section = comparison_section.build(study_of(real, emulated))
    assert section is not None
    assert section.conclusion.startswith("Nothing to compare with emulated")


def test_strategies_of_one_sweep_are_compared_with_ddp(tmp_path: Path) -> None:
    axes = [{"parallel.strategy": name} for name in ("fsdp", "ddp")]
    found = comparison.options(curves_of(fake_sweep(tmp_path, nodes=(2, 4), axes=axes)), "parallel.strategy")
    assert [each[:3] for each in verdicts(found)] == [
        ("strategy fsdp", "strategy ddp", 2),
        ("strategy fsdp", "strategy ddp", 4),
    ]
    assert {each.verdict for each in found} == {"faster"}
    assert comparison.options(curves_of(fake_sweep(tmp_path, "none")), "parallel.strategy") == []


def test_without_ddp_the_first_strategy_is_the_base(tmp_path: Path) -> None:
    axes = [{"parallel.strategy": name} for name in ("fsdp", "hsdp")]
    (found,) = comparison.options(curves_of(fake_sweep(tmp_path, nodes=(2,), axes=axes)), "parallel.strategy")
    assert (found.curve.label, found.base_curve.label) == ("strategy hsdp", "strategy fsdp")


def test_configurations_are_those_of_the_sweep_that_are_as_real_as_the_lead(tmp_path: Path) -> None:
    axes = [{"optim.lr": lr} for lr in (0.1, 0.2, 0.3)]
    lead, second, third = curves_of(fake_sweep(tmp_path, nodes=(1,), axes=axes))
    others = [lead, second, replace(third, emulated=True), replace(third, sweep="other")]
    (found,) = comparison.configurations(lead, others)
    assert found.base_curve is second


def test_strategies_are_compared_only_where_all_else_is_equal(tmp_path: Path) -> None:
    axes = [{"parallel.strategy": name, "train.seed": seed} for name in ("ddp", "fsdp") for seed in (0, 1)]
    found = comparison.options(curves_of(fake_sweep(tmp_path, nodes=(2,), axes=axes)), "parallel.strategy")
    assert [(each.curve.axes["train.seed"], each.base_curve.axes["train.seed"]) for each in found] == [
        (0, 0),
        (1, 1),
    ]


def test_the_best_of_many_is_corrected_for_having_been_chosen(tmp_path: Path) -> None:
    (curve,) = curves_of(fake_sweep(tmp_path, nodes=(2,)))

    def of(*rates: float) -> Curve:
        return replace(curve, points=(replace(curve.points[0], samples_per_s_by_run=rates),))

    lead, rest = of(1.019, 1.024, 1.029), [of(0.99, 1.0, 1.01) for _ in range(4)]
    for others, verdict in ((rest[:1], "faster"), (rest, "unsettled")):
        assert {each.verdict for each in comparison.configurations(lead, [lead, *others])} == {verdict}


@pytest.mark.parametrize("side", [0, 1])
def test_a_point_that_is_not_stationary_settles_nothing(tmp_path: Path, side: int) -> None:
    both = curves_of(fake_sweep(tmp_path, nodes=(1,), axes=STRATEGIES))
    (point,) = both[side].points
    both[side] = replace(
        both[side], points=(replace(point, samples_per_s=on_basis(point.samples_per_s, "not stationary")),)
    )
    (found,) = comparison.against([both[0]], [both[1]])
    assert (found.verdict, found.reason) == ("unsettled", "not stationary")


def test_repeats_in_two_groups_settle_nothing(tmp_path: Path) -> None:
    grouped = steady(tmp_path, "grouped", [0.080, 0.0801, 0.104, 0.1041])
    once = steady(tmp_path, "once", [0.3, 0.301])
    found = comparison.against(curves_of(grouped), curves_of(once))
    reasons = {(each.verdict, each.reason) for each in found}
    assert reasons == {("unsettled", "repeats fall into two groups")}


def test_differences_name_config_code_and_environment(tmp_path: Path) -> None:
    new, old = (
        fake_sweep(tmp_path, "new", nodes=(1,)),
        fake_sweep(tmp_path, "old", nodes=(1,), torch="2.12.0"),
    )
    for run in new.iterdir():
        record = read_json(run / "run.json")
        record["config"]["optim"]["lr"] = 0.5
        record["config"]["train"]["log_every"] = 7  # changes neither results nor speed
        record["provenance"]["code"]["git_commit"] = "a" * 40
        write_json(run / "run.json", record)
        variable = {"value": "eth0", "reason": "", "source": "site"}
        write_json(run / "env.json", {"schema_version": 1, "variables": {"NCCL_SOCKET_IFNAME": variable}})
    ours, theirs = (load_runs([sweep]) for sweep in (new, old))
    found = {(each.part, each.name): (each.value, each.base) for each in differences(ours, theirs)}
    lr = str(read_json(old / "n1x1-r0" / "run.json")["config"]["optim"]["lr"])
    assert found == {
        ("config", "optim.lr"): ("0.5", lr),
        ("code", "commit"): ("a" * 40, "f" * 40),
        ("environment", "torch"): ("2.13.0", "2.12.0"),
        ("environment", "NCCL_SOCKET_IFNAME"): ("eth0", "\N{EN DASH}"),
    }
    assert differences(ours, ours) == []


def test_what_follows_from_time_run_directory_or_code_hash_is_no_difference(tmp_path: Path) -> None:
    sweeps = [fake_sweep(tmp_path / root, "same", nodes=(1,)) for root in ("runs", "runs2")]
    for at, sweep in enumerate(sweeps):
        for run in sweep.iterdir():
            values = {
                "DISTTRAIN_DEADLINE": f"179542127{at}",
                "DISTTRAIN_RUN_DIR": str(run),
                "DISTTRAIN_CHECKPOINT_DIR": str(run / "checkpoints"),
                "DISTTRAIN_ATTEMPT": str(at),
                "PYTHONPATH": f"{run.parent.parent}/.code/{at}06a639f880cc4e9/src:.:/home/someone",
            }
            variables = {
                name: {"value": each, "reason": "", "source": "derived"} for name, each in values.items()
            }
            write_json(run / "env.json", {"schema_version": 1, "variables": variables})
    ours, theirs = (load_runs([sweep]) for sweep in sweeps)
    assert differences(ours, theirs) == []
    for run in sweeps[0].iterdir():
        record = read_json(run / "env.json")
        record["variables"]["PYTHONPATH"]["value"] += ":/opt/other"
        write_json(run / "env.json", record)
    (found,) = differences(load_runs([sweeps[0]]), theirs)
    assert (found.name, found.value) == ("PYTHONPATH", ".code/src:.:/home/someone:/opt/other")


def test_sweeps_of_the_same_name_are_named_by_their_folders(tmp_path: Path) -> None:
    new = steady(tmp_path / "runs", "same", [0.0900, 0.0902, 0.0898])
    old = steady(tmp_path / "runs2", "same", [0.1000, 0.1003, 0.0997])
    section = comparison_section.build(study_of(new, old))
    assert section is not None
    assert section.conclusion.startswith(f"{new} is faster than {old} at 1 rank and 2 ranks: ")


def test_ingested_sweeps_have_no_record_to_compare(tmp_path: Path) -> None:
    for name, step_s in (("new", 0.09), ("old", 0.1)):
        steps = "".join(f"{name},0,{step},{step_s + step % 3 / 1000}\n" for step in range(1, 60))
        (tmp_path / f"{name}.csv").write_text("run,rank,step,step_s\n" + steps)
        ingest(tmp_path / f"{name}.csv", tmp_path, global_batch_size=8, warmup_steps=5)
    new, old, measured = tmp_path / "new", tmp_path / "old", steady(tmp_path, "measured", [0.1, 0.1003])
    assert unrecorded(load_runs([new])) == ["config", "code", "environment"]
    assert unrecorded(load_runs([measured])) == []
    for ours, gaps in ((new, 2), (measured, 1)):
        section = comparison_section.build(study_of(ours, old))
        assert section is not None
        assert section.paragraphs[0].count("does not record config, code and environment.") == gaps


def test_runs_without_their_records_still_compare(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1,))
    intact = load_runs([sweep])
    for run in sweep.iterdir():
        (run / "run.json").write_text("{")
    found = differences(load_runs([sweep]), intact)
    assert {(each.name, each.value) for each in found} == {
        ("Python", "\N{EN DASH}"),
        ("host of the submission", "\N{EN DASH}"),
    }


def test_section_concludes_and_names_the_one_difference(tmp_path: Path) -> None:
    new = steady(tmp_path, "new", [0.0900, 0.0902, 0.0898])
    old = steady(tmp_path, "old", [0.1000, 0.1003, 0.0997], overrides={"torch": "2.12.0"})
    section = comparison_section.build(study_of(new, old))
    assert section is not None
    assert section.paragraphs == ["One recorded difference: torch is 2.13.0 in new and 2.12.0 in old."]
    assert [table.name for table in section.tables] == ["comparison", "differences"]
    assert section.figures[0].svg.startswith("<svg")
    assert comparison_section.build(study_of(new)) is None


def test_swept_options_are_explained(tmp_path: Path) -> None:
    axes = [{"parallel.ddp.bucket_mb": 4}, {"parallel.ddp.bucket_mb": 32}]
    section = configurations.build(study_of(fake_sweep(tmp_path, nodes=(2,), repeats=1, axes=axes)))
    assert section is not None
    (text,) = section.paragraphs
    assert text.startswith("parallel.ddp.bucket_mb: Gradient bucket size in MiB")


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


def test_repeats_that_are_equal_to_the_last_digit_settle_nothing(tmp_path: Path) -> None:
    for nodes, mean_s in ((1, 0.1), (2, 0.11)):
        for repeat in range(3):
            fake_run(tmp_path / "s" / f"n{nodes}-r{repeat}", nodes=nodes, repeat=repeat, mean_s=mean_s)
    (curve,) = scaling_curves(load_runs([tmp_path / "s"]))
    (_, point) = curve.points
    figures = [point.samples_per_s, point.speedup, point.phases.share("compute_s")]
    assert [(each.low, each.basis) for each in figures if each] == [(None, "equal repeats")] * 3
    assert comparison.repeat_plan([curve]) is None
    (size, _) = comparison.against([curve], [curve])
    assert (size.verdict, size.reason) == ("unsettled", "equal repeats")
