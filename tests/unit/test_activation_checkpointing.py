"""Activation checkpointing: the same gradients, buffers and names; fewer bytes kept for the backward pass."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from disttrain.config.parsing import Draft, check
from disttrain.data import synthetic
from disttrain.engine.memory_estimate import LiveBytes
from disttrain.errors import ConfigError
from disttrain.models import gpt, huggingface, resnet
from disttrain.transforms import transforms_of
from disttrain.transforms.activations import Recomputed, checkpoint_activations

CPU = torch.device("cpu")
LAYERS = 4
TOKENS = torch.randint(64, (2, 32), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def language():
    return synthetic.build(task="language", vocab=64, seq_len=32, samples=4, valid_samples=0)


def a_gpt():
    return gpt.build(language(), layers=LAYERS, width=32, heads=2, dropout=0.1), TOKENS


def a_resnet():
    source = synthetic.build(task="classification", shape=(3, 16, 16), classes=5, samples=4, valid_samples=0)
    return resnet.build(source, depth=18, width=8), IMAGES


def a_hugging_face_model():
    pytest.importorskip("transformers")
    config = {"n_layer": LAYERS, "n_embd": 32, "n_head": 2, "attn_pdrop": 0.0}
    return huggingface.build(language(), model_type="gpt2", config=config), TOKENS


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small lose more to threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained_twice(model: nn.Module, inputs: torch.Tensor) -> tuple[dict[str, torch.Tensor], int]:
    """Gradients and buffers after two passes, by name, and the bytes kept for the backward pass."""
    torch.manual_seed(1)
    for _ in range(2):
        with LiveBytes() as live:
            for tensor in (*model.parameters(), *model.buffers(), inputs):
                live.count_as(tensor, 0)
            outputs = model(inputs).flatten(0, -2)
            loss = F.cross_entropy(outputs, torch.zeros(len(outputs), dtype=torch.int64))
            kept = live.now
        loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return found | dict(model.named_buffers()), kept


@pytest.mark.parametrize("build", [a_gpt, a_resnet, a_hugging_face_model])
def test_gradients_and_buffers_are_bitwise_equal_and_fewer_bytes_are_kept(build):
    plain, inputs = build()
    copies = {mode: copy.deepcopy(plain) for mode in ("every-n", "selective", "full")}
    expected, kept = trained_twice(plain, inputs)
    for mode, model in copies.items():
        found, now_kept = trained_twice(checkpoint_activations(model, mode, every=2), inputs)
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert torch.equal(found[name], value), (mode, name)
        assert now_kept < 0.9 * kept, mode


def test_full_keeps_the_inputs_of_blocks_alone():
    width, tokens = 32, TOKENS.numel()
    few, many = (
        trained_twice(
            checkpoint_activations(gpt.build(language(), layers=n, width=width, heads=2), "full"), TOKENS
        )[1]
        for n in (2, 5)
    )
    assert many - few == 3 * 4 * tokens * width  # one input of a block, float32


def test_every_nth_block_is_recomputed():
    model = checkpoint_activations(a_gpt()[0], "every-n", every=3)
    assert [isinstance(block, Recomputed) for block in model.blocks] == [True, False, False, True]


def test_validation_keeps_nothing():
    model = checkpoint_activations(a_gpt()[0], "full").eval()
    with torch.inference_mode():
        assert not model(TOKENS).requires_grad


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ConfigError, match="activation_checkpointing=full: Linear has no blocks"):
        checkpoint_activations(nn.Linear(2, 2), "full")


def config_with(**memory):
    return check(Draft({"train": {"steps": 1, "local_batch_size": 1}, "memory": memory}))


def test_the_config_chooses_the_blocks():
    assert transforms_of(config_with(), CPU) == []
    (transform,) = transforms_of(config_with(activation_checkpointing="every-n", every_blocks=2), CPU)
    model = transform(a_gpt()[0])
    assert [isinstance(block, Recomputed) for block in model.blocks] == [True, False] * (LAYERS // 2)
