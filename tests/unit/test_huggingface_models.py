"""Models of transformers: built for the data, and checked before a submission."""

import io
import json
import sys
from dataclasses import replace

import pytest
import torch

import submit
from disttrain import __main__ as entry
from disttrain.engine import plug_in_check
from disttrain.errors import ConfigError
from disttrain.models import huggingface
from disttrain.records.dataset import DataShape

GPT2 = {"n_layer": 1, "n_embd": 16, "n_head": 2}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
LANGUAGE = DataShape(task="language", shape=(8,), classes=300)
IMAGES = DataShape(task="classification", shape=(3, 224, 224), classes=10)


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


def test_transformers_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"install disttrain\[huggingface\]"):
        huggingface.build(LANGUAGE, model_type="gpt2")


@pytest.mark.usefixtures("transformers")
def test_a_language_model_is_read_back_in_float32(tmp_path):
    model = huggingface.build(LANGUAGE, model_type="gpt2", config=GPT2)
    model.model.bfloat16().save_pretrained(tmp_path)
    again = huggingface.build(LANGUAGE, path=str(tmp_path)).eval()
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    tokens = torch.arange(8)[None]
    assert torch.equal(again(tokens), model.float().eval()(tokens))
    assert again(tokens).shape == (1, 8, 300)


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("model_type", "inputs", "options"),
    [
        ("bert", torch.zeros(4, 8, dtype=torch.int64), {"vocab_size": 50}),
        ("vit", torch.zeros(4, 1, 8, 8), {"patch_size": 4}),
    ],
)
def test_a_classifier_has_the_classes_of_the_data(model_type, inputs, options):
    shape = DataShape(task="classification", shape=tuple(inputs.shape[1:]), classes=3)
    assert huggingface.build(shape, model_type=model_type, config=TINY | options)(inputs).shape == (4, 3)


@pytest.mark.usefixtures("transformers")
def test_other_names_of_fields_and_fields_of_all_models_are_accepted():
    options = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2}
    config = huggingface.build(LANGUAGE, model_type="gpt2", config=options).model.config
    assert (config.n_layer, config.n_embd) == (3, 16)
    more = TINY | {"rope_theta": 5e5, "attn_implementation": "eager"}
    llama = huggingface.build(LANGUAGE, model_type="llama", config=more)
    assert llama.model.config._attn_implementation == "eager"


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        (LANGUAGE, {"model_type": "gpt2", "config": {"vocab_size": 299}}, "knows 299 tokens"),
        (LANGUAGE, {"model_type": "gpt2", "config": {"n_positions": 7}}, r"takes 7 tokens"),
        (IMAGES, {"model_type": "gpt2"}, "gpt2 has no head ImageClassification"),
        (IMAGES, {"model_type": "vit", "config": {"num_labels": 3}}, "has 3 classes"),
        (replace(IMAGES, task="regression"), {"model_type": "gpt2"}, "regression"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(shape, options, message):
    with pytest.raises(ConfigError, match=message):
        huggingface.build(shape, **options)


# --- before a submission ---


def checked(monkeypatch, capsys, **options):
    """Exit code and answer of the check of one config."""
    data = options.pop("data", {"kind": "text"})
    model = {"kind": "huggingface", "path": None, "model_type": None, "config": None} | options
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([{"model": model, "data": data}])))
    return plug_in_check.main(sys.stdout), capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "answer"),
    [
        ({"path": "saved", "config": {"n_layer": 3, "num_hidden_layers": 3}}, 0, ""),
        ({"model_type": "llama", "config": {"rope_theta": 5e5}}, 0, ""),
        ({"model_type": "vit", "data": {"kind": "digits"}}, 0, ""),
        ({"model_type": "gpt2", "data": {"kind": "text", "seq_len": 1024}}, 0, ""),
        ({"path": "/nowhere"}, 0, "model.path=/nowhere has no config.json on this machine"),
        ({"path": "saved", "config": {"n_hed": 4}}, 2, "model.config.n_hed is not a field of GPT2Config"),
        ({"model_type": "gpt3"}, 2, "model.model_type='gpt3' is no model type"),
        ({"model_type": "gpt2", "config": {"n_layer": "many"}}, 2, "model.model_type='gpt2' with model.c"),
        (
            {"model_type": "gpt2", "data": {"kind": "text", "seq_len": 1025}},
            2,
            "model.model_type='gpt2' takes",
        ),
        (
            {"model_type": "gpt2", "data": {"kind": "digits"}},
            2,
            "no head ImageClassification; use data.kind=text",
        ),
        ({"model_type": "vit"}, 2, "no head CausalLM; use data.kind=digits"),
        ({"model_type": "t5"}, 2, "no head CausalLM; use another model.model_type"),
    ],
    ids=str,
)
def test_the_check_before_a_submission(transformers, tmp_path, monkeypatch, capsys, options, code, answer):
    monkeypatch.chdir(tmp_path)
    transformers.AutoConfig.for_model("gpt2", n_layer=1).save_pretrained("saved")
    result, out = checked(monkeypatch, capsys, **options)
    assert (result, out.count("\n")) == (code, bool(answer))
    assert answer in out


def test_without_transformers_the_job_checks(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, out = checked(monkeypatch, capsys, model_type="gpt2", config={"n_layr": 4})
    assert (code, "transformers is not installed here" in out) == (0, True)


CONFIG = """
model: {kind: huggingface, model_type: gpt2, config: {n_layer: 1}}
data: {kind: synthetic, task: language, shape: [8], classes: 50}
train: {steps: 20, local_batch_size: 2}
resources: {device: cpu}
"""


@pytest.mark.slow  # another process imports transformers
def test_a_dry_run_checks_the_fields_of_the_model(tmp_path, capsys):
    file = tmp_path / "gpt2.yaml"
    file.write_text(CONFIG.replace("n_layer", "n_layr"))
    assert submit.main(["run", str(file), "--runs", str(tmp_path), "--cluster", "local", "--dry-run"]) == 2
    assert "did you mean 'n_layer'" in capsys.readouterr().err


@pytest.mark.usefixtures("transformers")
def test_a_rank_refuses_data_without_a_head_before_it_imports_the_trainer(tmp_path):
    file = tmp_path / "vit.yaml"
    file.write_text(CONFIG.replace("gpt2, config: {n_layer: 1}", "vit"))
    with pytest.raises(ConfigError, match="vit has no head CausalLM"):
        entry.read_config(*entry.parse_arguments(["--config", str(file)]))
