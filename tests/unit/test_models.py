"""Each model trains; parameter counts against formulas; GPT is causal; misfits with the data are refused."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import default_collate

from disttrain.data import digits, synthetic
from disttrain.data.source import Arrays, Source
from disttrain.errors import ConfigError
from disttrain.models import gpt, huggingface, mlp, resnet
from disttrain.records.dataset import DatasetRecord
from tests.support.tolerance import assert_close, tolerance


def shaped(task="classification", shape=(3, 224, 224), classes=1000):
    """A source that only its shape is asked of."""
    record = DatasetRecord(name="shaped", version=None, sha256=None, train_samples=1, valid_samples=0)
    train = Arrays(torch.zeros((1, *shape), dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    return Source(train=train, valid=None, task=task, shape=shape, classes=classes, record=record)


def on_meta(build, source, **options):
    with torch.device("meta"):
        return sum(p.numel() for p in build(source, **options).parameters())


def losses_on_one_batch(model, source, steps=8, lr=1e-3):
    inputs, targets = default_collate([source.train[i] for i in range(16)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True)
def _seeded_on_one_thread():
    """Models this small lose more to threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def sentences():
    return synthetic.build(task="language", vocab=32, seq_len=24, samples=64, valid_samples=0)


@pytest.mark.parametrize(
    ("build", "data", "options"),
    [
        (gpt.build, "sentences", {"layers": 2, "width": 32, "heads": 2}),
        (
            gpt.build,
            "sentences",
            {"layers": 1, "width": 32, "heads": 4, "tie_weights": False, "dropout": 0.1},
        ),
        (mlp.build, "digits", {"hidden": (32,)}),
        (mlp.build, "waves", {"hidden": (32,)}),
        (mlp.build, "digits", {"hidden": (), "activation": "gelu"}),
        (resnet.build, "digits", {"depth": 18, "width": 8}),
        (resnet.build, "digits", {"depth": 50, "width": 8}),
    ],
)
def test_trains(build, data, options, sentences):
    source = {"sentences": lambda: sentences, "digits": digits.build, "waves": synthetic.build}[data]()
    losses = losses_on_one_batch(build(source, **options), source, lr=1e-2)
    assert losses[-1] < 0.8 * losses[0]


# --- GPT ---


@pytest.mark.parametrize("tied", [True, False])
def test_gpt_parameter_count(tied):
    layers, width, ratio, vocabulary = 3, 48, 2.5, 101
    block = 4 * width**2 + 2 * int(ratio * width) * width + 2 * width  # attention, MLP, two norms
    expected = layers * block + width + vocabulary * width * (1 if tied else 2)
    source = shaped("language", (16,), vocabulary)
    options = {"layers": layers, "width": width, "heads": 4, "mlp_ratio": ratio, "tie_weights": tied}
    assert on_meta(gpt.build, source, **options) == expected


def test_gpt_grows_past_a_billion():
    count = on_meta(gpt.build, shaped("language", (2048,), 50304), layers=24, width=2048, heads=16)
    assert count == 24 * (12 * 2048**2 + 2 * 2048) + 2048 + 50304 * 2048  # 1.31 billion


@pytest.mark.parametrize("size", gpt.SIZES)
def test_the_name_of_a_gpt_is_its_number_of_parameters(size):
    named = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
    vocabulary = 256 if named <= 30e6 else 50304
    count = on_meta(gpt.build, shaped("language", (8,), vocabulary), **gpt.SIZES[size])
    assert count == pytest.approx(named, rel=0.04)


def test_gpt_is_causal(sentences):
    model = gpt.build(sentences, layers=2, width=32, heads=2).eval()
    tokens = torch.randint(32, (1, 24))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 32
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=0, atol=0)
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_gpt_knows_positions(sentences):
    """Without them, the last of four tokens could not tell the order of those before it."""
    model = gpt.build(sentences, layers=1, width=32, heads=2).eval()
    nn.init.normal_(model.blocks[0].attention.qkv.weight, std=0.2)
    one, other = model(torch.tensor([[1, 2, 3, 4]])), model(torch.tensor([[2, 1, 3, 4]]))
    assert (one[0, -1] - other[0, -1]).abs().max() > 1e-4


def test_rotary_products_depend_on_distance_alone():
    q, k = torch.randn(8), torch.randn(8)
    rotation = gpt.rotary_angles(20, 8, torch.device("cpu"))
    turned_q, turned_k = (gpt.rotate(x.expand(20, 8), rotation) for x in (q, k))
    products = turned_q @ turned_k.T
    within = tolerance(2, magnitude=(q.norm() * k.norm()).item())  # a rotation and a product
    assert products[5, 3].item() == pytest.approx(products[15, 13].item(), abs=within)
    assert products[5, 3].item() != pytest.approx(products[5, 4].item(), abs=1e-3)
    assert_close(turned_q.norm(dim=-1), q.norm().expand(20), sums=2)


def test_attention_depends_on_distance_alone():
    attention = gpt.Attention(width=16, heads=2, dropout=0.0)
    x = torch.randn(1, 6, 16)
    cosine, sine = gpt.rotary_angles(20, 8, torch.device("cpu"))
    here, later = (attention(x, (cosine[i : i + 6], sine[i : i + 6])) for i in (0, 14))
    assert_close(here, later, sums=6)  # product, rotation, scores, softmax, sum of values, product


def test_gpt_starts_near_the_uniform_guess(sentences):
    logits = gpt.build(sentences, layers=6, width=64, heads=4)(torch.randint(32, (4, 24)))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.randint(32, (96,)))
    assert loss.item() == pytest.approx(torch.tensor(32.0).log().item(), rel=0.03)


# --- images ---


