"""The section of costs, and the flags `--prices`, `--deadline` and `--samples`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.report import CostQuestion, write
from analysis.report.sections import cost
from analysis.study import make_study
from analysis.units import number
from disttrain.errors import ConfigError
from tests.support.fake_runs import fake_run, fake_sweep, with_metrics

PRICES = "currency: EUR\ndevice_hour:\n  cpu: 10\n"


def section_of(sweep: Path, question: CostQuestion):
    section = cost.build(replace(make_study(load_runs([sweep])), **question.read()))
    assert section is not None
    return section


def columns(section) -> dict[str, list[object]]:
    table = section.tables[0]
    assert table.name == "training_cost"
    return {column.name: [row[at] for row in table.rows] for at, column in enumerate(table.columns)}


def test_the_cheapest_size_within_the_deadline_is_named_with_its_price(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, scaling="strong")  # 79.6, 136 and 229 samples/s
    (tmp_path / "prices.yaml").write_text(PRICES)
    section = section_of(sweep, CostQuestion(tmp_path / "prices.yaml", "2.5h", "1e6"))
    assert section.conclusion.startswith("The cheapest size within 2.50 h is 2 ranks (2.0")
    found = columns(section)
    assert f"device-hours, {number(found['money'][1].value)} EUR). The runs used " in section.conclusion
    assert found["meets"] == ["no", "yes", "yes"]
    assert found["pareto"] == [True, True, True]
    for money, hours in zip(found["money"], found["device_hours"], strict=True):
        assert money.value == pytest.approx(10 * hours.value)
    late = section_of(sweep, CostQuestion(deadline="1s", samples="1e9"))
    assert late.conclusion.startswith("No size ends within 1.00 s for certain.")


def test_without_prices_there_is_no_money_and_without_deadline_no_verdict(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path), CostQuestion())
    assert not {"money", "meets", "joules_per_sample"} & columns(section).keys()
    assert section.conclusion.startswith("Cheapest size for 880 samples: 1 rank (")
    assert "; fastest: 4 ranks (" in section.conclusion


def test_curves_train_on_one_number_of_samples_and_one_dominates_the_other(tmp_path: Path) -> None:
    axes = [{"optim.fused": True}, {"optim.fused": False}]  # False, listed first, is a tenth slower
    section = section_of(fake_sweep(tmp_path, axes=axes, scaling="strong"), CostQuestion())
    assert columns(section)["pareto"] == [False, False, False, True, True, True]


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
    assert section.conclusion.startswith("Cheapest size for ")
    assert "Cheapest emulated size for " in section.conclusion


def test_one_repeat_is_not_ranked(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path, repeats=1), CostQuestion(deadline="1d"))
    assert section.conclusion.startswith("Sizes are not ranked by cost: the throughput of 1 rank, which ")
    assert columns(section)["meets"] == ["cannot tell"] * 3
    assert "pareto" not in columns(section)


@pytest.mark.parametrize(("mean_s", "ranked"), [(0.1, False), (10.0, True)])
def test_nothing_is_cheapest_or_fastest_while_a_rival_that_is_not_settled_may_be(
    tmp_path: Path, mean_s: float, ranked: bool
) -> None:
    """The bounds of the rival lie a factor of two apart, about the best or far above it."""
    sweep = fake_sweep(tmp_path, nodes=(1, 2), axes=[{"optim.fused": True}], scaling="strong")
    for repeat, factor in enumerate((0.8, 1.0, 1.2)):
        fake_run(
            sweep / f"rival-r{repeat}",
            nodes=2,
            repeat=repeat,
            mean_s=factor * mean_s,
            axes={"resources.nodes": 2, "optim.fused": False},
        )
    section = section_of(sweep, CostQuestion(samples="1000"))
    reason = "the throughput of fused False, 2 ranks, which may be cheapest or fastest, is not settled."
    assert section.conclusion.startswith(f"Sizes are not ranked by cost: {reason}") is not ranked
    assert section.conclusion.startswith("Cheapest size") is ranked
    assert (True in columns(section).get("pareto", [])) is ranked


def test_configurations_that_trained_differently_are_not_ranked(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, axes=[{"optim.fused": True}, {"optim.fused": False}], scaling="strong")
    study = make_study(load_runs([sweep]))
    for run in (run for point in study.curves[0].points for run in point.runs):
        run.final["valid_loss"] = 2 * (run.final["valid_loss"] or 1.0)
    section = cost.build(study)
    assert section is not None
    assert section.conclusion.startswith("Sizes are not ranked by cost: their runs trained differently.")
    assert "pareto" not in columns(section)


def test_gpus_that_a_job_held_for_ranks_on_processors_are_named(tmp_path: Path) -> None:
    known = load_runs([fake_sweep(tmp_path, nodes=(1, 2), repeats=1)])
    known = [
        replace(run, usage=run.usage and run.usage.model_copy(update={"unit": "GPU-hours"})) for run in known
    ]
    for devices, runs in ((("cpu", "cpu"), "2 runs"), (("cpu", "H100"), "1 run"), (("H100", "H100"), "")):
        shown = [with_metrics([run], device=device)[0] for run, device in zip(known, devices, strict=True)]
        section = cost.build(make_study(shown))
        assert section is not None
        assert (f"{runs} held GPUs" in section.conclusion) if runs else ("held" not in section.conclusion)


@pytest.mark.usefixtures("empty_pngs")
def test_the_report_shows_the_costs_and_refuses_before_it_writes(tmp_path: Path) -> None:
    sweep, out = fake_sweep(tmp_path), tmp_path / "out"
    with pytest.raises(ConfigError, match=r"--deadline='soon': a time above 0 with its unit"):
        write([sweep], out, costs=CostQuestion(deadline="soon"))
    with pytest.raises(ConfigError, match=r"cannot read config .*none.yaml"):
        write([sweep], out, costs=CostQuestion(prices=tmp_path / "none.yaml"))
    assert not out.exists()
    write([sweep], out, costs=CostQuestion(deadline="1d"))
    assert "The cheapest size within 24.0 h is 1 rank" in (out / "report.md").read_text()
