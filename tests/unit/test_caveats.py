"""Caveats: found where the records show them, with the statements that they forbid, each in one sentence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.read.attempts import preflight_columns, read_attempts
from analysis.read.load import load_runs
from analysis.report.first_screen import caveat_text
from analysis.report.sections.reproduction import provenance
from analysis.results.caveats import Caveat, Gravity
from analysis.study import Study, make_study
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.checks.finding import Finding
from jobs.checks.node_checks import verdict_record
from tests.support.fake_runs import NODE, fake_run, fake_sweep, reshape
from tests.support.golden import GOLDEN, golden

SLOW = Finding("warning", "links", "the link of node n2 moves 40 MB/s", "look")


def study_of(root: Path) -> Study:
    return make_study(load_runs(sorted(root.iterdir())))


def caveats(root: Path) -> dict[str, Caveat]:
    found = {caveat.kind: caveat for caveat in study_of(root).caveats}
    found.pop("CPU", None)
    return found


def merged(record: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The record with values replaced, section by section."""
    nested = {name: merged(record[name], value) for name, value in changes.items() if isinstance(value, dict)}
    return record | changes | nested


def edit(root: Path, pattern: str, **changes: Any) -> None:
    for path in root.glob(f"*/{pattern}"):
        write_json(path, merged(read_json(path), changes))


def preflight(root: Path, mode: str = "basic", *problems: Finding) -> None:
    fake_sweep(root, all_ranks=True)
    record = verdict_record(0, mode, ["n1", "n2"], [], {}, problems)
    write_json(RunDir(root / "default" / "n2x1-r1").attempt(0).preflight, record)


def other_load(root: Path, host_percent: float = 180.0) -> None:
    """The rank keeps about 0.9 of 2 processors busy."""
    path = RunDir(fake_sweep(root, nodes=(1,)) / "n1x1-r1").attempt(0).host_samples(0)
    lines = [json.loads(line) | {"host_cpu_percent": host_percent} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def threads(root: Path, runs: str = "n2x1-*") -> None:
    fake_sweep(root, all_ranks=True)
    edit(root, f"{runs}/run.json", config={"resources": {"threads_per_rank": 4}})


def processors(root: Path, counts: dict[int, int]) -> None:
    """One and two ranks on one node."""
    fake_sweep(root, nodes=(1,), gpus_per_node=(1, 2))
    for ranks, count in counts.items():
        edit(root, f"n1x{ranks}-*/metrics.json", cpu_count=count)


def late(root: Path, late_s: float = 0.05) -> None:
    fake_sweep(root, nodes=(1,), repeats=3, emulated=True)
    fake_run(root / "default" / "late", overrides={"emulated": True, "emulation_late_s": late_s})


def overlapping(root: Path) -> None:
    for nodes, repeats in ((1, 3), (2, 3), (4, 3)):
        for repeat in range(repeats):
            hosts = ["gpu7", "gpu8"][:nodes] if nodes < 4 else None
            fake_run(
                root / "s" / f"n{nodes}-r{repeat}", nodes=nodes, repeat=repeat, hosts=hosts, all_ranks=True
            )


def without_a_rank(root: Path) -> None:
    (fake_sweep(root, all_ranks=True) / "n4x1-r1" / "attempts" / "000" / "steps-00002.jsonl").unlink()


def damaged(root: Path) -> None:
    (steps,) = fake_sweep(root, nodes=(1, 2), all_ranks=True).glob("n1x1-r0/attempts/000/steps-00000.jsonl")
    steps.write_text(steps.read_text() + '{"step": 99,\n')


def failed(root: Path) -> None:
    fake_sweep(root, all_ranks=True)
    fake_run(root / "default" / "gone", nodes=4, end="failed", message="rank 2: killed")


def grouped(root: Path) -> None:
    for nodes in (1, 2):
        for repeat, mean_s in enumerate((0.1, 0.1002, 0.13, 0.1303)):
            fake_run(
                root / "s" / f"n{nodes}-r{repeat}", nodes=nodes, repeat=repeat, mean_s=mean_s, all_ranks=True
            )


def drifting(root: Path) -> None:
    for run in fake_sweep(root, nodes=(1, 2), all_ranks=True).glob("n2*"):
        reshape(run, lambda step: 1 + 0.003 * step)


def equal(root: Path) -> None:
    for nodes in (1, 2):
        for repeat in range(3):
            fake_run(root / "s" / f"n{nodes}-r{repeat}", nodes=nodes, repeat=repeat, all_ranks=True)


CASES: dict[str, tuple[Callable[[Path], Any], str, set[str]]] = {
    "emulated": (lambda root: fake_sweep(root, emulated=True), "grave", set()),
    "shared processors": (lambda root: fake_sweep(root, oversubscribed=True), "warning", {"transfer advice"}),
    "other load": (other_load, "warning", {"transfer advice"}),
    "late emulation": (late, "warning", set()),
    "pre-flight": (lambda root: preflight(root, "full", SLOW), "warning", set()),
    "no pre-flight": (lambda root: preflight(root, "off"), "note", set()),
    "skipped updates": (lambda root: fake_sweep(root, skipped_steps=2), "warning", set()),
    "not stationary": (drifting, "grave", {"headline", "cost ranking"}),
    "one machine": (fake_sweep, "note", set()),
    "one repeat": (lambda root: fake_sweep(root, repeats=1), "warning", {"cost ranking"}),
    "two repeats": (lambda root: fake_sweep(root, repeats=2), "note", set()),
    "equal repeats": (equal, "warning", {"cost ranking"}),
    "mixed runs": (threads, "warning", set()),
    "unlike runs": (lambda root: threads(root, "n4x1-*"), "grave", {"headline", "cost ranking"}),
    "two groups": (grouped, "grave", {"headline", "cost ranking"}),
    "overlaps": (overlapping, "warning", {"transfer advice"}),
    "unreadable records": (damaged, "warning", {"nobody is slow"}),
    "missing records": (without_a_rank, "warning", {"nobody is slow"}),
    "left out": (failed, "warning", set()),
}


@pytest.mark.parametrize("kind", CASES)
def test_caveat_of_each_kind(tmp_path: Path, kind: str) -> None:
    make, gravity, forbids = CASES[kind]
    make(tmp_path)
    study = study_of(tmp_path)
    (caveat,) = [each for each in study.caveats if each.kind == kind]
    assert (caveat.gravity.name.lower(), caveat.forbids) == (gravity, forbids)
    assert list(study.caveats) == sorted(study.caveats, key=lambda each: -each.gravity)
    for subject in forbids:
        assert subject in study.forbidden(subject).forbids
    text = caveat_text(study, caveat).replace(f"{tmp_path}/", "")
    assert len(text.split()) <= 25
    known = dict(line.split(": ", 1) for line in (GOLDEN / "caveats.txt").read_text().splitlines())
    known[kind] = text
    golden("caveats.txt", "".join(f"{name}: {known[name]}\n" for name in CASES if name in known))


def test_a_caveat_forbids_statements_on_its_own_runs_alone(tmp_path: Path) -> None:
    without_a_rank(tmp_path)
    study = study_of(tmp_path)
    (curve,) = study.curves
    assert [bool(study.forbidden("nobody is slow", curve, point)) for point in curve.points] == [
        False,
        False,
        True,
    ]
    assert study.forbidden("nobody is slow")
    assert not study.forbidden("headline")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda root: other_load(root, 100.0), "other load"),
        (lambda root: late(root, 1e-5), "late emulation"),
        (lambda root: processors(root, {1: 2, 2: 4}), "mixed runs"),  # more ranks have more processors
        (lambda root: processors(root, {1: 2, 2: 2}), "mixed runs"),
        (fake_sweep, "unlike runs"),
    ],
)
def test_what_does_not_matter_is_no_caveat(tmp_path: Path, make: Callable[[Path], Any], kind: str) -> None:
    make(tmp_path)
    assert kind not in caveats(tmp_path)