def test_resnet_parameter_counts_are_the_published_ones():
    assert on_meta(resnet.build, shaped(), depth=18) == 11_689_512
    assert on_meta(resnet.build, shaped(), depth=50) == 25_557_032


@pytest.mark.parametrize(("size", "stem_size"), [(8, 8), (32, 32), (64, 16), (224, 56)])
def test_resnet_stem_keeps_small_inputs(size, stem_size):
    model = resnet.build(shaped(shape=(1, size, size), classes=7), width=4)
    assert model.stem(torch.randn(2, 1, size, size)).shape == (2, 4, stem_size, stem_size)
    assert model.blocks(torch.randn(2, 4, stem_size, stem_size)).shape[2:] == ((stem_size + 7) // 8,) * 2
    assert model(torch.randn(2, 1, size, size)).shape == (2, 7)


def test_mlp_parameter_count():
    source = shaped(shape=(2, 5), classes=3)
    assert on_meta(mlp.build, source, hidden=(7, 11)) == (10 * 7 + 7) + (7 * 11 + 11) + (11 * 3 + 3)


def test_mlp_for_regression():
    assert mlp.build(shaped("regression", (6,), 2))(torch.randn(4, 6)).shape == (4, 2)


# --- misfits ---


@pytest.mark.parametrize(
    ("build", "source", "options", "message"),
    [
        (gpt.build, shaped(), {}, r"model\.kind=gpt takes tokens, but data\.kind gives classification"),
        (
            mlp.build,
            shaped("language", (8,)),
            {},
            r"model\.kind=mlp takes numbers or images, but data\.kind gives language",
        ),
        (resnet.build, shaped(shape=(64,)), {}, r"model\.kind=resnet .* inputs \(64,\)"),
        (resnet.build, shaped("language", (8,)), {}, r"model\.kind=resnet .* language"),
    ],
)
def test_misfit_is_one_line_naming_fields(build, source, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build(source, **options)
    assert "\n" not in str(caught.value)


# --- Hugging Face ---

TINY_GPT2 = {"n_layer": 1, "n_embd": 16, "n_head": 2}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TINY_VIT = {**TINY, "patch_size": 4}
TINY_BERT = {"vocab_size": 50, **TINY}


def test_huggingface_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ConfigError, match=r"needs the package transformers; install disttrain\[huggingface\]"
    ):
        huggingface.build(shaped("language", (8,)), model_type="gpt2")


def test_huggingface_language_model_trains_and_reloads(tmp_path, sentences):
    pytest.importorskip("transformers")
    model = huggingface.build(sentences, model_type="gpt2", config=TINY_GPT2)
    losses = losses_on_one_batch(model, sentences, lr=1e-2)
    assert losses[-1] < 0.9 * losses[0]
    model.model.bfloat16().save_pretrained(tmp_path)
    again = huggingface.build(sentences, path=str(tmp_path)).eval()
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    tokens = sentences.train[0][0][None]
    assert torch.equal(again(tokens), model.float().eval()(tokens))


def test_huggingface_image_classifier_trains():
    pytest.importorskip("transformers")
    source = digits.build()
    losses = losses_on_one_batch(
        huggingface.build(source, model_type="vit", config=TINY_VIT), source, steps=15, lr=1e-2
    )
    assert losses[-1] < 0.8 * losses[0]


def test_huggingface_sequence_classifier():
    pytest.importorskip("transformers")
    model = huggingface.build(shaped(shape=(8,), classes=3), model_type="bert", config=TINY_BERT)
    assert model(torch.randint(50, (4, 8))).shape == (4, 3)


def test_a_mistyped_field_of_a_saved_config_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.AutoConfig.for_model("gpt2", **TINY_GPT2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.config\.n_hed is .* GPT2Config; did you mean 'n_head'\?"):
        huggingface.build(shaped("language", (8,)), path=str(tmp_path), config={"n_hed": 4})


def test_other_names_of_huggingface_fields_are_accepted():
    pytest.importorskip("transformers")
    source = shaped("language", (8,), 300)
    tiny = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2}
    model = huggingface.build(source, model_type="gpt2", config=tiny)
    assert (model.model.config.n_layer, model.model.config.n_embd) == (3, 16)
    more = {"intermediate_size": 16, "rope_theta": 5e5, "attn_implementation": "eager"}
    llama = huggingface.build(source, model_type="llama", config={**tiny, **more})
    assert llama.model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (shaped("language", (8,), 300), {"model_type": "gpt3"}, r"model\.model_type='gpt3' is no model type"),
        (
            shaped("language", (8,), 300),
            {"path": "/nowhere"},
            r"model\.path='/nowhere' holds no config\.json",
        ),
        (
            shaped("language", (8,), 300),
            {"model_type": "gpt2", "config": {"vocab_size": 200}},
            r"knows 200 tokens, but data\.kind gives 300",
        ),
        (
            shaped("language", (99,), 300),
            {"model_type": "gpt2", "config": {"n_positions": 64}},
            r"takes 64 tokens, but data\.seq_len=99",
        ),
        (
            shaped(),
            {"model_type": "gpt2", "config": TINY_GPT2},
            r"gpt2 has no head ImageClassification; use data\.kind=text, tokens or ",
        ),
        (shaped("regression", (8,), 3), {"model_type": "gpt2"}, r"but data\.kind gives regression of inputs"),
        (
            shaped("language", (8,), 300),
            {"model_type": "gpt2", "config": {**TINY_GPT2, "n_layr": 3}},
            r"model\.config\.n_layr is not a field of GPT2Config; did you mean 'n_layer'\?",
        ),
    ],
)
def test_huggingface_misfits(source, options, message):
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match=message) as caught:
        huggingface.build(source, **options)
    assert "\n" not in str(caught.value)
