"""The section of costs, and the flags `--prices`, `--deadline` and `--samples`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.read.frames import load
from analysis.report import CostQuestion, check, write
from analysis.report.sections import training_cost
from analysis.study import make_study
from analysis.units import number
from disttrain.errors import ConfigError
from tests.support.fake_runs import fake_run, fake_sweep

PRICES = "currency: EUR\ndevice_hour:\n  cpu: 10\n"


def section_of(sweep: Path, question: CostQuestion):
    section = training_cost.build(replace(make_study(load([sweep])), **question.read()))
    assert section is not None
    return section


def columns(section) -> dict[str, list[object]]:
    (table,) = section.tables
    return {column.name: [row[at] for row in table.rows] for at, column in enumerate(table.columns)}


def test_the_cheapest_size_within_the_deadline_is_named_with_its_price(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, scaling="strong")  # 79.6, 136 and 229 samples/s
    (tmp_path / "prices.yaml").write_text(PRICES)
    section = section_of(sweep, CostQuestion(tmp_path / "prices.yaml", "2.5h", "1e6"))
    assert section.conclusion.startswith("The cheapest size within 2.50 h is 2 nodes with 2.0")
    found = columns(section)
    assert section.conclusion.endswith(f", {number(found['money'][1].value)} EUR.")
    assert found["meets"] == ["no", "yes", "yes"]
    assert found["pareto"] == [True, True, True]
    for money, hours in zip(found["money"], found["device_hours"], strict=True):
        assert money.value == pytest.approx(10 * hours.value)


def test_without_prices_there_is_no_money_and_without_deadline_no_verdict(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path), CostQuestion())
    assert not {"money", "meets", "joules_per_sample"} & columns(section).keys()
    assert "no money is shown" in section.paragraphs[0]
    assert re.match(
        r"Cheapest: 1 node with .* for 110 steps and .* Fastest: 4 nodes with .* for 28 steps",
        section.conclusion,
    )
    assert "A larger global batch takes fewer steps for them" in section.paragraphs[0]
    late = section_of(tmp_path / "default", CostQuestion(deadline="1s", samples="1e9"))
    assert late.conclusion == "No measured size ends within 1.00 s for certain."


def test_sizes_that_cost_the_same_are_named_with_the_cheapest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_cost, "EQUIVALENCE_MARGIN", 0.2)
    axes = [{"optim.lr": 0.1}, {"optim.lr": 0.2}]  # the second is a tenth slower
    text = section_of(fake_sweep(tmp_path, axes=axes), CostQuestion()).conclusion
    assert re.match(r"Cheapest: lr 0\.1, 1 node with .* \(.*lr 0\.2, 1 node: within 20 % of it\)", text), text


def test_curves_train_on_one_number_of_samples_and_one_dominates_the_other(tmp_path: Path) -> None:
    axes = [{"optim.fused": True}, {"optim.fused": False}]  # False, listed first, is a tenth slower
    section = section_of(fake_sweep(tmp_path, axes=axes, scaling="strong"), CostQuestion())
    assert "The training has 880 samples, the planned steps of the base." in section.paragraphs[0]
    assert "fewer steps" not in section.paragraphs[0]
    assert columns(section)["pareto"] == [False, False, False, True, True, True]
    assert section.figures[0].svg.count("another point is faster and cheaper") >= 3


def test_emulated_and_real_runs_do_not_dominate_each_other(tmp_path: Path) -> None:
    """The emulated curve is four times as fast and as cheap."""
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=2)
    for nodes in (1, 2):
        for repeat in (0, 1):
            name = sweep / f"e{nodes}-r{repeat}"
            mean_s = 0.02 + 0.005 * nodes + 0.0001 * repeat
            fake_run(name, nodes=nodes, repeat=repeat, mean_s=mean_s, overrides={"emulated": True})
    section = section_of(sweep, CostQuestion())
    assert columns(section)["pareto"] == [True, True, True, True]
    assert section.conclusion.startswith("Real runs: cheapest: real, 1 node with ")
    assert "Emulated runs: " in section.conclusion
    late = section_of(sweep, CostQuestion(deadline="1d"))
    assert "Real runs: the cheapest size within 24.0 h is real, 1 node" in late.conclusion
    assert "Emulated runs: the cheapest size within 24.0 h is emulated, 1 node" in late.conclusion


def test_one_repeat_settles_no_deadline(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path, repeats=1), CostQuestion(deadline="1d"))
    assert section.conclusion == "No measured size ends within 24.0 h for certain (one repeat)."
    assert columns(section)["meets"] == ["cannot tell"] * 3


def test_bounds_have_the_digits_of_the_value(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path), CostQuestion())
    assert re.search(r"0\.00\d{3} device-hours \[0\.00\d{3}, 0\.00\d{3}\]", section.conclusion)


@pytest.mark.usefixtures("empty_pngs")
def test_the_report_shows_the_costs_and_refuses_before_it_writes(tmp_path: Path) -> None:
    sweep, out = fake_sweep(tmp_path), tmp_path / "out"
    with pytest.raises(ConfigError, match=r"--deadline='soon': a time above 0 with its unit"):
        check([sweep], out, costs=CostQuestion(deadline="soon"))
    with pytest.raises(ConfigError, match=r"cannot read config .*none.yaml"):
        check([sweep], out, costs=CostQuestion(prices=tmp_path / "none.yaml"))
    assert not out.exists()
    write([sweep], out, costs=CostQuestion(deadline="1d"))
    assert "The cheapest size within 24.0 h is 1 node" in (out / "report.md").read_text()
