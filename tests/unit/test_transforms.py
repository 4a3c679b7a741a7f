"""Transforms of a model: by import path; norms, memory formats; activations recomputed or in host memory."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from disttrain.config.config_tree import Config
from disttrain.engine.memory_estimate import LiveBytes
from disttrain.errors import ConfigError
from disttrain.models import gpt, huggingface, resnet
from disttrain.models.hooks import mix_in
from disttrain.records.dataset import DataShape
from disttrain.transforms import activations, load_transform, transforms_of
from disttrain.transforms.activations import Offloaded, Recomputed, checkpoint_activations
from tests.support.tolerance import assert_close

CPU = torch.device("cpu")
WORDS = DataShape(task="language", shape=(32,), classes=64)
IMAGES = DataShape(task="classification", shape=(3, 16, 16), classes=5)
TOKENS = torch.randint(64, (2, 32), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
HERE = __name__


def a_gpt(layers=4):
    return gpt.build(WORDS, layers=layers, width=32, heads=2, dropout=0.1)


def a_resnet():
    return resnet.build(IMAGES, width=8)


def wrap(model):
    return nn.Sequential(model)


def forget(model):
    return None


not_callable = 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such", "cannot be imported"),
        ("no.such:thing", "cannot be imported"),
        ("math:no_such", "cannot be imported"),
        (f"{HERE}:not_callable", "is int, not a callable"),
        (f"{HERE}:wrap", "names or the order"),
        (f"{HERE}:forget", "returned NoneType"),
    ],
)
def test_a_transform_that_does_not_exist_or_that_checkpoints_would_not_fit_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        load_transform(name)(nn.Linear(1, 1))


def test_a_run_has_the_transforms_of_its_config_in_order():
    sections = {
        "model": {"transforms": ["group_norm"]},
        "memory": {"activation_checkpointing": "every-n", "every_blocks": 3},
        "compile": {"scope": "blocks", "backend": "eager"},
    }
    assert transforms_of(Config(), CPU) == []
    model = a_resnet()
    for transform in transforms_of(Config.model_validate(sections), CPU):
        transform(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    recomputed = [isinstance(block, Recomputed) for block in model.blocks]
    assert recomputed == [True, False, False] * 2 + [True, False]
    assert type(model.blocks[0]).forward is not Recomputed.forward, "compiled with its recomputation"
    offload = Config.model_validate({"memory": {"offload_activations": True}})
    with pytest.raises(ConfigError, match="computes on cpu"):
        transforms_of(offload, CPU)[0](model)


# --- norms and memory formats ---


def test_every_batch_norm_becomes_a_group_norm_of_its_name_and_weights():
    model = a_resnet()
    before = dict(model.named_parameters())
    changed = load_transform("group_norm")(model)
    assert {id(p) for p in changed.parameters()} == {id(p) for p in before.values()}
    assert list(dict(changed.named_parameters())) == list(before)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in changed.modules())
    assert all(block.last_norm is block.residual[-1] for block in changed.blocks)


def test_after_a_group_norm_a_sample_does_not_depend_on_its_batch():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12, affine=False))
    model = load_transform("group_norm")(layers)
    assert_close(model(PIXELS)[:1], model(PIXELS[:1]), sums=2)
    assert model[1].num_groups == 4


def test_every_activation_is_channels_last_and_numbers_stay():
    plain = a_resnet()
    model = load_transform("channels_last")(copy.deepcopy(plain))
    formats = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            module.register_forward_pre_hook(
                lambda _, inputs: formats.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
            )
    assert_close(model(PIXELS), plain(PIXELS), sums=17)  # convolutions
    assert formats == [True] * 17
    assert load_transform("channels_last")(nn.Linear(2, 2))(torch.ones(3, 2)).shape == (3, 2)


# --- activation checkpointing ---


def trained_twice(model, inputs):
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
    return {name: p.grad for name, p in model.named_parameters()} | dict(model.named_buffers()), kept


@pytest.mark.parametrize("kind", ["gpt", "resnet", "hugging face"])
def test_gradients_and_buffers_are_bitwise_equal_and_fewer_bytes_are_kept(kind):
    if kind == "hugging face":
        pytest.importorskip("transformers")
        config = {"n_layer": 4, "n_embd": 32, "n_head": 2, "attn_pdrop": 0.0}
        plain = huggingface.build(WORDS, model_type="gpt2", config=config)
    else:
        plain = a_gpt() if kind == "gpt" else a_resnet()
    inputs = PIXELS if kind == "resnet" else TOKENS
    copies = {mode: copy.deepcopy(plain) for mode in ("every-n", "selective", "full")}
    expected, kept = trained_twice(plain, inputs)
    for mode, model in copies.items():
        found, now_kept = trained_twice(checkpoint_activations(model, mode, every=2), inputs)
        assert list(found) == list(expected)
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == [], mode
        assert now_kept < 0.9 * kept, mode


def test_full_keeps_the_inputs_of_blocks_alone():
    few, many = (trained_twice(checkpoint_activations(a_gpt(n), "full"), TOKENS)[1] for n in (2, 5))
    assert many - few == 3 * 4 * TOKENS.numel() * 32  # one input of a block, float32


def test_a_recomputed_block_keeps_nothing_in_a_validation():
    model = checkpoint_activations(a_gpt(), "full").eval()
    with torch.inference_mode():
        assert not model(TOKENS).requires_grad


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ConfigError, match="activation_checkpointing=full: Linear has no blocks"):
        checkpoint_activations(nn.Linear(2, 2), "full")


# --- activation offload ---


@pytest.mark.parametrize("autocasts", [False, True])
@pytest.mark.parametrize("recomputes", [False, True])
def test_offloaded_activations_give_the_same_gradients_and_parameters_stay(
    monkeypatch, recomputes, autocasts
):
    monkeypatch.setattr(activations, "SMALLEST_BYTES", 0)
    copies, unpack = [], activations.unpack

    def recorded(packed):
        if not isinstance(packed, torch.Tensor):
            copies.append(tuple(packed[1].shape))
        return unpack(packed)

    monkeypatch.setattr(activations, "unpack", recorded)
    plain = gpt.build(WORDS, layers=3, width=16, heads=2)
    offloaded = copy.deepcopy(plain)
    if recomputes:
        checkpoint_activations(offloaded, "full")
    mix_in(offloaded, Offloaded)
    for model in (plain, offloaded):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            outputs = model(TOKENS[:, :11])
        outputs.float().logsumexp(-1).sum().backward()
    assert all(
        torch.equal(found.grad, expected.grad)
        for found, expected in zip(offloaded.parameters(), plain.parameters(), strict=True)
    )
    assert copies.count((2, 11, 16)) >= 3  # an input of each block
    shapes = {tuple(p.shape) for p in plain.parameters()}
    assert not (shapes | {shape[::-1] for shape in shapes}) & set(copies)


def test_small_activations_stay_on_the_device(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    mix_in(model, Offloaded)
    monkeypatch.setattr(torch, "empty", None)  # nothing is copied
    model(torch.randn(2, 4)).sum().backward()
