"""The blocks of a model: the repeated layers that are sharded, checkpointed and compiled one by one."""

from __future__ import annotations

from torch import nn


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of `model` by their name in it, in the order of the forward pass.

    The blocks are the members of `model.blocks`; without this attribute, the members of the longest
    `nn.ModuleList` whose members have parameters (the layers of a Hugging Face model); without such a list,
    the children of `model` that have parameters.
    """
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and all(_has_parameters(member) for member in module)
    }
    name, parent = "", model
    if isinstance(getattr(model, "blocks", None), nn.Module):
        name, parent = "blocks", model.get_submodule("blocks")
    elif lists:
        name, parent = max(lists.items(), key=lambda item: len(item[1]))
    prefix = f"{name}." if name else ""
    return {prefix + key: child for key, child in parent.named_children() if _has_parameters(child)}


def mix_in(module: nn.Module, mixin: type[nn.Module]) -> None:
    """Put `mixin` before the class of `module`, as `fully_shard` does: modules and parameters keep their
    names."""
    kind = type(module)
    mixed = type(kind.__name__, (mixin, kind), {"__module__": kind.__module__})
    module.__class__ = _MIXED.setdefault((mixin, kind), mixed)


_MIXED: dict[tuple[type, type], type[nn.Module]] = {}
"""Classes by mixin and class; with one class, equal blocks are compiled once."""


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())
