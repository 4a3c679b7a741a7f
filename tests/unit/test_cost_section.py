"""The section of costs: sizes by cost, deadline and price, real and emulated ones apart; use of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.read.price_list import PriceList
from analysis.read.run import Run
from analysis.report import write
from analysis.report.section import Section
from analysis.report.sections.cost import cost
from analysis.study import make_study
from disttrain.errors import ConfigError
from tests.support.fake_runs import fake_sweep
from tests.support.studies import changed, rows_of, runs_of, section_of, with_loss

LR = [{"optim.lr": 0.001}, {"optim.lr": 0.002}]
EUR = PriceList(currency="EUR", device_hour={"cpu": 10.0})


def section(runs: Sequence[Run], **question: Any) -> Section:
    return section_of(cost, replace(make_study(runs), **question))


def column(shown: Section, name: str) -> list[Any]:
    return [row.get(name) for row in rows_of(shown, "training_cost")]


def test_the_cheapest_size_within_the_deadline_is_named_with_its_price() -> None:
    runs = runs_of(scaling="strong")  # 79.6, 136 and 229 samples/s
    shown = section(runs, prices=EUR, deadline_s=9000.0, samples=1e6)
    assert shown.conclusion.startswith("The cheapest size within 2.50 h is 2 ranks (2.0")
    assert column(shown, "meets") == ["no", "yes", "yes"]
    assert column(shown, "pareto") == [True] * 3
    money, hours = ([value.value for value in column(shown, name)] for name in ("money", "device_hours"))
    assert money == pytest.approx([10 * each for each in hours])
    assert shown.figures[0].drawn.axes[0].get_title(loc="left") == "cost (EUR)"
    late = section(runs, deadline_s=1.0, samples=1e9)
    assert late.conclusion.startswith("No size ends within 1.00 s for certain.")


def test_by_default_a_training_is_that_of_the_base_and_has_no_price_and_no_deadline() -> None:
    shown = section(runs_of())
    row = rows_of(shown)[0]
    assert row["time_s"].value == pytest.approx(row["device_hours"].value * 3600)
    assert not {"money", "meets", "joules_per_sample"} & row.keys()
    assert shown.conclusion.startswith("Cheapest size for 880 samples: 1 rank (")
    assert "; fastest: 4 ranks (" in shown.conclusion


def test_the_slower_of_two_configurations_is_dominated() -> None:
    shown = section(runs_of(axes=LR, scaling="strong"))
    assert column(shown, "pareto") == [True] * 3 + [False] * 3
    points = [line for line in shown.figures[0].drawn.axes[0].lines if line.get_marker() in ("o", "s")]
    assert [point.get_alpha() for point in points] == [None] * 3 + [0.4] * 3, "it stands back"


def test_emulated_and_real_runs_do_not_dominate_each_other() -> None:
    emulated = runs_of(nodes=(1, 2), repeats=2, name="e", step_s=0.025, emulated=True)
    shown = section([*runs_of(nodes=(1, 2), repeats=2), *emulated])
    assert column(shown, "pareto") == [True] * 4
    assert shown.conclusion.startswith("Cheapest size for ")
    assert "Cheapest emulated size for " in shown.conclusion


@pytest.mark.parametrize(("step_s", "ranked"), [(0.1, False), (10.0, True)])
def test_nothing_is_ranked_while_a_rival_that_is_not_settled_may_be_best(step_s: float, ranked: bool) -> None:
    """The bounds of the rival lie a factor of two apart, about the best or far above it."""
    rivals = []
    for run, factor in zip(runs_of(nodes=(2,), axes=LR[1:]), (0.8, 1.0, 1.2), strict=True):
        rate = 16 / (factor * step_s)
        rivals.append(changed(run, samples_per_s=rate))
    shown = section([*runs_of(nodes=(1, 2), axes=LR[:1]), *rivals], samples=1000.0)
    assert (True in column(shown, "pareto")) is ranked
    assert ("not ranked by cost: the throughput of lr 0.002, 2 ranks" in shown.conclusion) is not ranked


def test_what_is_not_settled_or_trained_differently_is_not_ranked() -> None:
    one_repeat = section(runs_of(repeats=1), deadline_s=86400.0)
    assert column(one_repeat, "meets") == ["cannot tell"] * 3
    assert "not ranked by cost: the throughput of 1 rank" in one_repeat.conclusion
    runs = [with_loss(run, 2.0 if "0.001" in run.name else 1.0) for run in runs_of(axes=LR, scaling="strong")]
    differently = section(runs)
    assert "not ranked by cost: their runs trained differently." in differently.conclusion
    assert column(one_repeat, "pareto") + column(differently, "pareto") == [None] * 9


@pytest.mark.parametrize(
    ("devices", "named"),
    [(("cpu", "cpu"), "2 runs held"), (("cpu", "H100"), "1 run held"), (("H100", "H100"), "")],
)
def test_gpus_that_a_job_held_for_ranks_on_processors_are_named(devices: tuple[str, str], named: str) -> None:
    runs = []
    for run, device in zip(runs_of(nodes=(1,), repeats=2), devices, strict=True):
        usage = run.usage and run.usage.model_copy(update={"unit": "GPU-hours"})
        runs.append(replace(changed(run, device=device), usage=usage))
    text = section(runs).conclusion
    assert named in text if named else "held" not in text


@pytest.mark.usefixtures("empty_pngs")
def test_the_report_refuses_a_bad_question_before_it_writes(tmp_path: Path) -> None:
    sweep, out = fake_sweep(tmp_path, nodes=(1,)), tmp_path / "out"
    questions: tuple[tuple[dict[str, Any], str], ...] = (
        ({"deadline": "soon"}, "--deadline='soon'"),
        ({"samples": "few"}, "--samples='few'"),
        ({"prices": tmp_path / "none.yaml"}, "none.yaml"),
    )
    for question, why in questions:
        with pytest.raises(ConfigError, match=why):
            write([sweep], out, **question)
    assert not out.exists()
    write([sweep], out, deadline="1d", samples="1e3")
    assert "within 24.0 h" in (out / "report.md").read_text()
