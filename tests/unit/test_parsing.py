"""From YAML to a checked config: every mistake is one line that says where and what instead."""

from __future__ import annotations

import pytest

from disttrain.config.parsing import Draft, check, known_keys, load, parse_value, with_batch
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


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("steps: 50", "stepz: 50", "my.yaml:6: unknown key 'train.stepz'; did you mean 'train.steps'?"),
        ("local_batch_size", "batch_size", "did you mean 'train.local_batch_size'?"),
        ("train:", "trian:", "my.yaml:5: unknown key 'trian'; did you mean 'train'?"),
        ("train:", "swep: {repeats: 2}\ntrain:", "my.yaml:5: unknown key 'swep'; did you mean 'sweep'?"),
        ("train:", "steps: 50\ntrain:", "my.yaml:5: unknown key 'steps'; did you mean 'train.steps'?"),
        ("steps: 50", "steps: many", "my.yaml:6: train.steps='many': input should be a valid integer"),
        ("train:", "optim: {lr: .inf}\ntrain:", "my.yaml:5: optim.lr=inf: input should be a finite number"),
        (
            "train:",
            "optim: {betas: 0.9}\ntrain:",
            "optim.betas=0.9: a list is needed, in brackets",
        ),
        ("train:", "optim: {betas: [0.9]}\ntrain:", "optim.betas=[0.9]: 2 values are needed"),
        ("train:", "profile: {steps: [1, 2, 3]}\ntrain:", "profile.steps=[1, 2, 3]: at most 2 values are"),
        ("kind: mlp", "kind: mlp\n  transforms: [ab]", "needed is the form package.module:callable"),
        (
            "local_batch_size: 16",
            "local_batch_size: 0",
            "my.yaml:7: train.local_batch_size=0: input should be greater than 0 or 'auto'",
        ),
        ("steps: 50", "steps: 0", "my.yaml:6: train.steps=0: input should be greater than 0"),
        ("steps: 50", "steps: [1, 2]", "my.yaml:6: train.steps=[1, 2]: "),
        ("kind: mlp", "kind: mpl", "my.yaml:2: model.kind='mpl' is unknown; allowed: "),
        ("kind: mlp", "kind: mpl", "did you mean 'mlp'?"),
        (
            "kind: mlp",
            "kind: mlp\n  colour: red",
            "my.yaml:3: model.colour is not an option of model.kind=mlp",
        ),
        (
            "  steps: 50",
            "  steps: 50\n  epochs: 2",
            "my.yaml:7: train.steps=50 and train.epochs=2: give exactly one",
        ),
        ("  steps: 50\n", "", "my.yaml:5: train.steps or train.epochs is needed; neither is given"),
        (
            "  local_batch_size: 16\n",
            "",
            "my.yaml:5: train.local_batch_size or train.global_batch_size is needed",
        ),
        (
            "  steps: 50",
            "  steps: 50\n  steps: 60",
            "my.yaml:7: train.steps is given twice (first at my.yaml:6)",
        ),
        ("train:", "train:\n  seed: 1\ntrain:", "my.yaml:7: train is given twice (first at my.yaml:5)"),
        ("model:\n  kind: mlp", "model: mlp", "my.yaml:1: model='mlp' must be a section"),
        (
            "train:",
            "parallel: {strategy: ddpp}\ntrain:",
            "allowed: 'auto', 'single', 'dp', 'ddp', 'fsdp', 'hsdp' or 'pipeline'; did you mean 'ddp'?",
        ),
        (
            "train:",
            "parallel: {strategy: single}\nresources: {nodes: 2}\ntrain:",
            "my.yaml:5: parallel.strategy=single needs 1 rank",
        ),
        (
            "train:",
            "parallel: {strategy: dp}\nresources: {nodes: 2}\ntrain:",
            "parallel.strategy=dp is one process on the GPUs of one node, but resources.nodes=2",
        ),
        (
            "train:",
            "parallel: {ddp: {static_graph: true, find_unused_parameters: true}}\ntrain:",
            "exclude each other",
        ),
        (
            "train:",
            "parallel: {strategy: fsdp}\noptim: {name: sgd, fused: true}\ntrain:",
            "optim.fused=true with optim.name=sgd and parallel.strategy=fsdp: PyTorch has no fused SGD",
        ),
        (
            "train:",
            "parallel: {ddp: {first_bucket_mb: 1, find_unused_parameters: true}}\ntrain:",
            "parallel.ddp.first_bucket_mb=1 with parallel.ddp.find_unused_parameters=true: PyTorch would",
        ),
        ("train:", "optim: {schedule: step}\ntrain:", "optim.schedule=step needs optim.step_every"),
        (
            "train:",
            "optim: {schedule: cosine, restart_factor: 2}\ntrain:",
            "optim.restart_factor=2 has no effect with optim.schedule=cosine: leave it out",
        ),
        (
            "train:",
            "precision: {on_non_finite: stop, max_skipped: 5}\ntrain:",
            "precision.max_skipped=5 has no effect with precision.on_non_finite=stop: leave it out",
        ),
        (
            "train:",
            "optim: {lr_scaling: linear}\ntrain:",
            "lr_scaling=linear needs optim.lr_base_batch",
        ),
        (
            "train:",
            "optim: {schedule: cosine, warmup_steps: 50}\ntrain:",
            "optim.warmup_steps=50 leaves none of train.steps=50",
        ),
        (
            "train:",
            "precision: {dtype: tf32}\nresources: {device: cpu}\ntrain:",
            "my.yaml:5: precision.dtype=tf32 needs a GPU, but resources.device=cpu; use fp32 or bf16",
        ),
        (
            "train:",
            "precision: {dtype: fp16, on_non_finite: stop}\ntrain:",
            "precision.on_non_finite=stop does not go with precision.dtype=fp16",
        ),
        (
            "train:",
            "optim: {schedule: cosine_restarts}\ntrain:",
            "needs optim.restart_every",
        ),
        ("train:", "precision: {dtype: bf61}\ntrain:", "did you mean 'bf16'?"),
        (
            "train:",
            "job: {stop_signal: SIGUSR1}\ntrain:",
            "job.stop_signal has no effect on this project's trainer",
        ),
        (
            "train:",
            "job: {script_step_timeout_s: 60}\ntrain:",
            "job.script_step_timeout_s has no effect on this project's trainer: it has job.step_timeout_s",
        ),
        ("train:", "train: {steps: 5", "not valid YAML"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(write, old, new, expected):
    assert expected in refusal(write(GOOD.replace(old, new, 1)))


def test_what_is_no_config_at_all(write, tmp_path):
    assert refusal("missing.yaml") == "cannot read config 'missing.yaml': No such file or directory"
    assert refusal(write("- a\n- b\n")) == "my.yaml:1: a config is a mapping of sections"
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


@pytest.mark.parametrize("text", ["1e-3", "0.001", "1.0e-3"])
def test_floats_as_people_write_them(write, text):
    assert check(load(write(GOOD + f"optim: {{lr: {text}}}\n"))).optim.lr == 1e-3
    draft = load(write(GOOD))
    draft.set("optim.lr", parse_value(text, "--set"), "--set")
    assert check(draft).optim.lr == 1e-3


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("true", True), ("null", None), ("[a, b]", ["a", "b"]), ("text", "text"), ("", None)],
)
def test_an_override_is_read_as_yaml(text, value):
    assert parse_value(text, "--set") == value


