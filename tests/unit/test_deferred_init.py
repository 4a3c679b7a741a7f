"""Recorded constructors: the same weights as on the CPU, bit for bit, and one whole tensor at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from disttrain.errors import ConfigError
from disttrain.models.gpt import GPT
from disttrain.models.resnet import BasicBlock, ResNet
from disttrain.parallel.deferred_init import DeferredInit, NotDeferrable, record
from disttrain.parallel.fsdp import fill
from disttrain.transforms.group_norm import group_norm


def gpt() -> nn.Module:
    return GPT(64, layers=4, width=32, heads=2, hidden=128, dropout=0.1, tie_weights=True)


def resnet() -> nn.Module:
    return ResNet(BasicBlock, (2, 2, 2, 2), 3, True, 10, 8)


def initialised_in_every_way() -> nn.Module:
    """Initialisers of torch.nn and torch.nn.init, views, products of tensors, and buffers."""
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Embedding(9, 4, padding_idx=2), nn.LSTM(4, 4), nn.TransformerEncoderLayer(8, 2)
    )
    nn.init.trunc_normal_(model[0].weight, std=2.0)
    nn.init.orthogonal_(model[1].weight)
    model[0].to(torch.bfloat16)
    model.register_parameter("scaled", nn.Parameter(torch.randn(3, 3) * 0.1))
    model.register_buffer("mask", torch.tril(torch.ones(4, 4)).view(1, 4, 4), persistent=False)
    model.register_buffer("constant", torch.tensor([1.0, 2.0]))
    return model


def hugging_face() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **settings)).float()


def named(model: nn.Module) -> dict[str, Tensor]:
    """By name; a tied tensor under each of its names."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    return tensors | dict(model.named_buffers(remove_duplicate=False))


@pytest.mark.parametrize("build", [gpt, resnet, initialised_in_every_way, hugging_face])
def test_replayed_weights_are_those_of_a_model_on_the_cpu(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    expected = named(build())
    torch.manual_seed(3)
    model, initial = record(build)
    assert {tensor.device.type for tensor in named(model).values()} == {"meta"}
    assert {name: tensor.shape for name, tensor in named(model).items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    before = torch.get_rng_state()
    found, peak = replayed(initial)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    assert peak <= 2 * max(tensor.nbytes for tensor in expected.values())
    assert not initial._real


def replayed(initial: DeferredInit) -> tuple[dict[str, Tensor], int]:
    """The values, and the largest sum of bytes that a replay held."""
    found: dict[str, Tensor] = {}
    held: list[int] = []

    def fill(name: str, value: Tensor) -> None:
        found[name] = value.clone()
        held.append(sum(storage.nbytes() for storage in initial._real.values()))

    initial.replay(fill)
    return found, max(held)


def test_tied_parameters_stay_tied() -> None:
    model, _ = record(gpt)
    assert isinstance(model, GPT)
    assert model.head.weight is model.embed.weight


class ReadsAValue(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale = self.weight.abs().max().item()


class KeepsATensor(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.mask = torch.ones(2)


@pytest.mark.parametrize(
    ("build", "problem"), [(ReadsAValue, "reads a value"), (KeepsATensor, "mask is a tensor")]
)
def test_a_constructor_that_cannot_be_replayed_is_refused(
    build: Callable[[], nn.Module], problem: str
) -> None:
    with pytest.raises(NotDeferrable, match=problem):
        record(build)


def test_a_transform_may_remove_tensors_and_not_add_any() -> None:
    torch.manual_seed(0)
    whole = group_norm(resnet())
    torch.manual_seed(0)
    model, initial = record(resnet)
    model = group_norm(model)
    model.to_empty(device="cpu")
    fill(model, initial)
    assert all(torch.equal(value, named(model)[name]) for name, value in named(whole).items())
    model.register_parameter("added", nn.Parameter(torch.ones(1)))
    with pytest.raises(ConfigError, match=r"model.transforms: added is not in .*meta_device=false"):
        fill(model, initial)
