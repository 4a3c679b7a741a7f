"""Data source and model by the `kind` of their section: a module, or `package.module:callable`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from disttrain.config.options import check_options, inspected
from disttrain.config.sections.model import DataConfig, ModelConfig
from disttrain.data.source import Source, identified
from disttrain.errors import ConfigError
from disttrain.records.dataset import DatasetRecord, DataShape
from disttrain.runtime.plug_ins import load_plug_in


def build_source(config: DataConfig) -> Source:
    """The data source that `config` names. Raises `ConfigError`.

    A callable of another package returns a `Source`, or a map-style classification or regression dataset.
    """
    build, options = _loaded("data", "disttrain.data", config)
    built = build(**options)
    if isinstance(built, Dataset):
        built = _source_of(built, config.kind)
    if not isinstance(built, Source):
        raise ConfigError(
            f"data.kind={config.kind} returned {type(built).__name__}, not a Source or a Dataset"
        )
    return identified(built, config.kind, options)


def build_model(config: ModelConfig, source: DataShape) -> nn.Module:
    """The model that `config` names, for `source`. Raises `ConfigError`.

    A callable of another package receives `source` if it has a parameter of that name.
    """
    build, options = _loaded("model", "disttrain.models", config)
    if "source" in inspect.signature(build).parameters:
        options = {"source": source, **options}
    model = build(**options)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.kind={config.kind} returned {type(model).__name__}, not an nn.Module")
    return model


def _loaded(
    section: str, package: str, config: DataConfig | ModelConfig
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The callable that builds what a section names, and its options."""
    build = load_plug_in(f"{section}.kind", package, config.kind)
    return build, check_options(inspected(build), section, config.kind, config.model_extra or {})


def _source_of(dataset: Dataset[Any], kind: str) -> Source:
    """A source from a dataset: shape and task of its first sample, and `classes` (a number, or a list of
    names)."""
    try:
        len(dataset)  # type: ignore[arg-type]
        sample, target = dataset[0]
        shape, regression = tuple(sample.shape), target.is_floating_point()
    except (TypeError, ValueError, AttributeError, IndexError, NotImplementedError) as error:
        raise ConfigError(f"data.kind={kind}: needed are map-style pairs of tensors ({error})") from None
    classes: Any = target.numel() if regression else getattr(dataset, "classes", None)
    if classes is None:
        raise ConfigError(
            f"data.kind={kind}: integer targets need an attribute `classes`, or return a Source"
        )
    return Source(
        train=dataset,
        task="regression" if regression else "classification",
        shape=shape,
        classes=classes if isinstance(classes, int) else len(classes),
        record=DatasetRecord(name=kind),
    )
