"""Configs of Hugging Face models: fields that the model has, and data that it has a head for.

The trainer calls the functions. Before submission, `python -m disttrain.models.huggingface_fields` checks the
models of a plan in a process of its own, because transformers imports torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from disttrain.config.model_combinations import DATA_OF, IMAGES, TOKENS, samples_of
from disttrain.config.sections.data import DataConfig
from disttrain.errors import EXIT_BAD_INPUT, ConfigError, nearest

_MAPPINGS = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "AutoModelForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
}
"""Classes of configs with a head, in transformers, by the auto class of the head."""
_HEAD_OF = {TOKENS: "AutoModelForCausalLM", IMAGES: "AutoModelForImageClassification"}
"""The head for samples of a built-in data source."""


def require_folder(path: str) -> None:
    """Raise `ConfigError` unless `model.path` is the folder of a model."""
    if not Path(path, "config.json").is_file():
        raise ConfigError(
            f"model.path={path!r} holds no config.json; give the local folder of a Hugging Face model"
        )


def saved_settings(path: str, options: Mapping[str, Any]) -> Any:
    """The config in the folder `path`, with `options` set. Raises `ConfigError` for an unknown field."""
    from transformers import AutoConfig

    settings, unused = AutoConfig.from_pretrained(
        path, local_files_only=True, return_unused_kwargs=True, **options
    )
    _refuse_unknown(unused, settings)
    return settings


def new_settings(model_type: str, fields: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """The config of a model type, with `fields` of the source and `options` set.

    Raises `ConfigError` for an unknown field.
    """
    from transformers import AutoConfig

    settings = AutoConfig.for_model(model_type, **{**fields, **options})
    default = AutoConfig.for_model(model_type, **fields)
    # transformers stores an option that the model type does not have as a new attribute
    _refuse_unknown(
        [name for name in options if hasattr(settings, name) and not hasattr(default, name)], default
    )
    return settings


def _refuse_unknown(names: Iterable[str], settings: Any) -> None:
    """Raise `ConfigError` for the first of `names`, which are no fields of the model's config."""
    for name in names:
        hint = nearest(name, [*settings.to_dict(), *settings.attribute_map])
        raise ConfigError(f"model.config.{name} is not a field of {type(settings).__name__}{hint}")


def require_head(settings: Any, head: str, given: str) -> None:
    """Raise `ConfigError` unless transformers has a model of auto class `head` for this config; `given` names
    model and data."""
    if _has_head(settings, head):
        return
    usable = [DATA_OF[samples] for samples, other in _HEAD_OF.items() if _has_head(settings, other)]
    raise ConfigError(
        f"{given}: {settings.model_type} has no head {head.removeprefix('AutoModelFor')}; use "
        f"{', or '.join(usable) or 'another model.model_type'}"
    )


def _has_head(settings: Any, head: str) -> bool:
    import transformers

    return type(settings) in getattr(transformers, _MAPPINGS[head])


def require_length(settings: Any, tokens: int, given: str) -> None:
    """Raise `ConfigError` for a sample of more tokens than the model has positions."""
    longest = getattr(settings, "max_position_embeddings", None)
    if longest is not None and longest < tokens:
        raise ConfigError(f"{given} takes {longest} tokens, but data.seq_len={tokens}; lower data.seq_len")


def check(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options of `disttrain.models.huggingface` with which no config can be made, or
    whose model has no head for the data or too few positions. `config` is plain data."""
    model, data = config["model"], DataConfig.model_validate(config["data"])
    settings, samples = _settings(model), samples_of(data)
    if samples not in _HEAD_OF:
        return
    name = model_name(model["path"], model["model_type"])
    require_head(settings, _HEAD_OF[samples], f"{name} with data.kind={data.kind}")
    tokens = (data.model_extra or {}).get("seq_len")
    if samples == TOKENS and tokens:
        require_length(settings, tokens, name)


def model_name(path: str | None, model_type: str | None) -> str:
    """The given one of the two keys with its value, for messages."""
    return f"model.path={path!r}" if path is not None else f"model.model_type={model_type!r}"


def _settings(options: Mapping[str, Any]) -> Any:
    path, model_type, config = options["path"], options["model_type"], options["config"] or {}
    if path is not None:
        require_folder(path)
    try:
        if path is not None:
            return saved_settings(path, config)
        from transformers import CONFIG_MAPPING

        if model_type not in CONFIG_MAPPING:
            raise ConfigError(
                f"model.model_type={model_type!r} is no model type of transformers"
                f"{nearest(model_type, list(CONFIG_MAPPING.keys()))}"
            )
        return new_settings(model_type, {}, config)
    except ConfigError:
        raise
    except Exception as error:  # transformers and huggingface_hub raise many types
        raise ConfigError(f"{model_name(path, model_type)} with model.config={config}: {error}") from None


def main() -> int:
    """Check the JSON list of configs on standard input; print the first error."""
    try:
        for config in json.load(sys.stdin):
            check(config)
    except ConfigError as error:
        print(error)
        return EXIT_BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
