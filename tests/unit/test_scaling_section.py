"""Scaling: the headline of each case, tables and figures, batch sizes, configurations, the first screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.read.run import Run
from analysis.report import first_screen
from analysis.report.section import Section
from analysis.report.sections import build_all
from analysis.report.sections.comparison import configurations
from analysis.report.sections.scaling import batch_size, scaling
from analysis.report.sentences import say
from analysis.stats.estimates import Estimate
from analysis.study import make_study
from disttrain.records.steps import PHASES
from tests.support.golden import golden
from tests.support.studies import changed, placed, rows_of, runs_of, section_of, study_of, with_loss

LR = [{"optim.lr": lr} for lr in (0.001, 0.002, 0.003)]
"""Configurations, each a tenth slower than the first per place in the list."""


def timed(run: Run, mean_s: float, **changes: Any) -> Run:
    """The run with another mean time of a step."""
    assert run.metrics is not None
    times: dict[str, Any] = {
        "samples_per_s": run.metrics.global_batch_size / mean_s,
        "measured_s": mean_s * run.metrics.measured_steps,
    }
    return changed(run, **times, **changes)


def pairs(*means_s: float) -> list[Run]:
    """Two runs on one node and two on two nodes with these mean steps."""
    known = runs_of(nodes=(1, 2), repeats=2)
    return [timed(run, mean_s) for run, mean_s in zip(known, means_s, strict=True)]


def on_nodes(runs: Sequence[Run], nodes: int, change: Callable[[Run], Run]) -> list[Run]:
    """The runs, of which those on so many nodes are changed."""
    return [change(run) if run.shape and run.shape.nodes == nodes else run for run in runs]


def scripts() -> list[Run]:
    known = runs_of(nodes=(1,), repeats=2)
    return [replace(run, metrics=None, included=False, reported={"samples_per_s": 12.5}) for run in known]


def unfinished() -> list[Run]:
    first, *rest = runs_of(nodes=(1,), repeats=4)
    failed = replace(first, included=False, state="failed", note="crashed: RuntimeError")
    return [failed, *(replace(run, included=False, state="planned") for run in rest)]


def cases() -> dict[str, list[Run]]:
    def two_threads(run: Run) -> Run:
        return changed(run, {"resources.threads_per_rank": 2})

    return {
        "settled": runs_of(),
        "emulated": runs_of(emulated=True),
        "one repeat": runs_of(repeats=1),
        "equal repeats": pairs(0.1, 0.1, 0.11, 0.11),
        "unsettled": pairs(0.1, 0.15, 0.1, 0.2),
        "no gain": pairs(0.1, 0.102, 0.2, 0.203),
        "implausible": pairs(1.45, 1, 0.2, 1)[::2],
        "one size": runs_of(nodes=(2,)),
        "unlike runs": on_nodes(runs_of(all_ranks=True), 1, two_threads),
        "shared machine": on_nodes(pairs(0.1, 0.101, 0.12, 0.121), 1, lambda run: placed(run, ["c01"])),
        "other loss": on_nodes(runs_of(nodes=(1, 2), scaling="strong"), 2, lambda run: with_loss(run, 1.3)),
        "other model": on_nodes(runs_of(), 4, lambda run: changed(run, {"model.layers": 7})),
        "other script": [
            changed(run, {"command": [f"/home/someone/{run.name[1]}.py"]})
            for run in runs_of(nodes=(1, 2), repeats=1)
        ],
        "own scripts": scripts(),
        "no finished run": unfinished(),
    }


def test_headline_of_each_case() -> None:
    leads = {case: first_screen.lead(make_study(runs)) for case, runs in cases().items()}
    golden("headlines.txt", "".join(f"{case}: {lead}\n" for case, lead in leads.items()))
    alike = on_nodes(runs_of(nodes=(1, 2), scaling="strong"), 2, lambda run: with_loss(run, 1.03))
    assert first_screen.lead(make_study(alike)).startswith("2 ranks run 1.7"), "within the margin"


def test_without_a_headline_no_efficiency_is_stated() -> None:
    study = make_study(cases()["unlike runs"])
    texts = [*first_screen.answers(study, build_all(study)).values()]
    texts += [text for section in build_all(study) for text in (section.conclusion, section.key)]
    assert not [text for text in texts if "fficiency [" in text or "beyond the prediction" in text]


@pytest.mark.parametrize("case", ["other model", "other script"])
def test_different_programs_are_no_curve(case: str) -> None:
    study = make_study(cases()[case])
    assert all(point.speedup is None for point in study.curves[0].points)
    assert section_of(scaling, study).figures == []


def test_the_base_is_the_one_that_was_asked_for() -> None:
    study = make_study(runs_of(), "2")
    section = section_of(scaling, study)
    assert section.tables[0].emphasized == [1]
    assert first_screen.lead(study).startswith("4 ranks run 1.7\N{MULTIPLICATION SIGN} as fast as 2 [")
    assert "Base: 2 ranks, 118 ms a step, 136 samples/s" in section.paragraphs[0]


def test_a_full_node_and_other_shapes_of_a_size_are_marked() -> None:
    known = runs_of(nodes=(1, 2), gpus_per_node=(4, 8), repeats=1)
    section = section_of(scaling, [changed(run, device="NVIDIA H100") for run in known])
    lines = [list(line.get_xdata()) for line in section.figures[0].drawn.axes[0].lines]
    assert [8, 8] in lines
    assert [4, 8, 16] in lines
    shapes = [(row["size"], row["shape"]) for row in rows_of(section)]
    assert shapes == [(4, "1x4"), (8, "2x4"), (8, "1x8"), (16, "2x8")]


def test_details_have_what_publications_print() -> None:
    gpu = SimpleNamespace(utilization=0.5)
    section = section_of(
        scaling, [changed(run, device="NVIDIA H100", gpu=gpu) for run in runs_of(nodes=(1, 2))]
    )
    row = rows_of(section, "scaling_details")[1]
    rates = [row[name].value for name in ("samples_per_s_each", "communication_share", "gpu_utilization")]
    assert rates == pytest.approx([68, 0.15, 0.5], rel=0.01)
    assert row["tokens_per_s"] == pytest.approx(128 * 2 * rates[0])
    assert (row["ideal"], row["peak_memory_bytes"]) == (pytest.approx(2), 302 * 2**20)
    assert not {"speedup", "efficiency", "messages"} & row.keys(), "opened table; no profiled step"
    lines = section.figures[1].drawn.axes[0].lines
    assert [0.5] in [list(line.get_ydata()) for line in lines], "utilization beside efficiency"


@pytest.mark.parametrize(
    ("key", "values"),
    [("parallel.strategy", ("ddp", "fsdp")), ("precision.dtype", ("bf16", "fp32"))],
)
def test_a_swept_option_has_a_speed_up_over_its_base_value(key: str, values: tuple[str, str]) -> None:
    """The second value is a tenth slower."""
    study = study_of(nodes=(2,), axes=[{key: value} for value in values])
    rows = rows_of(section_of(scaling, study), "scaling_details")
    found = {row["curve"].split()[1]: row[f"{key.partition('.')[2]}_speedup"] for row in rows}
    base, other, ratio = ("ddp", "fsdp", 1 / 1.1) if "ddp" in values else ("fp32", "bf16", 1.1)
    assert found[base] is None
    assert found[other].value == pytest.approx(ratio, rel=0.01)


def test_batch_sizes_are_compared_within_a_configuration() -> None:
    """Twice the batch gives ddp 1.5 times and fsdp, which is slower, 1.7 times its throughput."""
    axes = [
        {"parallel.strategy": name, "train.local_batch_size": batch}
        for name in ("ddp", "fsdp")
        for batch in (8, 16)
    ]
    known = {}
    for run in runs_of(nodes=(2,), axes=axes, repeats=1):
        assert run.record is not None
        swept = run.record.axes
        name, batch = swept["parallel.strategy"], swept["train.local_batch_size"]
        step_s = {("ddp", 8): 0.1, ("ddp", 16): 0.2 / 1.5, ("fsdp", 8): 0.3, ("fsdp", 16): 0.6 / 1.7}
        known[name, batch] = timed(
            changed(run, local_batch_size=batch, global_batch_size=2 * batch), step_s[name, batch]
        )
    section = section_of(batch_size, [*known.values()])
    ratios = {
        (row["curve"].partition(",")[0], row["local_batch_size"]): row["ratio"] for row in rows_of(section)
    }
    assert ratios["strategy ddp", 8] is None
    assert ratios["strategy ddp", 16].value == pytest.approx(1.5)
    assert ratios["strategy fsdp", 16].value == pytest.approx(1.7)
    fastest = say("batch_size", "strategy ddp, 2 ranks", 8, 16, ratios["strategy ddp", 16])
    assert section.conclusion == fastest
    lines = [list(line.get_xdata()) for line in section.figures[0].drawn.axes[0].lines]
    assert [line for line in lines if len(line) > 1] == [[8, 16], [8, 16]]
    assert batch_size(study_of(nodes=(1, 2), scaling="strong")) is None


def test_the_fastest_configuration_leads_and_is_compared_with_the_next() -> None:
    study = study_of(axes=LR)
    assert study.leading_curve.label == "lr 0.001"
    scales = first_screen.answers(study, [])[first_screen.SCALES]
    assert "lr 0.001 is faster than lr 0.002 at 4 ranks: 1.10" in scales
    assert scales.endswith("The fastest of 3 configurations.")
    section = section_of(configurations, study)
    assert [row["base_curve"] for row in rows_of(section)] == ["lr 0.002"] * 3 + ["lr 0.003"] * 3
    assert section.paragraphs[0].startswith("optim.lr: ")
    assert configurations(study_of()) is None
    alone = study_of(axes=LR[:2], repeats=1)
    scales = first_screen.answers(alone, [])[first_screen.SCALES]
    assert scales.endswith(", one repeat."), "nothing is the fastest of one repeat"


def test_a_configuration_leads_at_its_largest_size_and_others_may_be_faster_at_that_size() -> None:
    small, large = (runs_of(nodes=nodes, axes=[axes]) for nodes, axes in (((1,), LR[0]), ((1, 2), LR[1])))
    slow = [timed(run, 0.2) for run in small]
    fast = [timed(run, 0.1 if run.metrics and run.metrics.nodes == 1 else 0.9) for run in large]
    noisy = [
        timed(run, run.step_s * (0.99 + 0.01 * at % 0.03))
        for at, run in enumerate([*slow, *fast])
        if run.step_s
    ]
    study = make_study(noisy)
    assert study.leading_curve.label == "lr 0.001"
    scales = first_screen.answers(study, [])[first_screen.SCALES]
    assert "lr 0.001 is slower than lr 0.002 at 1 rank: 0.50" in scales


def test_curves_of_different_bases_do_not_compare() -> None:
    study = make_study([*runs_of(nodes=(1, 2), axes=LR[:1]), *runs_of(nodes=(2, 4), axes=LR[1:2])])
    scales = first_screen.answers(study, [])[first_screen.SCALES]
    assert study.leading_curve.label == "lr 0.002"
    assert "fastest" not in scales
    assert section_of(scaling, study).tables[0].caption == say("scaling_table", True)


def test_answers_are_the_conclusions_of_sections() -> None:
    names = ("comparison", "waterfall", "composition", "bottlenecks")
    sections = {name: Section(name, "", f"the {name}") for name in names}
    study = study_of()
    answers = first_screen.answers(study, [*sections.values()])
    assert [*answers] == [
        first_screen.AGAINST, first_screen.SCALES, first_screen.TIME, first_screen.SLOW, first_screen.HELPS,
    ]  # fmt: skip
    assert answers[first_screen.AGAINST] == "the comparison"
    assert (answers[first_screen.TIME], answers[first_screen.HELPS]) == ("the waterfall", "the bottlenecks")
    without = first_screen.answers(study, [sections["composition"]])
    assert without[first_screen.TIME] == "the composition"
    assert first_screen.answers(make_study(unfinished()), [*sections.values()]) == {}


def test_limits_and_setting_are_those_of_the_runs() -> None:
    study = study_of(axes=LR[:2], repeats=1)
    *_, limits = first_screen.caveats(study)
    assert limits["text"] == say("caveat", "limits", {"largest": "4 ranks", "few": ["lr"]}, False)
    *_, limits = first_screen.caveats(study_of(axes=LR))
    assert "locate" not in limits["text"]
    setting = first_screen.setting(study)
    assert setting == "824,320 parameters · 8 to 32 samples a step · 110 steps"


@pytest.mark.parametrize(
    ("efficiency", "loss_by_phase", "expected"),
    [
        (
            Estimate(0.954, 0.92, 0.98, 3),
            {"comm_transfer_s": 0.3, "compute_s": -0.2, "optimizer_s": -0.05, "input_s": 0.004},
            "Net loss of 5 percentage points: data transfer costs 30, optimizer saves 5, compute saves 20.",
        ),
        (
            Estimate(1.05, 1.02, 1.08, 3),
            {"comm_wait_s": 0.02, "compute_s": -0.07},
            "Net gain of 5 percentage points: waiting for peers costs 2, compute saves 7.",
        ),
        (Estimate(0.97, 0.93, 1.01, 3), {"comm_transfer_s": 0.3}, ""),  # may be a loss or a gain
        (Estimate(0.5, None, None, 1), {"comm_transfer_s": 0.3}, ""),
        (Estimate(0.995, 0.993, 0.998, 3), {"comm_transfer_s": 0.3}, ""),  # nothing to explain
    ],
)
def test_losses_stand_beside_gains_and_only_where_settled(
    efficiency: Estimate, loss_by_phase: dict[str, float], expected: str
) -> None:
    losses = dict.fromkeys(PHASES, 0.0) | loss_by_phase
    point = SimpleNamespace(efficiency=efficiency, loss_by_phase=losses)
    assert say("net_by_phase", point) == expected
