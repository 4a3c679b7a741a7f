"""The words of a `command`: values of axes, keys and runs. The golden file of mistakes has the refusals."""

import pytest

from disttrain.config.parsing import Draft
from disttrain.errors import ConfigError
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import fill, filled
from sweeps.expand import expand
from sweeps.overrides import Override, parse_set


def expanded(command, *sets, **sections):
    return expand(Draft({"command": command, **sections}), [parse_set(text) for text in sets], name="s")


def commands(plan):
    return [run.config.command for run in plan.runs]


def test_values_of_axes_and_keys_are_filled_in():
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
    assert plan.base.keys() == {"command", "resources", "job", "sweep"}


def test_a_single_value_of_a_name_is_an_axis_too_and_literal_braces_are_doubled():
    plan = expanded("""train.py '{{"a": {lr}}}'""", "lr=1")
    assert commands(plan) == [("train.py", '{"a": 1}')]
    assert plan.runs[0].axes == {"lr": 1}


@pytest.mark.parametrize("value", ["a b", "$(touch x)", "'; rm -rf /", "{x}", "--other"])
def test_a_value_stays_within_its_word(value):
    override = Override("x", (value,), "--set", axis=True)
    plan = expand(Draft({"command": "train.py --name={x} last"}), [override], name="s")
    assert commands(plan) == [("train.py", f"--name={value}", "last")]


def test_the_key_of_a_command_depends_on_its_words_alone():
    plans = [
        expanded("train.py {lr}", "lr=1"),
        expanded(["train.py", "1"]),
        expanded("train.py 1", "job.time_limit_min=5", "job.stop_signal=SIGUSR1"),
        expanded("train.py {lr}", "lr=2"),
    ]
    one, *same, other = (plan.runs[0].config_key for plan in plans)
    assert {one} == {*same} != {other}


def test_values_of_a_run_are_placeholders_until_it_starts(tmp_path):
    words = [
        "train.py", '{{"out": "{run_dir}/{lr}"}}', "{{run}}", "{checkpoint_dir} {run} {{{attempt}}}", "{{x}}",
    ]  # fmt: skip
    env = {"OUT": "{run_dir}", "N": "{resources.nodes}", "J": "{{}}"}
    override = Override("lr", ("{run}",), "--set", axis=True)
    (run,) = expand(Draft({"command": words, "job": {"env": env}}), [override], name="s").runs
    folder = tmp_path / "runs" / "s" / "r"
    config = fill(run.config.as_dict(), RunDir(folder), 3)
    assert config["command"][1:] == [
        f'{{"out": "{folder}/{{run}}"}}', "{run}", f"{folder}/checkpoints r {{3}}", "{x}",
    ]  # fmt: skip
    assert config["job"]["env"] == {"OUT": str(folder), "N": "1", "J": "{}"}


def test_variables_of_a_trainer_have_placeholders_too():
    runs = []
    for steps in ("{train.steps}", "1"):
        job = {"env": {"A": steps, "B": "{attempt}"}}
        runs += expand(Draft({"train": {"steps": 1, "local_batch_size": 1}, "job": job}), name="s").runs
    assert [run.config.job.env for run in runs] == [{"A": "1", "B": "{attempt}"}] * 2
    assert runs[0].config_key == runs[1].config_key


def test_commands_that_are_an_axis_are_numbered_in_names():
    templates = ["one.py --x {lr}", "'two words.py' -- {lr}"]
    plan = expand(Draft({"sweep": {"axes": {"command": templates, "lr": [0.1, 0.2]}}}), name="s")
    assert [run.name for run in plan.runs] == [
        f"n1-command{number}-lr{lr}" for number in range(2) for lr in (0.1, 0.2)
    ]
    assert plan.base.keys() == {"resources", "job", "sweep"}
    assert [run.axes["command"] for run in plan.runs[::2]] == ["one.py --x 0.1", "'two words.py' -- 0.1"]


def test_a_refusal_names_the_option_that_gave_the_command():
    override = Override("command", ("train.py {y}",), "--set command=...", axis=True)
    with pytest.raises(ConfigError, match=r"^--set command=\.\.\.: command: \{y\}"):
        expand(Draft({"command": "train.py"}), [override], name="s")


def test_values_of_processes_are_placeholders_until_they_start(tmp_path):
    """`rank` is a free axis, as of LoRA, where the launcher has no such placeholder."""
    words = ["run.sh", "{node_rank}{{node_rank}}", "{run_dir}:{master_port}/{{x}}", "{{nnodes}}", "{rank}"]
    job = {"launcher": "node", "env": {"A": "{{node_rank}}"}}
    override = Override("rank", (8,), "--set", axis=True)
    (run,) = expand(Draft({"command": words, "job": job}), [override], name="s").runs
    config = fill(run.config.as_dict(), RunDir(tmp_path / "{a}" / "s" / "r"), 0)
    own = {"node_rank": "1", "nnodes": "2", "master_port": "3"}
    assert [filled(word, own) for word in config["command"][1:]] == [
        "1{node_rank}", f"{tmp_path}/{{a}}/s/r:3/{{x}}", "{nnodes}", "8",
    ]  # fmt: skip
    assert config["job"]["env"] == {"A": "{node_rank}"}
