"""The headline: a sentence for each case of `analysis.results.caveats`, none beyond what the runs settle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.read.load import load_runs
from analysis.report import first_screen
from analysis.report.sections import scaling
from analysis.study import Study, make_study
from disttrain.records.json_files import read_json, write_json
from tests.support.fake_runs import fake_run, fake_sweep
from tests.support.golden import GOLDEN, golden


def runs(root: Path, *times_s: tuple[int, float], **overrides: Any) -> None:
    """Runs of so many nodes with these mean steps."""
    for index, (nodes, mean_s) in enumerate(times_s):
        fake_run(root / "s" / f"n{nodes}-r{index}", nodes=nodes, mean_s=mean_s, overrides=overrides)


def edit(root: Path, pattern: str, section: str = "resources", **values: Any) -> None:
    """Change values of a section of the config of runs."""
    for path in root.glob(f"*/{pattern}/run.json"):
        record = read_json(path)
        record["config"].setdefault(section, {}).update(values)
        write_json(path, record)


def other_threads(root: Path) -> None:
    fake_sweep(root)
    edit(root, "n1x*", threads_per_rank=2)


def other_model(root: Path) -> None:
    fake_sweep(root)
    edit(root, "n4x*", "model", layers=7)


def other_script(root: Path) -> None:
    fake_sweep(root, nodes=(1, 2))
    for size, script in ((1, "one.py"), (2, "two.py")):
        for path in root.glob(f"*/n{size}x*/run.json"):
            record = read_json(path)
            record["provenance"]["argv"] = [f"/home/someone/{script}", "--steps", "5"]
            write_json(path, record)


def other_loss(root: Path, by: float = 1.3) -> None:
    fake_sweep(root, nodes=(1, 2), scaling="strong")
    for path in root.glob("*/n2x*/metrics.json"):
        record = read_json(path)
        record["eval_history"][-1]["loss"] *= by
        write_json(path, record)


def shared_machine(root: Path) -> None:
    runs(root, (1, 0.1), (1, 0.101), (2, 0.12), (2, 0.121))
    for path in root.glob("s/n1-*/attempts/*/attempt.json"):
        write_json(path, read_json(path) | {"nodes": ["c01"], "ended": "2026-01-02T03:09:05Z"})


def scripts(root: Path) -> None:
    for name in ("a", "b"):
        run = fake_run(root / "s" / name)
        edit(root, name, "command")
        record = read_json(run.run_json)
        record["config"]["command"] = ["train.py"]
        write_json(run.run_json, record)
        write_json(run.metrics, {"samples_per_s": 12.5})


def unfinished(root: Path) -> None:
    for name in ("a", "b", "c"):
        fake_run(root / "s" / name, end="planned")
    fake_run(root / "s" / "d", end="failed", message="RuntimeError")


CASES: dict[str, Callable[[Path], Any]] = {
    "settled": fake_sweep,
    "emulated": lambda root: fake_sweep(root, emulated=True),
    "one repeat": lambda root: fake_sweep(root, repeats=1),
    "equal repeats": lambda root: runs(root, (1, 0.1), (1, 0.1), (2, 0.11), (2, 0.11)),
    "unsettled": lambda root: runs(root, (1, 0.1), (1, 0.15), (2, 0.1), (2, 0.2)),
    "no gain": lambda root: runs(root, (1, 0.1), (1, 0.102), (2, 0.2), (2, 0.203)),
    "implausible": lambda root: runs(root, (1, 1.45), (2, 0.2)),
    "one size": lambda root: fake_sweep(root, nodes=(2,)),
    "unlike runs": other_threads,
    "shared machine": shared_machine,
    "other loss": other_loss,
    "other model": other_model,
    "other script": other_script,
    "own scripts": scripts,
    "no finished run": unfinished,
}


def study_of(root: Path) -> Study:
    return make_study(load_runs(sorted(root.iterdir())))


@pytest.mark.parametrize("case", CASES)
def test_headline_of_each_case(tmp_path: Path, case: str) -> None:
    CASES[case](tmp_path)
    file = "headlines.txt"
    known = dict(line.split(": ", 1) for line in (GOLDEN / file).read_text().splitlines())
    known[case] = first_screen.lead(study_of(tmp_path))
    golden(file, "".join(f"{name}: {known[name]}\n" for name in CASES if name in known))


def test_losses_within_the_margin_are_the_same_work(tmp_path: Path) -> None:
    other_loss(tmp_path, 1.03)
    assert first_screen.lead(study_of(tmp_path)).startswith("2 ranks run 1.7")


@pytest.mark.parametrize("case", ["other model", "other script"])
def test_no_curve_over_different_programs(tmp_path: Path, case: str) -> None:
    CASES[case](tmp_path)
    study = study_of(tmp_path)
    assert all(point.speedup is None for point in study.curves[0].points)
    section = scaling.build(study)
    assert section is not None
    assert section.figures == []
