"""From YAML to a checked config: every mistake is one line that says where and what instead."""

from __future__ import annotations

import json

import pytest

from disttrain.config.parsing import check, load, parse_value
from disttrain.errors import ConfigError

GOOD = """\
model:
  kind: mlp
data:
  kind: digits
train:
  steps: 50
  local_batch_size: 16
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "my.yaml").write_text(text)
        return "my.yaml"

    return write


def refusal(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(load(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_good_file_is_a_config(write):
    config = check(load(write(GOOD)))
    assert config.train.steps == 50
    assert config.model.kind == "mlp"
    assert config.optim.lr == 1e-3


def test_what_is_no_text(write, tmp_path):
    assert refusal("missing.yaml") == "cannot read config 'missing.yaml': No such file or directory"
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    assert refusal("binary.yaml") == "cannot read config 'binary.yaml': not a text file"


def test_an_empty_section_is_all_defaults(write):
    config = check(load(write(GOOD + "optim:\nsweep:\n")))
    assert config.optim.name == "adamw"


def test_an_override_fills_an_empty_section(write):
    draft = load(write(GOOD.replace("  steps: 50\n  local_batch_size: 16\n", "")))
    draft.set("train.steps", 3, "--set")
    draft.set("train.global_batch_size", 8, "--set")
    assert check(draft).train.steps == 3


def test_an_override_of_an_override_is_told_apart(write):
    draft = load(write(GOOD))
    copy = draft.copy()
    copy.set("train.steps", -1, "--set train.steps")
    with pytest.raises(ConfigError, match=r"^--set train\.steps: train\.steps=-1: "):
        check(copy)
    assert draft.get("train.steps") == 50
    with pytest.raises(ConfigError, match=r"^--set: model\.kind is a value, not a section$"):
        copy.set("model.kind.name", 1, "--set")


def test_the_place_of_a_key_is_its_own_or_its_sections(write):
    draft = load(write(GOOD))
    assert draft.at("train.steps") == "my.yaml:6"
    assert draft.at("train.seed") == "my.yaml:5"
    assert draft.at("optim.lr") is None
    assert draft.get("optim.lr") is None


def test_an_override_that_is_no_yaml():
    with pytest.raises(ConfigError, match=r"^--set: cannot read value '\[a'$"):
        parse_value("[a", "--set")


def test_options_of_the_builder_are_filled_in(write):
    config = check(load(write(GOOD.replace("steps: 50", "steps: 5e1"))))
    assert config.train.steps == 50
    assert config.model.model_extra  # the defaults of the builder, spelt out in run.json


def test_a_float_without_a_fraction_is_a_whole_number_where_one_is_needed(write):
    text = GOOD.replace("steps: 50", "steps: 1.5e3") + "resources: {nodes: 2.0}\n"
    config = check(load(write(text)))
    assert json.dumps([config.train.steps, config.resources.nodes]) == "[1500, 2]"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3), ("2E5", 200_000), ("-1.5e+2", -150.0), ("0.1", 0.1), (".5", 0.5), ("5", 5),
        ("1e", "1e"), ("e3", "e3"), ("2020-99-99", "2020-99-99"), ("true", True), ("null", None),
        ("[1e-3, a]", [1e-3, "a"]), ("", None), ("text", "text"),
        (".inf", float("inf")), ("1.2.3", "1.2.3"), ("3x", "3x"),
    ],
)  # fmt: skip
def test_values_are_read_as_people_mean_them(text, value):
    read = parse_value(text, "--set")
    assert read == value
    assert type(read) is type(value)
