"""Mistakes in a sweep file: one line that names the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config.parsing import load
from disttrain.errors import ConfigError
from sweeps.expand import expand

FILE = """\
model: {kind: mlp}
data: {kind: digits}
train:
  steps: 10
  local_batch_size: 8
sweep:
  axes:
    resources.nodes: [1, 2]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[1, 2]", "[]", "sweep.yaml:8: sweep.axes.resources.nodes=[]: an axis needs at least one value"),
        ("[1, 2]", "4", "sweep.yaml:8: sweep.axes.resources.nodes=4: an axis is a list of values, as in [4]"),
        ("[1, 2]", "[0, 1]", "sweep.yaml:8: resources.nodes=0: input should be greater than 0"),
        ("[1, 2]", "[2, true]", "sweep.yaml:8: resources.nodes=true: a whole number is needed"),
        (
            "  axes:",
            "  repeats: true\n  axes:",
            "sweep.yaml:7: sweep.repeats=true: a whole number is needed",
        ),
        ("[1, 2]", "[1, 1]", "sweep.yaml:8: resources.nodes: the axis has the value 1 twice"),
        ("[1, 2]", "[one]", "sweep.yaml:8: resources.nodes='one': a whole number is needed"),
        (
            "resources.nodes",
            "resources.node",
            "sweep.yaml:8: unknown key 'resources.node'; did you mean 'resources.nodes'?",
        ),
        (
            "axes:",
            "axis:",
            "sweep.yaml:7: unknown key 'sweep.axis'; did you mean 'sweep.axes'?; allowed: sweep.axes, "
            "sweep.grids, sweep.exclude, sweep.scaling, sweep.repeats",
        ),
        ("  axes:", "  repeats: 0\n  axes:", "sweep.yaml:7: sweep.repeats=0: input should be greater than 0"),
        (
            "  axes:",
            "  scaling: strnog\n  axes:",
            "sweep.yaml:7: sweep.scaling='strnog': allowed: 'weak' or 'strong'; did you mean 'strong'?",
        ),
        ("steps: 10", "stpes: 10", "sweep.yaml:4: unknown key 'train.stpes'; did you mean 'train.steps'?"),
        ("  axes:", "  exclude: [{train.seed: 0}]\n  axes:", "sweep.yaml:7: sweep.exclude leaves no run"),
        (
            "  axes:",
            "  exclude: [{train.sede: 0}]\n  axes:",
            "sweep.yaml:7: unknown key 'train.sede' in sweep.exclude; did you mean 'train.seed'?",
        ),
        (
            "  axes:",
            "  exclude: [{}]\n  axes:",
            "sweep.yaml:7: sweep.exclude.0={}: dictionary should have at least 1 item",
        ),
        (
            "  axes:",
            "  exclude: {train.seed: 0}\n  axes:",
            'sweep.yaml:7: sweep.exclude={"train.seed": 0}: a list is needed, in brackets',
        ),
        (
            "  axes:",
            "  grids: {a: {resources.nodes: [4]}}\n  axes:",
            "sweep.yaml:7: resources.nodes is an axis of grid 'a' and in sweep.axes; keep one",
        ),
        ("axes:\n    resources.nodes: [1, 2]", "axes: [1]", "sweep.yaml:7: sweep.axes=[1] must be a mapping"),
        (
            "local_batch_size: 8",
            "global_batch_size: 9",
            "sweep.yaml:5: train.global_batch_size=9 is not divisible by 2 ranks",
        ),
        (
            "[1, 2]",
            "[1, 2]\n    train.log_every: [5, 10]",
            "two runs would be the same: train.log_every=5 and train.log_every=10",
        ),
        ("[1, 2]", "[1, 2]\n    sweep.repeats: [1, 2]", "sweep.yaml:9: sweep.repeats cannot be an axis"),
    ],
)
def test_mistakes_in_the_file_name_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = FILE.replace(old, new)
    if "divisible" in message:
        text += "  scaling: strong\n"
    Path("sweep.yaml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        expand(load("sweep.yaml"), name="s")
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
