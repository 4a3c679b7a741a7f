"""Caveats: found where the records show them, with the statements that they forbid, each in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.read.run import CurvePoint, Run
from analysis.report.first_screen import caveat_text
from analysis.results.caveats import Gravity, claim
from analysis.stats.estimates import Estimate
from analysis.study import Study, make_study
from disttrain.records.planned import Code, Ingested
from tests.support.golden import golden
from tests.support.studies import attempt_of, changed, run_of, sweep_of

NOTE, WARNING, GRAVE = Gravity
NO_RATIO = {"headline", "cost ranking"}
ONE, ALL = slice(4, 5), slice(None)
LARGE = slice(6, 9)
"""Runs of `sweep`: one of two nodes, all, and those of four nodes."""


def sweep(which: slice = ALL, metrics: Any = None, **fields: Any) -> list[Run]:
    """Three repeats on one, two and four nodes; some of them with other metrics or fields."""
    runs = sweep_of((1, 2, 4))
    runs[which] = [replace(changed(run, **metrics or {}), **fields) for run in runs[which]]
    return runs


def preflight(verdict: str) -> list[Run]:
    problems = [SimpleNamespace(message="the link of node n2 moves 40 MB/s")] if verdict == "warned" else []
    record = SimpleNamespace(verdict=verdict, problems=problems, seconds=1.0)
    return sweep(ONE, attempts=(attempt_of(preflight=record),))


def busy(share: float) -> list[Run]:
    runs = sweep()
    runs[1].__dict__["busy_share"] = share
    return runs


def of_config(which: slice, section: str, **values: Any) -> list[Run]:
    """The sweep with other values in the recorded config of some runs."""
    runs = sweep()
    for run in runs[which]:
        run.record.config[section] |= values
    return runs


def of_command(large: str) -> list[Run]:
    """The hash of a command on one and two nodes is 0123; that of this program differs everywhere."""
    runs = sweep()
    for at, run in enumerate(runs):
        program = Code(hash="0123" if run.metrics.nodes < 4 else large)
        run.record.provenance = run.record.provenance.model_copy(
            update={"command": program, "code": Code(hash=str(at))}
        )
    return runs


def packed(which: slice, runs: int = 4) -> list[Run]:
    """The sweep, of which these runs shared a node with others, also in time."""
    found = sweep(which, attempts=SHARED)
    found[which] = [
        replace(run, record=run.record.model_copy(update={"runs_per_job": runs})) for run in found[which]
    ]
    return found


def shorter(steps: int) -> list[Run]:
    """Runs with so many measured steps."""
    return [
        replace(run, steps=run.steps.chosen(run.steps.step <= 10 + steps), metrics=metrics)
        for run in sweep()
        for metrics in [run.metrics.model_copy(update={"measured_steps": steps})]
    ]


def drifting() -> list[Run]:
    runs = sweep()
    for run in runs[LARGE]:
        run.steps.seconds["step_s"][:] *= 1 + 0.003 * run.steps.step
    return runs


def processors(one: int, four: int) -> list[Run]:
    """One and four ranks on one node, with these processors."""
    return [
        run_of(1, ranks, mean_s=0.1 + ranks / 99, metrics={"cpu_count": n})
        for ranks, n in ((1, one), (4, four))
    ]


def losses(large: float, *, model: str = "gpt", spread: float = 0.0) -> list[Run]:
    """Final losses of 2 on one node, and `large` on four."""
    return [
        replace(
            run, curves={"loss_history": (), "eval_history": [CurvePoint(9, loss=loss + spread * (at % 3))]}
        )
        for at, each in enumerate(of_config(ALL, "model", kind=model))
        for run in [changed(each, global_batch_size=32)]
        for loss in [large if run.metrics.nodes == 4 else 2.0]
    ]


def left_out(state: str) -> list[Run]:
    return sweep(ONE, state=state, included=False, note="crashed: rank 2: killed")


SHARED = (attempt_of("n"),)
CASES: dict[str, tuple[Callable[[], list[Run]], Gravity, set[str]]] = {
    "emulated": (lambda: sweep(metrics={"emulated": True}), GRAVE, set()),
    "shared processors": (lambda: sweep(metrics={"oversubscribed": True}), WARNING, {"transfer advice"}),
    "overlaps": (lambda: sweep(slice(2, 4), attempts=SHARED), WARNING, {"transfer advice"}),
    "packed": (lambda: packed(slice(2, 4)), WARNING, {"transfer advice"}),
    "other load": (lambda: busy(0.45), WARNING, {"transfer advice"}),
    "late emulation": (lambda: sweep(ALL, {"emulated": True, "emulation_late_s": 0.05}), WARNING, set()),
    "pre-flight": (lambda: preflight("warned"), WARNING, set()),
    "unreadable records": (lambda: sweep(ONE, problems=["file:9 is no record"]), WARNING, {"nobody is slow"}),
    "missing records": (lambda: sweep(ONE, steps=run_of().steps), WARNING, {"nobody is slow"}),
    "one repeat": (lambda: sweep()[::3], WARNING, {"cost ranking"}),
    "two repeats": (lambda: [run for run in sweep() if run.record.repeat], NOTE, set()),
    "equal repeats": (lambda: sweep_of(step_s=(0.1, 0.1)), WARNING, {"cost ranking"}),
    "few steps": (lambda: shorter(35), NOTE, set()),
    "skipped updates": (lambda: sweep(metrics={"skipped_steps": 2}), WARNING, set()),
    "no pre-flight": (lambda: preflight("skipped"), NOTE, set()),
    "remark": (lambda: sweep(ONE, note="made 9 of 10 announced steps"), NOTE, set()),
    "CPU": (sweep, NOTE, set()),
    "one machine": (lambda: sweep(LARGE, attempts=(attempt_of(one_machine=True, span=None),)), NOTE, set()),
    "left out": (lambda: left_out("failed"), WARNING, set()),
    "mixed runs": (lambda: of_config(slice(3, 6), "resources", threads_per_rank=4), WARNING, set()),
    "unlike runs": (lambda: of_config(LARGE, "resources", threads_per_rank=4), GRAVE, NO_RATIO),
    "other loss": (lambda: losses(2.2), GRAVE, NO_RATIO),
    "implausible": (lambda: [run_of(), run_of(2, mean_s=0.094)], GRAVE, NO_RATIO),
    "not stationary": (drifting, GRAVE, NO_RATIO),
    "two groups": (lambda: sweep_of((1, 2), (0.1, 0.1002, 0.13, 0.1303)), GRAVE, NO_RATIO),
}


def ingested(runs: list[Run]) -> list[Run]:
    table = Ingested(source="t.csv", sha256="", rows=1, ingested="")
    return [replace(run, record=run.record.model_copy(update={"ingested": table})) for run in runs]


@cache
def study_of(kind: str) -> Study:
    return make_study(CASES[kind][0]())


@pytest.mark.parametrize("kind", CASES)
def test_a_caveat_of_each_kind_has_its_gravity_and_forbids_statements(kind: str) -> None:
    study, (_, gravity, forbids) = study_of(kind), CASES[kind]
    (caveat,) = [each for each in study.caveats if each.kind == kind]
    assert (caveat.gravity, caveat.forbids) == (gravity, forbids)
    assert list(study.caveats) == sorted(study.caveats, key=lambda each: -each.gravity)
    assert all(subject in study.forbidden(subject).forbids for subject in forbids)


def test_each_caveat_is_one_short_sentence() -> None:
    texts = {}
    for kind in CASES:
        (caveat,) = [each for each in study_of(kind).caveats if each.kind == kind]
        texts[kind] = caveat_text(study_of(kind), caveat)
    assert max(len(text.split()) for text in texts.values()) <= 25
    golden("caveats.txt", "".join(f"{kind}: {text}\n" for kind, text in texts.items()))


@pytest.mark.parametrize(
    ("kind", "make", "gravity"),
    [
        ("other load", lambda: busy(0.1), None),
        ("late emulation", lambda: sweep(ALL, {"emulation_late_s": 0.0009}), None),
        ("skipped updates", lambda: sweep(metrics={"skipped_steps": 1}), NOTE),
        ("few steps", lambda: shorter(29), WARNING),
        ("CPU", lambda: sweep(metrics={"emulated": True}), None),
        ("ingested", lambda: ingested(sweep()), WARNING),
        ("one machine", lambda: sweep(slice(3), attempts=(attempt_of(one_machine=True),)), None),
        ("left out", lambda: left_out("running"), NOTE),
        ("left out", lambda: left_out("done"), WARNING),
        ("missing records", lambda: sweep(ONE, steps=run_of().steps, included=False), None),
        ("mixed runs", lambda: processors(2, 8), None),  # more ranks have more processors
        ("unlike runs", lambda: processors(4, 4), None),
        ("unlike runs", lambda: sweep(LARGE, attempts=(attempt_of(span=None),)), None),
        ("unlike runs", lambda: sweep(slice(5, 9), attempts=SHARED), GRAVE),  # the base has its machine alone
        ("overlaps", lambda: packed(slice(5, 9)), None),  # said once
        ("unlike runs", lambda: packed(LARGE), GRAVE),
        ("unlike runs", lambda: packed(ALL), None),
        ("unlike runs", lambda: sweep(LARGE, {"torch": "2.12.0"}), GRAVE),
        ("unlike runs", lambda: sweep(LARGE, {"warmup_steps": 9}), GRAVE),
        ("unlike runs", lambda: of_command("0123"), None),  # the program is the same
        ("unlike runs", lambda: of_command("4567"), GRAVE),
        ("other loss", lambda: losses(2.09), None),
        ("other loss", lambda: losses(2.2, spread=0.1), None),
        ("other loss", lambda: losses(2.2, model="vit"), None),
        ("other loss", lambda: [*losses(2.2)[:3], *losses(2.2, model="vit")[3:]], None),
        (
            "other loss",
            lambda: [*losses(2.2)[:3], *(changed(run, steps=99) for run in losses(2.2)[3:])],
            None,
        ),
        ("implausible", lambda: [run_of(), run_of(2, mean_s=0.096)], None),
        ("implausible", lambda: sweep_of((1, 2), (0.1, 0.101, 0.099)), None),
        ("two groups", lambda: sweep_of((1, 2), (0.1, 0.11, 0.12, 0.13)), None),
        ("equal repeats", lambda: sweep_of(step_s=(0.1, 0.1 + 1e-8)), None),
    ],
)
def test_what_does_not_matter_is_no_caveat_and_what_matters_more_weighs_more(kind, make, gravity) -> None:
    found = {each.kind: each.gravity for each in make_study(make()).caveats}
    assert found.get(kind) == gravity


def test_fewer_processors_for_more_ranks_are_a_difference() -> None:
    (caveat,) = [each for each in make_study(processors(4, 2)).caveats if "differing" in each.numbers]
    assert caveat.numbers["differing"]["processors"] == {"4": "1 rank", "2": "4 ranks"}


def test_a_caveat_forbids_statements_on_its_own_runs_alone() -> None:
    study = study_of("missing records")
    (curve,) = study.curves
    forbidden = [bool(study.forbidden("nobody is slow", curve, point)) for point in curve.points]
    assert forbidden == [False, True, False]
    assert study.forbidden("nobody is slow", curve)
    assert not study.forbidden("headline", curve)
    (caveat,) = [each for each in study.caveats if each.kind == "missing records"]
    numbers = {name: caveat.numbers[name] for name in ("count", "total", "highest")}
    assert numbers == {"count": 1, "total": 9, "highest": 1}
    assert caveat.runs == {caveat.numbers["example"].path}
    against = replace(make_study(sweep()), against=make_study(left_out("failed")))
    assert "left out" in {each.kind for each in against.caveats}
    assert make_study(left_out("failed")[ONE]).caveats == (), "none without a finished run"


@pytest.mark.parametrize(
    ("runs", "base", "case"),
    [
        (sweep, None, "settled"),
        (drifting, None, "forbidden"),
        (lambda: sweep()[::3], None, "one repeat"),
        (lambda: sweep()[:3], None, "one size"),
        (lambda: sweep_of((1, 2), (0.1, 0.15, 0.08)), None, "unsettled"),
        (sweep, "4", "settled"),  # fewer devices are more efficient, which is not implausible
        (lambda: [*sweep_of((1,), (0.1, 0.104)), *sweep_of((2,), (0.171, 0.168))], None, "no gain"),
        (lambda: [*sweep_of((1,)), *sweep_of((2, 4), sweep="t")], "4", "no base"),
    ],
)
def test_the_claim_of_a_curve_is_the_first_case_that_holds(runs, base, case) -> None:
    study = make_study(runs(), base)
    shown = claim(study, study.curves[0])
    assert shown.case == case
    assert (shown.caveat is not None) == (case == "forbidden")
    assert isinstance(shown.point and shown.point.speedup, Estimate) == (case not in ("no base", "one size"))


def test_the_change_of_the_first_run_is_named_and_the_longest_of_the_lacking_warm_ups_is_proposed() -> None:
    runs = sweep()
    for run, last in zip(runs, (30, 40, 35), strict=False):
        run.steps.seconds["step_s"][run.steps.step <= last] *= 2
    study = make_study(runs)
    (caveat,) = [each for each in study.caveats if each.kind == "not stationary"]
    assert caveat.numbers["warmup"] == 40
    assert caveat.numbers["change"] == study.statistics[runs[0].path].stationarity.change
