"""From YAML to a checked config; combinations that are accepted, and options that a run reads."""

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import flat_values
from disttrain.config.parsing import Draft, check, load, parse_value
from disttrain.config.run_key import config_key
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.config.stop_time import stop_time
from disttrain.config.without_effect import options_without_effect
from disttrain.errors import ConfigError

TRAIN = {"train": {"steps": 1, "local_batch_size": 1}}


def config_of(**sections):
    return Config.model_validate(sections)


# --- files and values ---


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "model:\n  kind: mlp\ndata: {kind: digits}\ntrain:\n  steps: 1.5e3\n  local_batch_size: 16\n"
    (tmp_path / "my.yaml").write_text(text + "optim:\nsweep:\nresources: {nodes: 2.0}\n")
    return "my.yaml"


def test_a_file_is_a_config_with_the_defaults_of_empty_sections_and_builders(file):
    config = check(load(file))
    assert (
        json.dumps([config.train.steps, config.resources.nodes]) == "[1500, 2]"
    )  # where a whole one is needed
    assert (config.optim.name, config.model.model_extra["activation"]) == ("adamw", "relu")


def test_a_draft_knows_the_line_of_a_key_or_of_its_section(file):
    draft = load(file)
    keys = ["train.steps", "train.seed", "sweep.axes", "compile.scope"]
    assert [draft.at(key) for key in keys] == ["my.yaml:5", "my.yaml:4", "my.yaml:8", None]


def test_an_override_fills_an_empty_section_and_leaves_the_file_as_it_was(file):
    draft = load(file)
    changed = draft.copy()
    for key, value in {"train.steps": -1, "optim.name": "sgd"}.items():
        changed.set(key, value, "--set")
    with pytest.raises(ConfigError, match=r"^--set: train\.steps=-1: "):
        check(changed)
    assert (changed.get("optim.name"), draft.get("optim.name"), draft.get("train.steps")) == (
        "sgd",
        None,
        1500,
    )


@pytest.mark.parametrize(("name", "reason"), [("missing", "No such file"), ("binary", "not a text file")])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, reason):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match=f"cannot read config '.*{name}': {reason}"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3), ("2E5", 200_000), ("-1.5e+2", -150.0), ("0.1", 0.1), (".5", 0.5), ("5", 5),
        ("1e", "1e"), ("e3", "e3"), ("2020-99-99", "2020-99-99"), ("true", True), ("null", None),
        ("[1e-3, a]", [1e-3, "a"]), ("", None), ("text", "text"), ("{run_dir}/x", "{run_dir}/x"),
        (".inf", float("inf")), ("1.2.3", "1.2.3"), ("3x", "3x"),
    ],
)  # fmt: skip
def test_values_are_read_as_people_mean_them(text, value):
    read = parse_value(text, "--set")
    assert (read, type(read)) == (value, type(value))


def test_a_config_survives_the_way_through_a_file():
    config = config_of(model={"layers": 2}, job={"env": {"A": "b"}}, optim={"betas": [0.8, 0.9]})
    again = Config.model_validate(json.loads(json.dumps(config.as_dict())))
    assert again == config
    assert config_key(again) == config_key(config)
    assert "command" not in config.as_dict()
    assert config_of(command="a.py").as_dict().keys() == {"command", "resources", "job"}


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Config().train.steps = 3


def test_flat_values_keep_empty_mappings():
    assert flat_values({"a": {"b": {}, "c": 1}, "d": None}) == {"a.b": {}, "a.c": 1, "d": None}


@pytest.mark.parametrize(
    ("options", "interval_s", "requested"),
    [
        ({}, 900, False),
        ({"every_s": 5}, 5, True),
        ({"every_s": 0}, None, False),
        ({"every_steps": 3}, None, True),
        ({"every_steps": 3, "every_s": 5}, 5, True),
    ],
)
def test_the_interval_of_checkpoints(options, interval_s, requested):
    checkpoint = CheckpointConfig(**options)
    assert (checkpoint.interval_s, checkpoint.requested) == (interval_s, requested)


