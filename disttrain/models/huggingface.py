"""Models of the package transformers, from a local folder or from a config, without downloads.

The task of the source determines the head: causal language model, sequence classification of tokens, or image
classification.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from disttrain.errors import ConfigError
from disttrain.models.huggingface_fields import (
    model_name,
    new_settings,
    require_folder,
    require_head,
    require_length,
    saved_settings,
)
from disttrain.records.dataset import DataShape


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
    model_type : a model type of transformers (`gpt2`, `llama`, `vit`, ...) with new weights. The source
        determines vocabulary, number of labels and image size. Exclusive with `path`.
    config : fields of the model's config to set (`{n_layer: 2, n_embd: 128}`).

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
    if path is not None:
        require_folder(path)
    head, argument, fields = _head(source)
    auto = getattr(transformers, head)
    name = model_name(path, model_type)
    try:
        if path is not None:
            settings = saved_settings(path, config or {})
        else:
            assert model_type is not None
            settings = new_settings(model_type, fields, config or {})
        _check_fit(settings, source, head, name)
        if path is not None:
            model = auto.from_pretrained(path, config=settings, local_files_only=True)
        else:
            model = auto.from_config(settings)
    except ConfigError:
        raise
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


def _head(source: DataShape) -> tuple[str, str, dict[str, Any]]:
    """The auto class, the name of its input, and the config fields that the source determines."""
    fields: dict[str, Any]
    if source.task == "language":
        fields = {"vocab_size": source.classes, **_NO_SPECIAL_TOKENS}
        return "AutoModelForCausalLM", "input_ids", fields
    if source.images:
        channels, height, width = source.shape
        fields = {"num_labels": source.classes, "num_channels": channels, "image_size": (height, width)}
        return "AutoModelForImageClassification", "pixel_values", fields
    if source.task == "classification" and len(source.shape) == 1:
        return "AutoModelForSequenceClassification", "input_ids", {"num_labels": source.classes}
    takes = "tokens, images or classified sequences of tokens"
    raise ConfigError(source.refusal("huggingface", takes, "other data"))


_NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Default special tokens, such as 50256 of GPT-2, may lie outside of the source's vocabulary."""


def _check_fit(settings: Any, source: DataShape, head: str, name: str) -> None:
    require_head(settings, head, f"{name} with {source.task} of inputs {source.shape}")
    vocabulary = getattr(settings, "vocab_size", None)
    if source.task == "language" and vocabulary is not None and vocabulary < source.classes:
        raise ConfigError(f"{name} knows {vocabulary} tokens, but data.kind gives {source.classes}")
    labels = getattr(settings, "num_labels", None)
    if source.task == "classification" and labels is not None and labels != source.classes:
        raise ConfigError(f"{name} has {labels} classes, but data.kind gives {source.classes}")
    if len(source.shape) == 1:
        require_length(settings, source.shape[0], name)
