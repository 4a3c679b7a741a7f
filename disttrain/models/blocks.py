"""The blocks of a model: the repeated layers that are sharded, checkpointed and compiled one by one."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from disttrain.models.state_memory import ModelSize


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


def model_size(model: nn.Module) -> ModelSize:
    """Numbers of parameters of `model`; a tied parameter counts once."""
    blocks = [{id(p): p for p in block.parameters()} for block in blocks_of(model).values()]
    inside = {key for block in blocks for key in block}
    parameters = list(model.parameters())
    return ModelSize(
        parameters=_count(parameters),
        trained=_count(p for p in parameters if p.requires_grad),
        largest_block=max((_count(block.values()) for block in blocks), default=0),
        outside_blocks=_count(p for p in parameters if id(p) not in inside),
        parameter_bytes=max((p.element_size() for p in parameters), default=4),
    )


def _count(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())
