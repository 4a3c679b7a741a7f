"""Configs of Hugging Face models, in which a field that the model does not have is an error.

The trainer calls the functions. Before submission, `python -m disttrain.config.huggingface_fields` checks the
options of a plan in a process of its own, because transformers imports torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from disttrain.errors import EXIT_BAD_INPUT, ConfigError, nearest


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


def _check(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options of `disttrain.models.huggingface` with which no config can be made."""
    path, model_type, config = options["path"], options["model_type"], options["config"] or {}
    try:
        if path is not None:
            saved_settings(path, config)
            return
        from transformers import CONFIG_MAPPING

        if model_type not in CONFIG_MAPPING:
            raise ConfigError(
                f"model.model_type={model_type!r} is no model type of transformers"
                f"{nearest(model_type, list(CONFIG_MAPPING.keys()))}"
            )
        new_settings(model_type, {}, config)
    except ConfigError:
        raise
    except Exception as error:  # transformers and huggingface_hub raise many types
        given = f"model.path={path!r}" if path is not None else f"model.model_type={model_type!r}"
        raise ConfigError(f"{given} with model.config={config}: {error}") from None


def main() -> int:
    """Check the options in the JSON list on standard input; print the first error."""
    try:
        for options in json.load(sys.stdin):
            _check(options)
    except ConfigError as error:
        print(error)
        return EXIT_BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
