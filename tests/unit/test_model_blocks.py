"""The blocks of the built-in models and of a model without an attribute `blocks`."""

from __future__ import annotations

from torch import nn

from disttrain.models.gpt import GPT, Block
from disttrain.models.hooks import blocks_of
from disttrain.models.resnet import BasicBlock, ResNet


class Wrapped(nn.Module):
    """A model whose layers are deep inside, beside a shorter list and a list without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.heads = nn.ModuleList([nn.Linear(2, 2)])
        self.inner.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.inner.drops = nn.ModuleList([nn.Dropout()] * 3)


def test_gpt() -> None:
    model = GPT(16, 3, 8, 2, 16, 0.0, True)
    found = blocks_of(model)
    assert list(found) == ["blocks.0", "blocks.1", "blocks.2"]
    assert all(isinstance(block, Block) for block in found.values())


def test_resnet() -> None:
    found = blocks_of(ResNet(BasicBlock, (1, 1, 1, 1), 3, True, 10, 4))
    assert list(found) == [f"blocks.{number}" for number in range(4)]


def test_a_perceptron_has_its_layers_with_parameters() -> None:
    assert list(blocks_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))) == [
        "1",
        "3",
    ]


def test_the_longest_list_of_layers_counts() -> None:
    assert list(blocks_of(Wrapped())) == ["inner.layers.0", "inner.layers.1"]


def test_a_model_without_submodules_has_none() -> None:
    assert blocks_of(nn.Linear(2, 2)) == {}
