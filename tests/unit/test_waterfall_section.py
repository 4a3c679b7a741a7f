"""The section of the waterfall: what it concludes, and why compute is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.read.load import load_runs
from analysis.read.price_list import PriceList
from analysis.report.section import Section
from analysis.report.sections import build_all, waterfall
from analysis.results.curves import scaling_curves
from analysis.results.lost_time import SHOWN
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.study import Study, make_study
from analysis.units import cell
from tests.support.fake_runs import fake_run, fake_sweep, with_metrics
from tests.support.straggler_records import delays
from tests.unit.test_stragglers_section import STEPS, write_run


def study_of(sweep: Path, prices: PriceList | None = None) -> Study:
    table = load_runs([sweep])
    return replace(make_study(table), prices=prices or PriceList())


def column(section: Section, name: str) -> list[object]:
    (table,) = [table for table in section.tables if table.name == "waterfall"]
    index = [head.name for head in table.columns].index(name)
    return [row[index] for row in table.rows]


def test_the_rows_of_each_size_sum_without_those_too_small_to_show(tmp_path: Path) -> None:
    section = waterfall.build(study_of(fake_sweep(tmp_path)))
    assert section is not None
    assert section.conclusion.startswith("At 4 ranks, the largest loss is data transfer: 29.1 ms a step")
    parts, seconds = column(section, "part"), column(section, "seconds")
    shown = ["compute", "waiting for peers", "data transfer", "sum: actual - ideal step"]
    assert parts == shown * 2
    assert all(abs(share.value) >= SHOWN for share in column(section, "share") if isinstance(share, Estimate))
    rows = [part.value for part in seconds[:3] if isinstance(part, Estimate)]
    assert sum(rows) == pytest.approx(seconds[3].value, abs=3 * SHOWN * 0.14)


def test_one_loss_has_one_interval_on_the_page(tmp_path: Path) -> None:
    """Of a phase that the base of one rank does not have."""
    study = study_of(fake_sweep(tmp_path))
    sections = {section.id: section for section in build_all(study)}
    point = study.curves[0].points[-1]
    waterfall, composition, communication, bottlenecks = (
        [dict(zip((head.heading for head in table.columns), row, strict=True)) for row in table.rows]
        for table in (sections[name].tables[0] for name in IDS)
    )
    for name, phase in ((WAIT, "waiting for peers"), (TRANSFER, "data transfer")):
        seconds, share = point.phases.mean_s(name), point.phases.share(name)
        lost = next(row for row in reversed(waterfall) if row["part"] == phase)
        assert same(lost["per step"], seconds)
        assert same(lost["of the step"], share)
        assert composition[-1][phase] == communication[-1][phase] == seconds
        assert next(row["of the step"] for row in bottlenecks if row["part"] == phase) == share
    assert cell(share, "share").in_text in sections["waterfall"].conclusion
    assert cell(share, "share").in_text in sections["bottlenecks"].conclusion


IDS = ("waterfall", "composition", "communication", "bottlenecks")


def same(one: Any, other: Any) -> bool:
    return [one.value, one.low, one.high] == pytest.approx([other.value, other.low, other.high])


def test_units_and_those_that_need_a_price_or_power(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2))
    for name in ("money", "energy"):
        with pytest.raises(ValueError, match=name):
            column(waterfall.build(study_of(sweep)), name)
    study = study_of(sweep, PriceList(currency="EUR", device_hour={"cpu": 0.5}))
    runs = with_metrics(
        study.runs, gpu=SimpleNamespace(energy_j=None, power_mean_w=300.0, sm_clock_ratio_mean=None)
    )
    section = waterfall.build(replace(study, runs=runs, curves=scaling_curves(runs)))
    lost_s = column(section, "seconds")[-1].value
    hours, money, joules = (float(column(section, name)[-1]) for name in ("device_hours", "money", "energy"))
    assert hours == pytest.approx(2 * 1000 * lost_s / 3600)
    assert money == pytest.approx(0.5 * hours)
    assert joules == pytest.approx(300 * 3600 * hours)
    base, point = study.curves[0].points
    rate = 2 * base.samples_per_s.value - point.samples_per_s.value
    assert column(section, "throughput")[-1] == pytest.approx(rate)


def test_parts_from_the_peak_sum_to_the_step(tmp_path: Path) -> None:
    study = study_of(fake_sweep(tmp_path, model_flops_per_sample=10**10, peak_flops=1e13))
    _, table = waterfall.build(study).tables
    names, lengths_s, shares = zip(*(row[1:] for row in table.rows if row[0] == 4), strict=True)
    assert names[:2] == ("model FLOPs at the device's peak", "compute beyond the peak, at the base")
    assert lengths_s[0] == pytest.approx(8 * 10**10 / 1e13)
    step_s = study.curves[0].points[-1].step_s.value
    assert sum(lengths_s) == pytest.approx(step_s, abs=3 * SHOWN * step_s)
    assert shares == pytest.approx([length_s / step_s for length_s in lengths_s])


def test_lost_compute_on_shared_processors_is_explained(tmp_path: Path) -> None:
    for nodes, mean_s, shared in ((1, 0.1, False), (4, 0.2, True)):
        for repeat in range(3):
            overrides = {
                "oversubscribed": shared,
                "composition": {"compute_s": mean_s * 0.9, "other_s": mean_s * 0.1},
            }
            fake_run(
                tmp_path / "sweep" / f"n{nodes}x1-r{repeat}",
                nodes=nodes,
                repeat=repeat,
                mean_s=mean_s * (1 + 0.01 * repeat),
                overrides=overrides,
                hosts=["workstation"] * nodes,
            )
    study = study_of(tmp_path / "sweep")
    study.__dict__["overlaps"] = []
    section = waterfall.build(study)
    assert section is not None
    assert section.conclusion.startswith("At 4 ranks, the largest loss is compute")
    assert "shared processors" in section.conclusion


def test_waiting_is_persistent_or_transient_and_the_parts_still_sum(tmp_path: Path) -> None:
    for repeat in range(2):
        fake_run(tmp_path / "s" / f"n1-r{repeat}", mean_s=0.14, repeat=repeat)
        added = delays(4, STEPS, slow=[1], slow_s=0.05, jitter_s=0.02, seed=repeat)
        write_run(tmp_path / "s" / f"n4-r{repeat}", added, repeat)
    section = waterfall.build(study_of(tmp_path / "s"))
    assert section is not None
    parts = dict(zip(column(section, "part"), column(section, "seconds"), strict=True))
    assert parts["persistent waiting"].value == pytest.approx(0.05 * 3 / 4, rel=0.25)
    assert 0.001 < parts["transient waiting"].value < 0.03
    assert "waiting for peers" not in parts
    total = parts.pop("sum: actual - ideal step").value
    assert sum(part.value for part in parts.values()) == pytest.approx(total, abs=SHOWN * 0.3)


def test_one_size_has_no_waterfall(tmp_path: Path) -> None:
    assert waterfall.build(study_of(fake_sweep(tmp_path, nodes=(2,)))) is None
