"""The sections of the waterfall and of bottlenecks: where time beyond the prediction of the base goes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.read.price_list import PriceList
from analysis.report.section import Section
from analysis.report.sections import build_all
from analysis.report.sections.step_time import bottlenecks, waterfall
from analysis.report.sentences import say
from analysis.results.lost_time import SHOWN
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.study import make_study
from analysis.units import cell
from tests.support.straggler_records import delays
from tests.support.studies import changed, delayed, placed, rows_of, runs_of, section_of, study_of

HOSTS = ["c00", "c01", "c02", "c03"]


def parts_of(section: Section, size: int = 4) -> dict[str, dict[str, Any]]:
    """Rows of the first table for one size by part."""
    return {row["part"]: row for row in rows_of(section) if row["size"] == size}


def test_the_parts_of_each_size_sum_to_its_loss() -> None:
    section = section_of(waterfall, study_of())
    parts = {part: row["seconds"].value for part, row in parts_of(section).items()}
    total = parts.pop("sum: actual - ideal step")
    assert sum(parts.values()) == pytest.approx(total, abs=SHOWN * 0.4)
    assert section.key.startswith("data transfer ")
    assert [run.name for run in section.tables[0].sources[-1]] == ["n4x1-r0", "n4x1-r1", "n4x1-r2"]
    assert waterfall(study_of(nodes=(2,))) is None


def test_the_leading_curve_is_drawn_and_its_bars_follow_one_another() -> None:
    """The second configuration, on one and two ranks, is slower."""
    axes = [{"optim.lr": 0.1}, {"optim.lr": 0.2}]
    study = make_study([*runs_of(axes=axes[:1]), *runs_of(nodes=(1, 2), axes=axes[1:], step_s=0.2)])
    (figure,) = section_of(waterfall, study).figures
    assert "at lr 0.1, 4 ranks: " in figure.alt
    bars = figure.drawn.axes[0].patches
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]  # type: ignore[attr-defined]
    (_, ideal), *parts, (start, actual) = ends
    assert start == 0
    assert [end for _, end in parts][-1] == pytest.approx(actual, rel=0.01)
    assert [start for start, _ in parts] == pytest.approx([ideal, *(end for _, end in parts[:-1])])


def test_one_loss_has_one_interval_on_the_page() -> None:
    """Of a phase that the base of one rank does not have."""
    study = study_of()
    sections = {section.id: section for section in build_all(study)}
    phases = study.curves[0].points[-1].phases
    lost = parts_of(sections["waterfall"])
    ranked = {row["part"]: row for row in rows_of(sections["bottlenecks"])}
    for name, part in ((WAIT, "waiting for peers"), (TRANSFER, "data transfer")):
        seconds, share = phases.mean_s(name), phases.share(name)
        for found, expected in ((lost[part]["seconds"], seconds), (lost[part]["share"], share)):
            assert isinstance(found, Estimate)
            assert isinstance(expected, Estimate)
            assert (found.value, found.low, found.high) == pytest.approx(
                (expected.value, expected.low, expected.high)
            )
        assert rows_of(sections["composition"])[-1][name] == seconds
        assert rows_of(sections["communication"])[-1][name.removeprefix("comm_")] == seconds
        assert ranked[part]["share"] == share
    for section in ("waterfall", "bottlenecks"):
        assert cell(share, "share").in_text in sections[section].conclusion


def test_units_need_a_price_or_power() -> None:
    study = study_of(nodes=(1, 2))
    assert not {"money", "energy"} & rows_of(section_of(waterfall, study))[0].keys()
    gpu = SimpleNamespace(energy_j=None, power_mean_w=300.0, sm_clock_ratio_mean=None, utilization=None)
    powered = make_study([changed(run, gpu=gpu) for run in study.runs])
    priced = replace(powered, prices=PriceList(currency="EUR", device_hour={"cpu": 0.5}))
    row = rows_of(section_of(waterfall, priced))[-1]
    assert row["device_hours"] == pytest.approx(2 * 1000 * row["seconds"].value / 3600)
    assert row["money"] == pytest.approx(0.5 * row["device_hours"])
    assert row["energy"] == pytest.approx(300 * 3600 * row["device_hours"])
    base, point = study.curves[0].points
    assert row["throughput"] == pytest.approx(2 * base.samples_per_s.value - point.samples_per_s.value)


def test_parts_from_the_peak_sum_to_the_step_and_link_their_runs() -> None:
    study = study_of(model_flops_per_sample=10**10, peak_flops=1e13)
    section = section_of(waterfall, study)
    rows = [row for row in rows_of(section, "waterfall_from_peak") if row["size"] == 4]
    step_s = study.curves[0].points[-1].step_s.value
    assert rows[0]["seconds"] == pytest.approx(8 * 10**10 / 1e13)
    assert sum(row["seconds"] for row in rows) == pytest.approx(step_s, abs=3 * SHOWN * step_s)
    assert [row["share"] for row in rows] == pytest.approx([row["seconds"] / step_s for row in rows])
    sources = {tuple(run.name for run in runs) for runs in section.tables[1].sources}
    assert sources == {(f"n{nodes}x1-r0", f"n{nodes}x1-r1", f"n{nodes}x1-r2") for nodes in (2, 4)}


def test_without_a_headline_no_loss_is_stated() -> None:
    runs = [changed(run, {"resources.threads_per_rank": 1 + run.name.startswith("n4")}) for run in runs_of()]
    section = section_of(waterfall, runs)
    assert (section.conclusion, section.key) == ("", "")
    assert parts_of(section)


def test_bottlenecks_of_each_curve_are_listed_and_the_leading_one_concludes() -> None:
    axes = [{"optim.lr": 0.1}, {"optim.lr": 0.2}]  # the second is a tenth slower
    study = study_of(axes=axes)
    section = section_of(bottlenecks, study)
    parts = [row["part"] for row in rows_of(section)]
    assert parts == ["data transfer", "waiting for peers", "input", "other"] * 2
    assert "At lr 0.1, 4 ranks, data transfer in all is " in section.conclusion
    single = section_of(bottlenecks, study_of(repeats=1))
    assert rows_of(single)[0]["share"].low is None


def test_nothing_is_named_where_nothing_is_significant() -> None:
    section = section_of(bottlenecks, study_of(efficiency=1.0, composition={"compute_s": 0.1}))
    assert section.tables == []
    assert section.conclusion == say("bottleneck", "4 ranks", [])


def test_stragglers_are_one_bottleneck_beside_the_rest_of_compute() -> None:
    """All ranks compute 40 ms longer than before, rank 1 another 50 ms."""
    one, four = (runs_of(nodes=(nodes,), repeats=2, step_s=0.14) for nodes in (1, 4))
    added = [0.04 + delays(4, 110, slow=[1], slow_s=0.05, jitter_s=0.003, seed=seed) for seed in (0, 1)]
    slow = [delayed(run, added_s, HOSTS) for run, added_s in zip(four, added, strict=True)]
    alone = [placed(run, HOSTS, 100 * at, 100 * at + 50, "slurm") for at, run in enumerate(slow)]
    parts = parts_of(section_of(bottlenecks, [*one, *alone]))
    straggler, rest = (
        parts["the stragglers' compute and waiting"],
        parts["compute, without the stragglers' part"],
    )
    step_s = 0.12 + 0.04 + 0.05 + 0.013 + 0.03
    assert straggler["share"].value == pytest.approx(0.05 / step_s, abs=0.03)
    assert rest["share"].value == pytest.approx((0.16 - 0.86 * 0.14) / step_s, abs=0.03)
    assert ["slow rank" in row["advice"] for row in (straggler, rest)] == [True, False]
    assert "waiting for peers" not in parts
