"""Options of Hugging Face models are checked before submission."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import submit
from disttrain import __main__ as entry
from disttrain.config.parsing import Draft
from disttrain.config.parsing import check as check_config
from disttrain.engine import plug_in_check
from disttrain.errors import ConfigError
from disttrain.models import huggingface

CONFIG = """
model: {kind: huggingface, model_type: gpt2, config: {n_layer: 1, n_embd: 8, n_head: 2}}
data: {kind: synthetic, task: language, shape: [8], classes: 50}
train: {steps: 20, local_batch_size: 2}
resources: {device: cpu}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "gpt2.yaml"
    file.write_text(CONFIG)
    return file


def dry_run(config: Path, *sets: str) -> int:
    runs = ["--runs", str(config.parent / "runs"), "--cluster", "local", "--dry-run"]
    return submit.main(["run", str(config), *runs, *(["--set", *sets] if sets else [])])


@pytest.mark.slow  # two other processes import transformers
def test_a_field_that_the_model_does_not_have_is_refused_in_a_dry_run(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(config, "model.config.n_layr=3") == 2
    assert capsys.readouterr().err == (
        "error: --set: model.config.n_layr is not a field of GPT2Config; did you mean 'n_layer'?\n"
    )
    assert dry_run(config, "model.config.n_layer=3") == 0
    assert "huggingface" not in capsys.readouterr().err
    assert not (config.parent / "runs").exists()


def test_what_this_machine_lacks_is_left_to_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(monkeypatch, path="/nowhere") == 0
    assert "model.path=/nowhere has no config.json on this machine" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert checked(monkeypatch, model_type="gpt2", config={"n_layr": 4}) == 0
    assert "transformers is not installed here, so only the job can check" in capsys.readouterr().out


def test_one_of_path_and_model_type_is_needed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(config, "model.path=/nowhere") == 2
    assert "give exactly one of" in capsys.readouterr().err


def checked(monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    model = {"path": None, "model_type": None, "config": None} | options
    given = {"model": {"kind": "huggingface", **model}, "data": {"kind": "text"}}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([given])))
    return plug_in_check.main(sys.stdout)


def test_the_check_uses_the_config_classes_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.AutoConfig.for_model("gpt2", n_layer=1).save_pretrained(tmp_path)
    assert checked(monkeypatch, path=str(tmp_path), config={"n_layer": 3, "num_hidden_layers": 3}) == 0
    assert checked(monkeypatch, model_type="llama", config={"rope_theta": 5e5}) == 0
    assert capsys.readouterr().out == ""
    refused: list[tuple[dict[str, Any], str]] = [
        ({"path": str(tmp_path), "config": {"n_hed": 4}}, "model.config.n_hed is not a field of GPT2Config"),
        ({"model_type": "gpt3"}, "model.model_type='gpt3' is no model type of transformers; did you mean"),
        ({"model_type": "gpt2", "config": {"n_layer": "many"}}, "model.model_type='gpt2' with model.config="),
    ]
    for options, message in refused:
        assert checked(monkeypatch, **options) == 2
        out = capsys.readouterr().out
        assert out.startswith(message)
        assert out.count("\n") == 1


TEXT = "data.kind=text, tokens or synthetic with data.task=language"
IMAGES = "data.kind=digits, images or synthetic with a data.shape of three"
CLASSES, OTHER = "ImageClassification", "another model.model_type"
TOO_LONG = "takes 1024 tokens, but data.seq_len=4096; lower data.seq_len"


@pytest.mark.parametrize(
    ("model_type", "data", "message"),
    [
        (
            "gpt2",
            {"kind": "digits"},
            f"with data.kind=digits: gpt2 has no head {CLASSES}; use {TEXT}",
        ),
        ("vit", {"kind": "text"}, f"with data.kind=text: vit has no head CausalLM; use {IMAGES}"),
        (
            "t5",
            {"kind": "text"},
            f"with data.kind=text: t5 has no head CausalLM; use {OTHER}",
        ),
        (
            "gpt2",
            {"kind": "text", "seq_len": 4096},
            TOO_LONG,
        ),
        ("gpt2", {"kind": "text", "seq_len": 1024}, None),
        ("vit", {"kind": "digits"}, None),
    ],
)
def test_data_without_a_head_or_with_too_many_tokens_are_refused(
    model_type: str, data: dict[str, Any], message: str | None
) -> None:
    pytest.importorskip("transformers")
    config = check_config(
        Draft(
            {
                "model": {"kind": "huggingface", "model_type": model_type},
                "data": data,
                "train": {"steps": 1, "local_batch_size": 1},
            }
        )
    )
    if message is None:
        huggingface.check(config.as_dict())
        return
    with pytest.raises(ConfigError) as refused:
        huggingface.check(config.as_dict())
    assert str(refused.value) == f"model.model_type={model_type!r} {message}"


def test_a_rank_refuses_data_without_a_head_before_it_imports_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    file = tmp_path / "gpt2.yaml"
    file.write_text(CONFIG.replace("gpt2, config: {n_layer: 1, n_embd: 8, n_head: 2}", "vit"))
    arguments, flags = entry.parse_arguments(["--config", str(file)])
    with pytest.raises(ConfigError, match="vit has no head CausalLM"):
        entry.read_config(arguments, flags)
