"""The words of a `command`: values of axes, names that are refused, and the runs that result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from disttrain.config.config_tree import Config
from disttrain.config.parsing import Draft, check, load
from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import fill
from sweeps.command_template import filled, is_free
from sweeps.expand import SweepPlan, expand
from sweeps.overrides import Override, parse_set


def expanded(command: Any, *sets: str, **sections: Any) -> SweepPlan:
    overrides = [parse_set(text) for text in sets]
    return expand(Draft({"command": command, **sections}), overrides, name="s")


def expanded_axes(axes: dict[str, Any]) -> SweepPlan:
    return expand(Draft({"sweep": {"axes": axes}}), name="s")


def commands(plan: SweepPlan) -> list[tuple[str, ...]]:
    return [run.config.command for run in plan.runs]


def test_values_of_axes_and_keys_are_filled_in() -> None:
    plan = expanded(
        "train.py --lr {lr} --on {resources.nodes}x{resources.gpus_per_node} --seed {repeat}",
        "lr=1e-3,0.1",
        sweep={"repeats": 2, "axes": {"resources.nodes": [2]}},
        resources={"gpus_per_node": 4},
    )
    assert commands(plan) == [
        ("train.py", "--lr", lr, "--on", "2x4", "--seed", seed) for seed in "01" for lr in ("0.001", "0.1")
    ]
    assert [run.name for run in plan.runs][:2] == ["n2-g4-lr1e-3-r0", "n2-g4-lr0.1-r0"]
    assert plan.runs[0].axes == {"resources.nodes": 2, "lr": 0.001}
    assert plan.base["command"][2] == "{lr}"
    assert set(plan.base) == {"command", "resources", "job", "sweep"}


def test_a_single_value_of_a_name_is_an_axis_too() -> None:
    plan = expanded("train.py {lr}", "lr=0.1")
    assert commands(plan) == [("train.py", "0.1")]
    assert "lr" not in plan.base


@pytest.mark.parametrize("value", ["a b", "$(touch x)", "'; rm -rf /", "{x}", "--other"])
def test_a_value_stays_within_its_word(value: str) -> None:
    plan = expand(
        Draft({"command": "train.py --name={x} last"}),
        [Override("x", (value,), "--set", axis=True)],
        name="s",
    )
    assert commands(plan) == [("train.py", f"--name={value}", "last")]


def test_a_literal_brace_is_doubled() -> None:
    assert commands(expanded("""train.py '{{"a": {lr}}}'""", "lr=1")) == [("train.py", '{"a": 1}')]


@pytest.mark.parametrize(
    ("command", "sets", "message"),
    [
        (
            "train.py {lrr}",
            ["lr=1"],
            "command: {lrr} is neither an axis nor a config key; did you mean 'lr'?",
        ),
        ("train.py {resources.node}", [], "did you mean 'resources.nodes'?"),
        ("train.py {lr}", ["lr=1", "batch=2"], "batch is no config key, and the command has no {batch}"),
        ("train.py {", [], "a literal brace is {{ or }}"),
        ("train.py {lr:.2f}", ["lr=1"], "braces hold a name alone"),
        ("train.py 'open", [], "command="),
        ("train.py {lr}", ["lr=1", "optim.lr=1"], "optim.lr has no effect on a command"),
        ("train.py", ["job.step_timeout_s=1"], "job.step_timeout_s has no effect on a command"),
        (
            "python train.py",
            [],
            "'python' is neither a script (train.py) nor -m and a module; leave out python",
        ),
        ("-m", [], "-m needs a module"),
        (
            "train.py {run_dri}",
            [],
            "command: {run_dri} is neither an axis nor a config key; did you mean 'run_dir'?",
        ),
        ("train.py {run}", ["run=1"], "{run} is a value of each run; give the axis another name"),
        (
            "train.py",
            ["job.env.OUT={resources.node}"],
            "--set: job.env.OUT: {resources.node} is neither an axis nor a config key; did you mean",
        ),
    ],
)
def test_a_bad_command_is_refused_in_one_line(command: str, sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        expanded(command, *sets)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("{", "command: '{': single '{' encountered in format string; a literal brace is {{ or }}"),
        ("{lr!r}", "command: '{lr!r}': braces hold a name alone; a literal brace is {{ or }}"),
        ("{}", "command: '{}': braces hold a name alone; a literal brace is {{ or }}"),
        ("{x}", "command: {x} is neither an axis nor a config key; a literal brace is {{ or }}"),
        ("{command}", "command: {command} is neither an axis nor a config key; a literal brace is {{ or }}"),
        ("{rate}", "rates is no config key, and the command has no {rates}; did you mean 'rate'?"),
    ],
)
def test_a_refusal_names_the_place_of_the_command(word: str, message: str) -> None:
    config = check(Draft({"command": ["train.py", word]}))
    axes = {"rate": 1, "rates": 2} if word == "{rate}" else {}
    with pytest.raises(ConfigError) as refused:
        filled(config, axes, 0, at={"command": "sweep.yaml, line 3", "rates": "sweep.yaml, line 3"}.get)
    assert str(refused.value) == str(ConfigError(message, at="sweep.yaml, line 3"))
    assert "line 3" in str(refused.value)


def test_keys_of_sections_are_not_free() -> None:
    assert not any(is_free(key) for key in ("optim.lr", "parallel.ddp.bucket_mb", "sweep.repeats"))
    assert is_free("lr")
    assert is_free("own.lr")


def test_a_name_without_a_command_is_an_unknown_key() -> None:
    with pytest.raises(ConfigError, match="unknown key 'lr'"):
        expand(Draft({"train": {"steps": 1, "local_batch_size": 1}}), [parse_set("lr=1,2")], name="s")


def test_combinations_of_names_can_be_excluded() -> None:
    plan = expanded("train.py {a} {b}", "a=1,2", "b=1,2", sweep={"exclude": [{"a": 1, "b": 2}]})
    assert [words[1:] for words in commands(plan)] == [("1", "1"), ("2", "1"), ("2", "2")]


def test_the_key_of_a_command_depends_on_its_words_alone() -> None:
    one, other = (expanded("train.py {lr}", f"lr={lr}").runs[0].config_key for lr in (1, 2))
    same = expanded(["train.py", "1"]).runs[0].config_key
    assert one == same != other
    longer = expanded("train.py 1", "job.time_limit_min=5", "job.stop_signal=SIGUSR1")
    assert longer.runs[0].config_key == one


def test_values_of_a_run_are_placeholders_until_it_starts(tmp_path: Path) -> None:
    words = [
        "train.py",
        '{{"out": "{run_dir}/{lr}"}}',
        "{{run}}",
        "{checkpoint_dir} {run} {{{attempt}}}",
        "{{x}}",
    ]
    plan = expand(
        Draft(
            {"command": words, "job": {"env": {"OUT": "{run_dir}", "N": "{resources.nodes}", "J": "{{}}"}}}
        ),
        [Override("lr", ("{y}",), "--set", axis=True)],
        name="s",
    )
    (planned,) = plan.runs
    assert planned.config.command[1] == '{{"out": "{run_dir}/{{y}}"}}'
    folder = tmp_path / "runs" / "s" / "r"
    config = fill(planned.config.as_dict(), RunDir(folder), 3)
    assert config["command"][1:] == [
        f'{{"out": "{folder}/{{y}}"}}', "{run}", f"{folder}/checkpoints r {{3}}", "{x}",
    ]  # fmt: skip
    assert config["job"]["env"] == {"OUT": str(folder), "N": "1", "J": "{}"}


def test_variables_of_a_trainer_have_placeholders_too() -> None:
    base = {
        "train": {"steps": 1, "local_batch_size": 1},
        "job": {"env": {"A": "{train.steps}", "B": "{attempt}"}},
    }
    (run,) = expand(Draft(base), name="s").runs
    assert run.config.job.env == {"A": "1", "B": "{attempt}"}
    (same,) = expand(Draft({**base, "job": {"env": {"A": "1", "B": "{attempt}"}}}), name="s").runs
    assert same.config_key == run.config_key


def test_a_config_without_a_command_has_no_such_key() -> None:
    assert "command" not in Config().as_dict()
    assert set(check(Draft({"command": "a.py"})).as_dict()) == {"command", "resources", "job"}


def test_commands_that_are_an_axis_are_numbered_in_names() -> None:
    templates = ["one.py --x {lr}", "'two words.py' -- {lr}"]
    plan = expanded_axes({"command": templates, "lr": [0.1, 0.2]})
    assert [run.name for run in plan.runs] == [
        f"n1-command{number}-lr{lr}" for number in range(2) for lr in (0.1, 0.2)
    ]
    assert set(plan.base) == {"resources", "job", "sweep"}
    assert [run.axes["command"] for run in plan.runs[::2]] == ["one.py --x 0.1", "'two words.py' -- 0.1"]


def test_a_refusal_names_the_line_or_the_option_that_gave_the_command(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("sweep: {}\ncommand: [train.py, '{x}']\n")
    with pytest.raises(ConfigError, match=re.escape(f"{file}:2: command: {{x}} is neither")):
        expand(load(file), name="s")
    given = Override("command", ("train.py {y}",), "--set command=...", axis=True)
    with pytest.raises(ConfigError, match=re.escape("--set command=...: command: {y} is neither")):
        expand(load(file), [given], name="s")
