"""The section of the waterfall: what it concludes, and why compute is lost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.costs.price_list import PriceList
from analysis.efficiency import Curve, Point, scaling_curves
from analysis.losses import size_waterfalls
from analysis.losses.compute_evidence import compute_state
from analysis.losses.waterfall import RESIDUAL, Part, PhaseTimes, Waterfall, split_waiting
from analysis.read.frames import load
from analysis.report.section import Section
from analysis.report.sections import waterfall
from analysis.stats.estimates import Estimate
from analysis.study import Study
from tests.support.fake_runs import fake_run, fake_sweep
from tests.support.straggler_records import delays
from tests.unit.test_stragglers_section import STEPS, write_run


def study_of(sweep: Path, prices: PriceList | None = None) -> Study:
    table = load([sweep])
    return Study(table, scaling_curves(table), prices=prices or PriceList())


def column(section: Section, name: str) -> list[object]:
    (table,) = [table for table in section.tables if table.name == "waterfall"]
    index = [head.name for head in table.columns].index(name)
    return [row[index] for row in table.rows]


def test_the_largest_loss_is_named_and_each_size_sums(tmp_path: Path) -> None:
    section = waterfall.build(study_of(fake_sweep(tmp_path)))
    assert section is not None
    assert section.conclusion.startswith(
        "At 4 nodes, the largest loss is data transfer: 29.1 ms beyond that of 1 node, 20.8 %"
    )
    seconds = column(section, "seconds")
    assert len(seconds) == 2 * (8 + 1)
    parts, total = seconds[:8], seconds[8]
    assert sum(part.value for part in parts if isinstance(part, Estimate)) == pytest.approx(total)
    (figure,) = section.figures
    assert (
        figure.conclusion == "The step at 4 nodes takes 140 ms ([135, 145], n=3) instead of the ideal 100 ms."
    )
    assert section.figures[0].svg.count("<rect") >= 4


def test_the_figure_names_the_parts_without_a_bar_and_their_sum(tmp_path: Path) -> None:
    section = waterfall.build(study_of(fake_sweep(tmp_path)))
    assert section is not None
    (figure,) = section.figures
    drawn = {"compute", "waiting for peers", "data transfer"}
    left = {"input", "optimizer", "other"}
    assert {
        name for name in drawn | left | {"checkpoint", "residual"} if f">{name}</text>" in figure.svg
    } == drawn
    names = dict(zip(column(section, "part")[9:17], column(section, "seconds")[9:17], strict=True))
    sum_s = sum(part.value for name, part in names.items() if name in left and isinstance(part, Estimate))
    assert figure.caption.endswith(
        "Parts below 0.1 % of the step have no bar: input, optimizer and other, together "
        f"+{1e6 * sum_s:.1f} µs (+0.07 %). The table has all parts."
    )


def test_a_figure_of_all_parts_names_none() -> None:
    def part(name: str, seconds: float) -> Part:
        return Part(name, Estimate(seconds, None, None, 1), Estimate(seconds / 0.2, None, None, 1))

    parts = (part("compute_s", 0.1), part(RESIDUAL, 1e-15))
    whole = Waterfall(0.1, 0.2, parts, 1, 8, {})
    assert waterfall.not_drawn(whole) == ""
    assert waterfall.not_drawn(replace(whole, parts=(*parts, part("input_s", -3e-6)))) == (
        " Parts below 0.1 % of the step have no bar: input, -3.00 µs (0.00 %). The table has all parts."
    )


NOISE = (0.99, 1.0, 1.01)


@pytest.mark.parametrize(
    ("compute_s", "noise", "net"),
    [
        (0.06, NOISE, "loss of 9.1 %."),
        (0.04, NOISE, "gain of 11.1 %."),
        (0.048, NOISE, "gain of 2.0 %, which is not settled."),
        (0.06, (1.0,), "loss of 9.1 %, which is not settled."),
    ],
    ids=["loss", "gain", "interval contains 100 %", "one repeat"],
)
def test_gains_stand_beside_the_largest_loss(
    tmp_path: Path, compute_s: float, noise: tuple[float, ...], net: str
) -> None:
    phases = {1: {"compute_s": 0.1}, 4: {"compute_s": compute_s, "comm_transfer_s": 0.05}}
    for repeat, factor in enumerate(noise):
        for nodes, composition in phases.items():
            fake_run(
                tmp_path / "s" / f"n{nodes}-r{repeat}",
                nodes=nodes,
                repeat=repeat,
                mean_s=factor * sum(composition.values()),
                overrides={"composition": {name: factor * time for name, time in composition.items()}},
            )
    section = waterfall.build(study_of(tmp_path / "s"))
    assert section is not None
    assert section.conclusion.startswith("At 4 nodes, the largest loss is data transfer: ")
    amounts = r"All losses together take ([\d.]+) % of the step, and all gains save ([\d.]+) % \(compute\)"
    shown = re.search(rf"{amounts}: a net (.*)$", section.conclusion)
    assert shown is not None, section.conclusion
    step_s = compute_s + 0.05
    assert float(shown[1]) == pytest.approx(100 * 0.05 / step_s, abs=0.5)
    assert float(shown[2]) == pytest.approx(100 * (0.1 - compute_s) / step_s, abs=0.5)
    assert shown[3] == net


def test_money_needs_a_price(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    with pytest.raises(ValueError, match="money"):
        column(waterfall.build(study_of(sweep)), "money")
    priced = waterfall.build(study_of(sweep, PriceList("EUR", {"cpu": 0.5})))
    money, hours = column(priced, "money"), column(priced, "device_hours")
    assert money == pytest.approx([0.5 * float(value) for value in hours])


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
    section = waterfall.build(study)
    assert section is not None
    assert section.conclusion.startswith("At 4 nodes, the largest loss is compute")
    assert section.paragraphs[0].startswith("Compute takes longer: shared processors")
    assert compute_state(study, study.curves[0], study.curves[0].points[-1]).oversubscribed


def test_waiting_is_persistent_or_transient_and_the_parts_still_sum(tmp_path: Path) -> None:
    for repeat in range(2):
        fake_run(tmp_path / "s" / f"n1-r{repeat}", mean_s=0.14, repeat=repeat)
        added = delays(4, STEPS, slow=[1], slow_s=0.05, jitter_s=0.02, seed=repeat)
        write_run(tmp_path / "s" / f"n4-r{repeat}", added, repeat, with_means=True)
    section = waterfall.build(study_of(tmp_path / "s"))
    assert section is not None
    parts = dict(zip(column(section, "part"), column(section, "seconds"), strict=True))
    assert parts["persistent waiting"].value == pytest.approx(0.05 * 3 / 4, rel=0.25)
    assert 0.001 < parts["transient waiting"].value < 0.03
    assert "waiting for peers" not in parts
    total = parts.pop("sum: actual - ideal step")
    assert sum(part.value for part in parts.values()) == pytest.approx(total)
    assert section.paragraphs[-1].startswith("Persistent waiting is for a rank that is slow in all steps")


def test_a_split_that_varies_over_repeats_does_not_hide_the_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for repeat, waiting in enumerate((0.21, 0.22, 0.20)):
        for nodes, wait_s in ((1, 0.0), (4, 0.1 * waiting / (1 - waiting))):
            composition = {"compute_s": 0.1, "comm_wait_s": wait_s}
            fake_run(
                tmp_path / "s" / f"n{nodes}-r{repeat}",
                nodes=nodes,
                repeat=repeat,
                mean_s=0.1 + wait_s,
                overrides={"composition": composition},
            )
    shares = {1: np.zeros(3), 4: np.array([0.9, 0.1, 0.5])}
    monkeypatch.setattr(size_waterfalls, "_persistent_shares", lambda _, __, point: shares[point.world_size])
    section = waterfall.build(study_of(tmp_path / "s"))
    assert section is not None
    assert section.conclusion.startswith("At 4 nodes, the largest loss is waiting for peers: 2")
    assert {"persistent waiting", "transient waiting"} <= set(column(section, "part"))


def test_one_size_has_no_waterfall(tmp_path: Path) -> None:
    assert waterfall.build(study_of(fake_sweep(tmp_path, nodes=(2,)))) is None


def test_a_rounding_error_with_a_longer_interval_is_zero_in_all_units() -> None:
    """The residual is zero, and phases vary from step to step."""
    interval = Estimate(6.9e-18, -3.1e-8, 3.1e-8, 3)
    found = waterfall._without_rounding(Part("residual", interval, interval))
    assert found.seconds == found.share == Estimate(0.0, -3.1e-8, 3.1e-8, 3)
    longer = Part("input", Estimate(2e-9, -3.1e-8, 3.1e-8, 1), interval)
    assert waterfall._without_rounding(longer) == longer


def test_the_description_of_the_figure_has_the_times_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"residual": 6.94e-18, "input_s": 1.42e-9, "compute_s": -0.003}
    measured = size_waterfalls._measured

    def with_small_parts(*given: Any) -> tuple[Waterfall, Waterfall]:
        found, whole = measured(*given)
        parts = [
            Part(part.name, Estimate(changed.get(part.name, part.seconds.value), None, None, 1), part.share)
            for part in found.parts
        ]
        return replace(found, parts=tuple(parts)), whole

    monkeypatch.setattr(size_waterfalls, "_measured", with_small_parts)
    section = waterfall.build(study_of(fake_sweep(tmp_path, nodes=(1, 4))))
    assert section is not None
    alt = section.figures[0].alt
    assert "residual 0 µs" in alt
    assert "input +0.00142 µs" in alt
    assert "compute -3.00 ms" in alt
    assert "e-" not in alt


def test_sizes_have_waterfalls_where_their_curve_has_a_base(tmp_path: Path) -> None:
    """The curve with the smaller buckets is faster, and the size of the leading curve is its largest."""
    axes = [{"parallel.ddp.bucket_mb": 4}, {"parallel.ddp.bucket_mb": 32}]
    study = study_of(fake_sweep(tmp_path, axes=axes))
    fast, slow = study.curves
    found = size_waterfalls.waterfalls(study)
    assert [(each.curve.label, each.point.size) for each in found] == [
        (curve.label, size) for curve in (fast, slow) for size in (2, 4)
    ]
    leading = size_waterfalls.leading(found)
    assert (leading.curve.label, leading.point.size) == (fast.label, 4)
    study.__dict__["curves"] = [replace(fast, base_size=None), slow]
    assert [each.curve.label for each in size_waterfalls.waterfalls(study)] == [slow.label] * 2
    phases = dict.fromkeys(fast.points[0].composition)
    unmeasured = tuple(replace(point, composition=phases) for point in fast.points)
    study.__dict__["curves"] = [replace(fast, points=unmeasured), slow]
    assert [each.curve.label for each in size_waterfalls.waterfalls(study)] == [slow.label] * 2


def test_phases_that_neither_size_measured_have_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(fake_sweep(tmp_path, composition={"compute_s": 0.07, "comm_transfer_s": 0.03}))

    def divided(study: Study, curve: Curve, point: Point) -> PhaseTimes:
        return split_waiting(study.phase_times(curve, point), np.zeros(len(point.runs)))

    monkeypatch.setattr(size_waterfalls, "divided", divided)
    for each in size_waterfalls.waterfalls(study):
        for shown in (each.found, each.whole):
            assert [part.name for part in shown.parts] == ["compute_s", "comm_transfer_s", RESIDUAL]


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ([(0.3, 0.0), (0.2, 0.1), (0.1, 0.05)], 1),  # the interval of the first one contains 0
        ([(0.1, None), (0.2, None)], 1),
        ([(size_waterfalls.NAMED, 0.001)], 0),
        ([(0.009, 0.001)], None),
        ([], None),
    ],
)
def test_the_largest_loss_is_settled_and_large_enough(
    tmp_path: Path, shares: list[tuple[float, float | None]], named: int | None
) -> None:
    (shown, *_) = size_waterfalls.waterfalls(study_of(fake_sweep(tmp_path, nodes=(1, 2))))
    parts = tuple(
        Part(str(number), Estimate(0.1, None, None, 1), Estimate(value, low, low and 0.5, 3))
        for number, (value, low) in enumerate(shares)
    )
    found = size_waterfalls.largest_loss(replace(shown, whole=replace(shown.whole, parts=parts)))
    assert (found.name if found else None) == (None if named is None else str(named))
