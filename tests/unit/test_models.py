"""The built-in models: each trains; parameter counts against formulas; blocks; data that a model refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import default_collate

from disttrain.data import digits, synthetic
from disttrain.errors import ConfigError
from disttrain.models import gpt, mlp, resnet
from disttrain.models.hooks import blocks_of
from disttrain.records.dataset import DataShape
from tests.support.tolerance import assert_close


def language(vocabulary=32):
    return DataShape(task="language", shape=(24,), classes=vocabulary)


def images(*shape, classes=10):
    return DataShape(task="classification", shape=shape, classes=classes)


def a_gpt(**options):
    torch.manual_seed(0)
    return gpt.build(language(), **{"layers": 2, "width": 32, "heads": 2} | options)


def parameters(build, shape, **options):
    with torch.device("meta"):
        return sum(p.numel() for p in build(shape, **options).parameters())


@pytest.mark.parametrize(
    ("build", "data", "options"),
    [
        (gpt.build, "sentences", {"layers": 2, "width": 32, "heads": 2}),
        (gpt.build, "sentences", {"width": 32, "tie_weights": False, "dropout": 0.1}),
        (mlp.build, "waves", {"hidden": (32,)}),
        (mlp.build, "digits", {"hidden": (), "activation": "gelu"}),
        (resnet.build, "digits", {"depth": 18, "width": 8}),
        (resnet.build, "digits", {"depth": 50, "width": 8}),
    ],
)
def test_a_model_trains(build, data, options):
    sentences = synthetic.build(task="language", vocab=32, seq_len=24)
    source = {"sentences": sentences, "digits": digits.build(), "waves": synthetic.build()}[data]
    inputs, targets = default_collate([source.train[i] for i in range(16)])
    torch.manual_seed(0)
    model = build(source, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("size", gpt.SIZES)
def test_the_name_of_a_gpt_is_its_number_of_parameters(size):
    named = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
    vocabulary = 256 if named <= 30e6 else 50304
    assert parameters(gpt.build, language(vocabulary), **gpt.SIZES[size]) == pytest.approx(named, rel=0.04)


def test_gpt_is_causal_and_drops_nothing_in_a_validation():
    model = a_gpt(dropout=0.5).eval()
    tokens = torch.randint(32, (1, 24))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 32
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.isclose(before[:, 10:], after[:, 10:]).all(-1).any()


def test_gpt_depends_on_positions_but_its_attention_on_distances_alone():
    model = a_gpt(layers=1)
    nn.init.normal_(model.blocks[0].attention.qkv.weight, std=0.2)
    one, other = model(torch.tensor([[1, 2, 3, 4]])), model(torch.tensor([[2, 1, 3, 4]]))
    assert (one[0, -1] - other[0, -1]).abs().max() > 1e-4
    x = torch.randn(1, 6, 32)
    cosine, sine = gpt.rotary_angles(20, 16, torch.device("cpu"))
    here, later = (model.blocks[0].attention(x, (cosine[i : i + 6], sine[i : i + 6])) for i in (0, 14))
    assert_close(here, later, sums=6)  # product, rotation, scores, softmax, sum of values, product


def test_gpt_starts_near_the_uniform_guess_with_a_residual_stream_independent_of_depth():
    model = a_gpt(layers=8, width=64)
    loss = F.cross_entropy(model(torch.randint(32, (4, 24))).flatten(0, 1), torch.randint(32, (96,)))
    assert loss.item() == pytest.approx(torch.tensor(32.0).log().item(), rel=0.03)
    for layer in (model.blocks[0].attention.out, model.blocks[7].mlp.down):
        assert layer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)


def test_resnet_and_mlp_parameter_counts():
    assert parameters(resnet.build, images(3, 224, 224, classes=1000), depth=18) == 11_689_512  # published
    assert parameters(resnet.build, images(3, 224, 224, classes=1000), depth=50) == 25_557_032
    expected = (10 * 7 + 7) + (7 * 11 + 11) + (11 * 3 + 3)
    assert parameters(mlp.build, images(2, 5, classes=3), hidden=(7, 11)) == expected


@pytest.mark.parametrize(
    ("size", "stem"), [((8, 8), (8, 8)), ((32, 80), (32, 80)), ((64, 64), (16, 16)), ((224, 64), (56, 16))]
)
def test_the_stem_of_a_resnet_keeps_inputs_with_a_short_side(size, stem):
    model = resnet.build(images(1, *size, classes=7), width=4)
    pixels = torch.randn(2, 1, *size)
    assert model.stem(pixels).shape == (2, 4, *stem)
    assert model.blocks(model.stem(pixels)).shape[2:] == tuple((side + 7) // 8 for side in stem)
    assert model(pixels).shape == (2, 7)


def test_a_residual_block_begins_as_the_identity():
    model = resnet.build(images(1, 8, 8), width=4)
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(model.blocks[0](x), x)


@pytest.mark.parametrize(
    ("kind", "shape", "given"),
    [
        (gpt, images(3, 8, 8), "classification"),
        (mlp, language(), "language"),
        (resnet, images(64), r"\(64,\)"),
        (resnet, language(), "language"),
    ],
)
def test_data_that_a_model_cannot_take_is_refused(kind, shape, given):
    with pytest.raises(ConfigError, match=rf"model\.kind={kind.__name__.split('.')[-1]} takes .*{given}"):
        kind.build(shape)


class Wrapped(nn.Module):
    """Layers deep inside, beside a shorter list and a list without parameters."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.heads = nn.ModuleList([nn.Linear(2, 2)])
        self.inner.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.inner.drops = nn.ModuleList([nn.Dropout()] * 3)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (a_gpt(), ["blocks.0", "blocks.1"]),
        (resnet.build(images(1, 8, 8), width=2), [f"blocks.{number}" for number in range(8)]),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), ["1", "3"]),
        (Wrapped(), ["inner.layers.0", "inner.layers.1"]),
        (nn.Linear(2, 2), []),
    ],
    ids=["gpt", "resnet", "perceptron", "longest list", "none"],
)
def test_blocks_are_the_repeated_layers_with_parameters(model, names):
    assert list(blocks_of(model)) == names
