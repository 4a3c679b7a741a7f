"""Compilation with `torch.compile`: of each block of the model, or of the whole model.

The class of a compiled module is replaced, as `fully_shard` does, so parameters keep their names in
checkpoints. Compilation precedes the strategy and follows activation checkpointing: the graph of a block then
contains its recomputation, and the hooks of `fully_shard` and DDP stay outside of it. Blocks of equal shapes
share one graph.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
from torch import nn

from disttrain.config.sections.compute import CompileConfig
from disttrain.errors import ConfigError
from disttrain.models.hooks import blocks_of
from disttrain.runtime import log

_GRAPHS_PER_MODULE = 8
"""PyTorch's own limit is 8 graphs in total, and code without a graph runs uncompiled: the blocks of a
ResNet-50 have 8 combinations of shapes, which validation doubles."""


def compile_model(model: nn.Module, options: CompileConfig) -> nn.Module:
    """Compile `model` in its first pass, by `options` with a scope; the model itself, changed in place.

    Raises `ConfigError` for a model without blocks if these are to be compiled.
    """
    modules = [model] if options.scope == "model" else list(blocks_of(model).values())
    if not modules:
        raise ConfigError(
            f"compile.scope=blocks: {type(model).__name__} has no blocks; use compile.scope=model"
        )
    # PyTorch splits a compiled model at DDP's buckets, so that they travel during the backward pass. Blocks
    # are split already, and the splitter refuses activation checkpointing and buckets below 1 MiB.
    torch._dynamo.config.optimize_ddp = options.scope == "model"
    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        graphs = max(_GRAPHS_PER_MODULE * len(modules), getattr(torch._dynamo.config, limit))
        setattr(torch._dynamo.config, limit, graphs)
    classes: dict[type[nn.Module], type[nn.Module]] = {}
    for module in modules:
        kind = type(module)
        if kind not in classes:
            classes[kind] = _compiled_class(kind, options)
        module.__class__ = classes[kind]
    return model


def _compiled_class(kind: type[nn.Module], options: CompileConfig) -> type[nn.Module]:
    """The class `kind` with a compiled forward pass.

    `torch.nn.Module.compile` would compile the hooks of a module too: those of `fully_shard`, which
    communicate, and those of the step clock. It also leaves the classes of `torch.nn` uncompiled.
    """

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(module, *args, **kwargs)

    compiled = torch.compile(
        call,
        backend=options.backend,
        mode=None if options.mode == "default" else options.mode,
        fullgraph=options.fullgraph,
        dynamic=options.dynamic,
    )

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return compiled(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "forward": forward})


@contextmanager
def compiling(options: CompileConfig, attention: str = "auto") -> Iterator[None]:
    """Context of the pass in which the model is compiled: log its duration. `attention`: `train.attention`.

    Raises `ConfigError` where PyTorch cannot compile the model.
    """
    began = time.monotonic()
    try:
        yield
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise ConfigError(
            f"compile.scope={options.scope}, compile.fullgraph={str(options.fullgraph).lower()}: the model "
            f"cannot be compiled ({reason}); use "
            + ("compile.fullgraph=false" if options.fullgraph else "compile.scope=none")
            # the compiler traces the model, and so raises the refusal of a call by the kernel
            + (" or train.attention=auto" if attention != "auto" else "")
        ) from error
    if options.scope != "none":
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        log.info("compiled", scope=options.scope, graphs=graphs, seconds=time.monotonic() - began)