def test_fewer_processors_for_more_ranks_are_a_difference(tmp_path: Path) -> None:
    processors(tmp_path, {1: 4, 2: 2})
    assert caveats(tmp_path)["mixed runs"].numbers["differing"] == {
        "processors": {"4": "1 rank", "2": "2 ranks"}
    }


@pytest.mark.parametrize(("skipped", "gravity"), [(0, None), (1, Gravity.NOTE), (2, Gravity.WARNING)])
def test_skipped_updates_are_a_warning_from_one_percent_on(
    tmp_path: Path, skipped: int, gravity: Gravity | None
) -> None:
    fake_sweep(tmp_path, nodes=(1,), skipped_steps=skipped)
    caveat = caveats(tmp_path).get("skipped updates")
    assert (caveat and caveat.gravity) == gravity


def test_nodes_of_a_mini_cluster_are_one_machine(tmp_path: Path) -> None:
    attempt = RunDir(fake_sweep(tmp_path, nodes=(1, 2), repeats=1) / "n2x1-r0").attempt(0)
    write_json(attempt.record, read_json(attempt.record) | {"cluster": "slurm"})
    assert "one machine" not in caveats(tmp_path)
    write_json(attempt.node_record(0), NODE | {"slurm": {"SLURM_CONF": "/run/disttrain-demo/slurm.conf"}})
    assert caveats(tmp_path)["one machine"].numbers["example"].metrics.nodes == 2
    assert (
        "Slurm mini-cluster demo on one machine" in provenance(load_runs([tmp_path / "default"]))["Cluster"]
    )


@pytest.mark.parametrize(
    ("starts", "verdict"),
    [
        (["warned", "passed"], "warned"),  # steps of the first start may be in the figures
        (["refused", "passed"], "passed"),  # nothing was trained
        (["passed", "skipped"], "skipped"),
        (["refused"], "refused"),
    ],
)
def test_a_run_counts_as_warned_if_any_of_its_starts_was(
    tmp_path: Path, starts: list[str], verdict: str
) -> None:
    run = RunDir(tmp_path / "run")
    for number, start in enumerate(starts):
        severity = {"warned": "warning", "refused": "error"}.get(start)
        problems = [dataclasses.replace(SLOW, severity=severity)] if severity else []
        mode = "off" if start == "skipped" else "basic"
        write_json(run.attempt(number).preflight, verdict_record(number, mode, ["n1"], [], {}, problems))
    assert preflight_columns(read_attempts(run, []))["preflight"] == verdict
