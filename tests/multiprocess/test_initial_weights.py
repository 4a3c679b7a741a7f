"""Under every strategy, ranks begin with the weights that one rank would build alone, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from disttrain.config.sections.parallel import ParallelConfig
from disttrain.models.gpt import GPT
from disttrain.models.resnet import BasicBlock, ResNet
from disttrain.parallel.base import build_strategy
from disttrain.records.dataset import DataShape
from disttrain.runtime.process_group import World
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess
WORDS = DataShape(task="language", shape=(8,), classes=64)


def tied_gpt() -> nn.Module:
    return GPT(WORDS, layers=4, width=32, heads=2, dropout=0.1)


def gpt() -> nn.Module:
    return GPT(WORDS, layers=3, width=32, heads=2, dropout=0.1, tie_weights=False)


def resnet() -> nn.Module:
    return ResNet(BasicBlock, (2, 2, 2, 2), 3, True, 10, 8)


def initialised_in_every_way() -> nn.Module:
    """Initialisers of torch.nn and torch.nn.init, products of tensors, and buffers, one under two names."""
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Embedding(9, 4, padding_idx=2), nn.LSTM(4, 4), nn.TransformerEncoderLayer(8, 2)
    )
    nn.init.trunc_normal_(model[0].weight, std=2.0)
    nn.init.orthogonal_(model[1].weight)
    model[0].to(torch.bfloat16)
    model.register_parameter("scaled", nn.Parameter(torch.randn(3, 3) * 0.1))
    model.register_buffer("mask", torch.tril(torch.ones(4, 4)).view(1, 4, 4) > 0, persistent=False)
    model[0].register_buffer("mask", model.mask, persistent=False)
    model.register_buffer("constant", torch.tensor([1.0, 2.0]))
    return model


def hugging_face() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **settings)).float()


class ReadsAValue(nn.Linear):
    """Cannot be built without memory."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.scale = self.weight.abs().max().item()


class KeepsATensor(nn.Linear):
    """Has a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.kept = torch.ones(2)


def hashes(model: nn.Module) -> dict[str, str]:
    """By name; a tied tensor under each of its names."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    return {name: digest(value) for name, value in tensors.items()}


def digest(value: Tensor) -> str:
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return hashlib.sha256(whole.detach().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def initial(world: World, name: str, build: Callable[[], nn.Module]) -> dict[str, str]:
    strategy = build_strategy(name, ParallelConfig.model_validate({"hsdp": {"shard_size": world.size}}))
    torch.manual_seed(3)
    model = strategy.build(build, world)
    torch.manual_seed(world.rank)
    model = strategy.unwrap(strategy.apply(model, strategy.mesh(world), world))
    if hasattr(model, "kept"):
        assert model.kept.tolist() == [1.0, 1.0]
    return hashes(model)


MODELS = [tied_gpt, resnet, initialised_in_every_way, hugging_face, ReadsAValue, KeepsATensor]


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_weights_are_those_of_one_rank(three_ranks: Ranks, strategy: str, build) -> None:
    torch.manual_seed(3)
    assert three_ranks.call(initial, strategy, build) == [hashes(build())] * 3


def test_stages_have_the_weights_of_the_whole_model(two_ranks: Ranks) -> None:
    torch.manual_seed(3)
    whole = hashes(gpt())
    first, last = two_ranks.call(initial, "pipeline", gpt)
    assert (first | last, first.keys() & last.keys()) == (whole, set())