@pytest.mark.parametrize(
    ("variables", "stops"),
    [
        ({"SLURM_JOB_END_TIME": "1000"}, 940),
        ({"SLURM_JOB_END_TIME": "1000", "DISTTRAIN_DEADLINE": "500"}, 440),
        ({"SLURM_JOB_END_TIME": "1000", "DISTTRAIN_DEADLINE": "soon"}, 940),
        ({"DISTTRAIN_DEADLINE": "140"}, 130),  # three quarters of the 40 s that are left
        ({"DISTTRAIN_DEADLINE": "90"}, 90),
        ({}, None),
    ],
)
def test_ranks_stop_before_the_end_of_the_job(variables, stops):
    assert stop_time(variables, lead_s=60, now=100) == stops


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            "config.config_tree config.parsing records.metrics records.planned config.options",
            ["torch", "pandas"],
        ),
        (
            "records.run_directory records.json_files errors config.batch_plan config.stop_time",
            ["pydantic", "yaml"],
        ),
    ],
)
def test_the_login_node_imports_nothing_heavy(modules, absent):
    imports = "; ".join(f"import disttrain.{module}" for module in modules.split())
    code = f"import sys; {imports}; print([name for name in {absent} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# --- combinations that are accepted ---


def test_the_sizes_that_a_refusal_of_a_gpt_names_are_accepted():
    def refusal(**sizes):
        try:
            check(Draft({"model": {"kind": "gpt", **sizes}, **TRAIN}))
        except ConfigError as error:
            return str(error)
        return ""

    for refused in ({"width": width, "heads": heads} for width in range(1, 24) for heads in range(1, 6)):
        for choice in filter(None, refusal(**refused).partition("; use ")[2].split(", or ")):
            name, _, values = choice.removeprefix("model.").partition("=")
            for value in values.split(" or "):
                assert not refusal(**refused | {name: int(value)})


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"kind": "gpt"}, "data": {"kind": "synthetic", "task": "language"}},
        {"model": {"kind": "mlp"}, "data": {"kind": "synthetic", "shape": [64]}},
        {"model": {"kind": "resnet"}, "data": {"kind": "digits"}},
        {"model": {"kind": "resnet"}, "data": {"kind": "tests.support.small_models:source"}},
        {"model": {"kind": "emulated"}, "data": {"kind": "digits"}},
        {
            "compile": {"scope": "model"},
            "parallel": {"strategy": "ddp", "ddp": {"bucket_mb": 1}},
            "resources": {"gpus_per_node": 2},
        },
        *(
            {"parallel": {"strategy": strategy, "gradient_communication": {"scheme": scheme}}}
            for strategy in ("auto", "ddp")
            for scheme in ("none", "fp16", "bf16", "powersgd", "topk", "randomk", "hierarchical")
        ),
        {
            "train": {"steps": 20, "local_batch_size": 1, "eval_every": 16},
            "checkpoint": {"every_steps": 8},
            "parallel": {"strategy": "ddp", "gradient_communication": {"scheme": "local_sgd"}},
            "precision": {"on_non_finite": "ignore"},
        },
    ],
    ids=str,
)
def test_combinations_that_are_accepted(sections):
    check(Draft(TRAIN | sections))


# --- options without effect: the golden file of mistakes has the warnings ---


@pytest.mark.parametrize(
    "sections",
    [
        {"parallel": {"strategy": "ddp", "gradient_communication": {"scheme": "topk"}}},
        {
            "parallel": {"strategy": "fsdp", "fsdp": {"accumulation": "no_sync"}},
            "train": {"local_batch_size": "auto", "global_batch_size": 8},
        },
        {
            "parallel": {"strategy": "hsdp", "fsdp": {"accumulation": "no_sync"}},
            "train": {"local_batch_size": 2, "global_batch_size": 8},
            "resources": {"nodes": 2},
        },
        {"model": {"transforms": ["channels_last", "own:transform"]}},
        {"train": {"eval_every": 5}, "data": {"kind": "tokens", "valid_share": 0, "valid_path": "valid"}},
        {"parallel": {"strategy": "ddp", "ddp": {"sync_batch_norm": True}}, "model": {"kind": "own:model"}},
        {"command": "train.py", "optim": {"momentum": 0.5}},
    ],
    ids=str,
)
def test_an_option_that_the_run_reads_is_no_warning(sections):
    assert options_without_effect([Config.model_validate(sections)]) == []


def test_an_option_that_one_run_of_the_sweep_reads_is_no_warning():
    fsdp, hsdp, ddp, unset = (
        config_of(parallel={"strategy": strategy, "ddp": {"bucket_mb": size}})
        for strategy, size in (("fsdp", 50), ("hsdp", 50), ("ddp", 50), ("ddp", None))
    )
    assert options_without_effect([fsdp, hsdp, ddp]) == []
    (line,) = options_without_effect([fsdp, hsdp, unset])
    assert line.startswith("parallel.ddp.bucket_mb=50 has no effect with parallel.strategy=fsdp or hsdp: ")
