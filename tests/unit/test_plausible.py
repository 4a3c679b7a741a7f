"""A run with impossible figures is named and set aside; the rest of its sweep counts."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.read.frames import load, table
from analysis.read.load import load_runs
from analysis.report.model import document
from analysis.report.render import markdown
from analysis.report.sections import build_all
from analysis.study import make_study
from disttrain.records.json_files import read_json
from tests.support.fake_runs import fake_run, fake_sweep

HUGE = 10**400


PROCESSES = {
    "ranks": 1, "samples": 9, "cpu_percent": 95.0, "rss_peak_bytes": 1, "threads_max": 4,
    "host_memory_used_peak": 0.2,
}  # fmt: skip


def changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return content


def places(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(content, dict | list) and content:
        for key in content if isinstance(content, dict) else [len(content) - 1]:
            yield from places(content[key], (*before, key))
    else:
        yield before


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 1e13, HUGE, 0], ids=lambda value: f"{value!r:.9}")
@pytest.mark.parametrize(
    "place",
    [
        ("samples_per_s",), ("measured_s",), ("samples_per_s_per_rank",), ("world_size",), ("nodes",),
        ("global_batch_size",), ("step_time", "p50_s"),
    ],
    ids=".".join,
)  # fmt: skip
def test_an_impossible_figure_sets_its_run_aside_and_no_other(
    tmp_path: Path, place: tuple[str, ...], value: float
) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    path = sweep / "n2x1-r0" / "metrics.json"
    path.write_text(json.dumps(changed(read_json(path), place, value)))
    runs = load([sweep]).set_index("run")
    assert runs["included"].tolist() == [True, False]
    noted = "metrics.json" if value == HUGE or not math.isfinite(value) else place[0]
    assert noted in runs.loc["n2x1-r0", "note"]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"samples_per_s": 7e5}, "samples_per_s is 700000"),
        ({"composition": {"compute_s": -1}}, "composition.compute_s is -1"),
        ({"measured_steps": 1}, "global_batch_size / step"),
        ({"processes": PROCESSES | {"cpu_percent": -5.0}}, "processes.cpu_percent is -5"),
    ],
)
def test_a_negative_phase_or_figures_that_contradict_each_other_set_their_run_aside(
    tmp_path: Path, fields: dict[str, Any], note: str
) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1,), repeats=1)
    path = sweep / "n1x1-r0" / "metrics.json"
    path.write_text(json.dumps(read_json(path) | fields))
    (row,) = load([sweep]).to_dict("records")
    assert not row["included"]
    assert note in row["note"]


@pytest.mark.parametrize(("batch", "included"), [(8, True), (16, True), (32, True), (4, False), (64, False)])
def test_the_stages_of_a_pipeline_share_the_batch_of_a_replica(
    tmp_path: Path, batch: int, included: bool
) -> None:
    """Four ranks with a local batch of 8: one, two or four replicas."""
    metrics = {"strategy": "pipeline", "global_batch_size": batch, "samples_per_s": 10 * batch}
    fake_run(tmp_path / "s" / "n4", nodes=4, overrides=metrics)
    (row,) = load([tmp_path / "s"]).to_dict("records")
    assert row["included"] == included


def test_no_corrupt_value_of_a_record_ends_the_study(tmp_path: Path) -> None:
    """Records, step records and samples: the other run counts, and no figure of either changes unsaid."""
    for nodes in (1, 2):
        fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes, steps=40, all_ranks=True)
    names = ["samples_per_s", "step_s", "nodes", "world_size", "global_batch_size"]
    truth = load([tmp_path / "s"]).set_index("path")[names].astype(float)
    files = sorted(path for path in (tmp_path / "s").glob("*/**/*.json*"))
    choose = random.Random(2)
    values = [math.nan, math.inf, 0, -1, 1e13, HUGE, "x", None, [], {}, True]
    for _ in range(40):
        path = choose.choice(files)
        text = path.read_text()
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        line = choose.randrange(len(lines))
        content = json.loads(lines[line])
        lines[line] = json.dumps(changed(content, choose.choice([*places(content)]), choose.choice(values)))
        path.write_text("\n".join(lines) + "\n")
        study = make_study(load_runs([tmp_path / "s"]))
        sections = build_all(study)
        assert markdown(document(study, sections, ""), sections)
        path.write_text(text)
        included = table(study.included).set_index("path")[names].astype(float)
        assert {run for run in truth.index if not str(path).startswith(run)} <= {*included.index}
        assert np.allclose(included, truth.loc[included.index], rtol=0.1)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"compute_s": 0.5}, "phases do not sum to step_s in step 20 of rank 0"),
        ({"step_s": -1.0}, "step_s is -1 in step 20 of rank 0"),
        ({"input_s": 1e13}, "input_s is 1e+13 in step 20 of rank 0"),
    ],
)
def test_impossible_step_records_set_their_run_aside(
    tmp_path: Path, change: dict[str, float], note: str
) -> None:
    run = fake_run(tmp_path / "s" / "run")
    path = run.attempt(0).steps(0)
    lines = path.read_text().splitlines()
    lines[19] = json.dumps(json.loads(lines[19]) | change)
    path.write_text("\n".join(lines) + "\n")
    (row,) = load([tmp_path / "s"]).to_dict("records")
    assert (row["included"], row["note"]) == (False, f"step records are impossible: {note}")


def test_step_records_of_another_duration_than_the_metrics_set_their_run_aside(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run", mean_s=0.2)
    other = fake_run(tmp_path / "t" / "run")
    other.metrics.rename(run.metrics)
    (row,) = load([tmp_path / "s"]).to_dict("records")
    assert not row["included"]
    assert "the mean measured step is 0.2" in row["note"]
