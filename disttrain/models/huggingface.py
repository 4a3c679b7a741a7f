"""Models of the package transformers, from a local folder or from a config, without downloads.

The task of the source determines the head: causal language model, sequence classification of tokens, or image
classification. `check` is for configs before a submission.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from disttrain.config.refusals import data_of, samples_of
from disttrain.config.sections.model import DataConfig
from disttrain.errors import ConfigError, nearest
from disttrain.records.dataset import DataShape

_HEAD_OF = {"tokens": "AutoModelForCausalLM", "images": "AutoModelForImageClassification"}
"""The head for samples of a built-in data source."""
TAKES = tuple(_HEAD_OF)
_NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Default special tokens, such as 50256 of GPT-2, may lie outside of the source's vocabulary."""


def build(
    source: DataShape,
    *,
    path: str | None = None,
    model_type: str | None = None,
    config: dict[str, Any] | None = None,
) -> Logits:
    """A Hugging Face model in float32 with the head for the source.

    Parameters
    ----------
    path : folder with config and weights, as written by `save_pretrained`.
    model_type : type of transformers (`gpt2`, `llama`, `vit`, ...) with new weights, in place of `path`.
    config : fields of the model's config to set: `{n_layer: 2}`.

    Raises
    ------
    ConfigError : transformers is not installed, or folder or config give no model, or none for the source, or
        `config` has a field that the model does not have.
    """
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            "model.kind=huggingface needs the package transformers; install disttrain[huggingface]"
        ) from None
    head, argument, fields = _head(source)
    settings = _settings(path, model_type, fields, config or {})
    name = _name(path, model_type)
    _require_head(settings, head, f"{name} with {source.task} of inputs {source.shape}")
    vocabulary = getattr(settings, "vocab_size", None)
    if source.task == "language" and vocabulary is not None and vocabulary < source.classes:
        raise ConfigError(f"{name} knows {vocabulary} tokens, but data.kind gives {source.classes}")
    labels = getattr(settings, "num_labels", None)
    if source.task == "classification" and labels is not None and labels != source.classes:
        raise ConfigError(f"{name} has {labels} classes, but data.kind gives {source.classes}")
    if len(source.shape) == 1:
        _require_length(settings, source.shape[0], name)
    auto = getattr(transformers, head)
    try:
        if path is not None:
            model = auto.from_pretrained(path, config=settings, local_files_only=True)
        else:
            model = auto.from_config(settings)
    except (ValueError, TypeError, OSError, KeyError, AttributeError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"{name} cannot be made a {head.removeprefix('AutoModelFor')} model: {error}"
        ) from None
    model.config.use_cache = False  # the cache of keys and values serves generation only
    return Logits(model.float(), argument)


class Logits(nn.Module):
    """Wraps a Hugging Face model: one input tensor, and only the logits as output."""

    def __init__(self, model: nn.Module, argument: str) -> None:
        super().__init__()
        self.model = model
        self.argument = argument

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(**{self.argument: inputs}).logits


def check(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options with which no config of a model can be made, or whose model has no head
    for the data or too few positions. `config` is plain data."""
    model, data = config["model"], DataConfig.model_validate(config["data"])
    path, model_type = model["path"], model["model_type"]
    settings, samples = _settings(path, model_type, {}, model["config"] or {}), samples_of(data)
    if samples not in _HEAD_OF:
        return
    name, tokens = _name(path, model_type), (data.model_extra or {}).get("seq_len")
    _require_head(settings, _HEAD_OF[samples], f"{name} with data.kind={data.kind}")
    if samples == "tokens" and tokens:
        _require_length(settings, tokens, name)


def _name(path: str | None, model_type: str | None) -> str:
    """The given one of the two keys with its value, for messages."""
    return f"model.path={path!r}" if path is not None else f"model.model_type={model_type!r}"


def _head(source: DataShape) -> tuple[str, str, dict[str, Any]]:
    """The auto class, the name of its input, and the config fields that the source determines."""
    if source.samples == "tokens":
        return _HEAD_OF["tokens"], "input_ids", {"vocab_size": source.classes, **_NO_SPECIAL_TOKENS}
    if source.task == "classification" and len(source.shape) == 1:
        return "AutoModelForSequenceClassification", "input_ids", {"num_labels": source.classes}
    source.require("huggingface", (*TAKES, "classified sequences of tokens"))
    channels, *sizes = source.shape
    fields = {"num_labels": source.classes, "num_channels": channels, "image_size": tuple(sizes)}
    return _HEAD_OF["images"], "pixel_values", fields


def _settings(
    path: str | None, model_type: str | None, fields: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """The config of the model in the folder `path`, or of a model type with `fields` of the source; with
    `options` set. Raises `ConfigError`, also for an unknown field."""
    from transformers import CONFIG_MAPPING, AutoConfig

    if path is not None and not Path(path, "config.json").is_file():
        raise ConfigError(
            f"model.path={path!r} holds no config.json; give the local folder of a Hugging Face model"
        )
    if path is None and model_type not in CONFIG_MAPPING:
        raise ConfigError(
            f"model.model_type={model_type!r} is no model type of transformers"
            f"{nearest(str(model_type), list(CONFIG_MAPPING.keys()))}"
        )
    try:
        if path is not None:
            settings, unknown = AutoConfig.from_pretrained(
                path, local_files_only=True, return_unused_kwargs=True, **options
            )
            known = settings
        else:
            settings = AutoConfig.for_model(str(model_type), **{**fields, **options})
            known = AutoConfig.for_model(str(model_type), **fields)
            # transformers stores an option that the model type does not have as a new attribute
            unknown = [name for name in options if hasattr(settings, name) and not hasattr(known, name)]
    except Exception as error:  # transformers and huggingface_hub raise many types
        config = dict(options)
        raise ConfigError(f"{_name(path, model_type)} with model.config={config}: {error}") from None
    for name in unknown:
        hint = nearest(name, [*known.to_dict(), *known.attribute_map])
        raise ConfigError(f"model.config.{name} is not a field of {type(known).__name__}{hint}")
    return settings


def _require_head(settings: Any, head: str, name: str) -> None:
    """Raise `ConfigError` unless transformers has a model of auto class `head` for this config; `name` names
    model and data."""
    import transformers

    def exists(head: str) -> bool:
        return type(settings) in getattr(transformers, head)._model_mapping

    if exists(head):
        return
    usable = [samples for samples, other in _HEAD_OF.items() if exists(other)]
    raise ConfigError(
        f"{name}: {settings.model_type} has no head {head.removeprefix('AutoModelFor')}; use "
        f"{data_of(usable) if usable else 'another model.model_type'}"
    )


def _require_length(settings: Any, tokens: int, name: str) -> None:
    """Raise `ConfigError` for a sample of more tokens than the model has positions."""
    longest = getattr(settings, "max_position_embeddings", None)
    if longest is not None and longest < tokens:
        raise ConfigError(f"{name} takes {longest} tokens, but data.seq_len={tokens}; lower data.seq_len")
