"""A run with impossible figures is named and set aside; the rest of its sweep counts."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.read.frames import load
from disttrain.records.json_files import read_json
from tests.support.fake_runs import fake_sweep

HUGE = 10**400


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
    assert place[0] in runs.loc["n2x1-r0", "note"]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"samples_per_s": 7e5}, "samples_per_s is 700000"),
        ({"composition": {"compute_s": -1}}, "composition.compute_s is -1"),
        ({"measured_steps": 1}, "global_batch_size / step"),
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


def test_no_corrupt_value_of_a_record_ends_the_reading(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    files = sorted(sweep.glob("*/*.json"))
    choose = random.Random(2)
    values = [math.nan, math.inf, 0, -1, 1e13, HUGE, "x", None, [], {}, True]
    for _ in range(150):
        path = choose.choice(files)
        text = path.read_text()
        content = json.loads(text)
        path.write_text(
            json.dumps(changed(content, choose.choice([*places(content)]), choose.choice(values)))
        )
        runs = load([sweep])
        path.write_text(text)
        assert runs.loc[runs["path"] != str(path.parent), "included"].all()
        kept = runs[runs["included"]]
        assert kept["samples_per_s"].between(1e-9, 1e12).all()
        assert (kept["world_size"] >= 1).all()
