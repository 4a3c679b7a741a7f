"""Options of Hugging Face models are checked before submission."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest

import submit
from disttrain.config import huggingface_fields

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
        "error: model.config.n_layr is not a field of GPT2Config; did you mean 'n_layer'?\n"
    )
    assert dry_run(config, "model.config.n_layer=3") == 0
    assert "huggingface" not in capsys.readouterr().err
    assert not (config.parent / "runs").exists()


def test_a_machine_without_transformers_leaves_the_check_to_the_job(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "transformers" else real(name, *rest)
    )
    assert dry_run(config, "model.config.n_layr=4") == 0
    assert (
        "transformers is not installed here, so model.config can only be checked" in capsys.readouterr().out
    )


def test_a_folder_of_another_machine_is_left_to_the_job(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(config, "model.path=/nowhere", "model.model_type=null") == 0
    assert "model.path has no config.json on this machine" in capsys.readouterr().out


def test_one_of_path_and_model_type_is_needed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(config, "model.path=/nowhere") == 2
    assert "give exactly one of them" in capsys.readouterr().err


def checked(monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    given = [{"path": None, "model_type": None, "config": None} | options]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(given)))
    return huggingface_fields.main()


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