def test_an_override_that_is_no_yaml():
    with pytest.raises(ConfigError, match=r"^--set: cannot read value '\[a'$"):
        parse_value("[a", "--set")


def test_options_of_the_builder_are_filled_in_and_converted(write):
    config = check(load(write(GOOD.replace("kind: digits", "kind: digits\n  workers: '2'"))))
    assert config.data.workers == 2
    assert config.model.model_extra  # the defaults of the builder, spelt out in run.json


def test_a_batch_that_does_not_divide_is_placed(write):
    draft = load(write(GOOD.replace("local_batch_size: 16", "global_batch_size: 10\nresources: {nodes: 4}")))
    with pytest.raises(
        ConfigError, match=r"^my\.yaml:7: train\.global_batch_size=10 is not divisible by 4 ranks"
    ):
        with_batch(check(draft), draft)


def test_a_draft_needs_no_file():
    draft = Draft()
    draft.set("train.steps", 1, "here")
    draft.set("train.local_batch_size", 1, "here")
    assert check(draft).train.steps == 1
    assert "train.steps" in known_keys()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3), ("2E5", 2e5), ("-1.5e+2", -150.0), ("0.1", 0.1), (".5", 0.5), ("5", 5),
        ("1e", "1e"), ("e3", "e3"), ("2020-99-99", "2020-99-99"), ("true", True), ("null", None),
        ("[1e-3, a]", [1e-3, "a"]), (".inf", float("inf")), ("1.2.3", "1.2.3"), ("3x", "3x"),
    ],
)  # fmt: skip
def test_values_are_read_as_people_mean_them(text, value):
    read = parse_value(text, "--set")
    assert read == value
    assert type(read) is type(value)
