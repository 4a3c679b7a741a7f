"""Chunked cross-entropy: loss and gradients of F.cross_entropy, without the logits of all tokens."""

import math

import pytest
import torch
import torch.nn.functional as F

from disttrain.data import synthetic
from disttrain.engine.objective import Task
from disttrain.models import gpt
from disttrain.models.chunked_cross_entropy import IGNORED, chunked_cross_entropy
from disttrain.transforms import chunk_loss
from tests.support.step_memory import allocated_peak
from tests.support.tolerance import assert_close, tolerance

TOKENS, WIDTH, CLASSES, PADDED = 50, 16, 288, 301


def problem():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator)
    weight = torch.randn(PADDED, WIDTH, generator=generator)
    targets = torch.randint(CLASSES, (TOKENS,), generator=generator)
    targets[7] = IGNORED
    return hidden, weight, targets


def both(hidden, weight, targets, chunk=7, classes=PADDED):
    """Loss and gradients of F.cross_entropy, and of the chunked one."""
    results = []
    for compute in (
        lambda hidden, weight: F.cross_entropy(hidden @ weight[:classes].T, targets),
        lambda hidden, weight: chunked_cross_entropy(hidden, weight, targets, chunk, classes),
    ):
        leaves = [part.clone().requires_grad_() for part in (hidden, weight)]
        loss = compute(*leaves)
        (3 * loss).backward()
        results.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    return results


@pytest.mark.parametrize("classes", [CLASSES, PADDED])
@pytest.mark.parametrize("chunk", [1, 7, TOKENS, 1000])
def test_loss_and_gradients_are_those_of_cross_entropy(chunk, classes):
    expected, chunked = both(*problem(), chunk, classes)
    assert_close(chunked, expected, sums=3)  # logits, softmax, gradient
    assert not chunked[2][classes:].any()


def test_a_row_without_a_loss_may_hold_infinite_logits():
    hidden, weight, targets = problem()
    hidden[7] = 1e38
    expected, chunked = both(hidden, weight.abs(), targets)
    rows = targets != IGNORED
    assert_close([chunked[0], chunked[1][rows]], [expected[0], expected[1][rows]], sums=3)
    assert all(value.isfinite().all() for value in chunked)


@pytest.mark.parametrize("offset", [100.0, 1e4, -1e4])
def test_large_logits_keep_the_precision_of_the_loss(offset):
    hidden, weight, targets = problem()
    # multiples of 1/8, so that float32 holds the logits without an error
    hidden = torch.cat([(8 * hidden).round() / 8, torch.full((TOKENS, 1), offset)], 1)
    weight = torch.cat([(8 * weight).round() / 8, torch.ones(PADDED, 1)], 1)
    expected, _ = both(hidden.double(), weight.double(), targets)
    _, chunked = both(hidden, weight, targets)
    assert chunked[0].item() == pytest.approx(expected[0].item(), rel=tolerance())


def test_autocast_computes_products_in_its_dtype():
    with torch.autocast("cpu", torch.bfloat16):
        expected, chunked = both(*problem())
    exact, _ = both(*problem())
    assert chunked[0].item() == pytest.approx(expected[0].item(), rel=tolerance(dtype=torch.bfloat16))
    assert chunked[0].item() != pytest.approx(exact[0].item(), rel=tolerance(2))
    assert {part.dtype for part in chunked} == {torch.float32}


def test_a_part_without_gradient_gets_none():
    hidden, weight, targets = problem()
    chunked_cross_entropy(hidden.requires_grad_(), weight, targets, 8).backward()
    assert hidden.grad is not None
    assert weight.grad is None


@pytest.mark.parametrize(
    ("dtype", "per_logit", "per_weight"),
    [
        (torch.float32, 4, 8),  # at the end: the gradient by weight, and its part from one chunk
        (torch.bfloat16, 6, 4),  # at the conversion of the logits
    ],
)
def test_one_chunk_of_logits_exists_at_a_time(dtype, per_logit, per_weight):
    hidden, weight = (torch.randn(rows, 8, dtype=dtype, requires_grad=True) for rows in (64, 4096))
    targets = torch.randint(4096, (64,))
    peak = allocated_peak(lambda: chunked_cross_entropy(hidden, weight, targets, chunk=16))
    assert peak == pytest.approx(per_logit * 16 * 4096 + per_weight * weight.numel(), rel=0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_a_gpt_trains_and_validates_as_with_logits(tied):
    source = synthetic.build(task="language", vocab=64, seq_len=16)
    batch = torch.utils.data.default_collate([source.train[i] for i in range(3)])
    results = []
    for chunk in (None, 10):
        torch.manual_seed(0)
        model = gpt.build(source, layers=1, width=16, heads=2, tie_weights=tied)
        task = Task.of(source, loss_in_model=chunk is not None)
        if chunk:
            chunk_loss(model, chunk)
        loss = task.batch_loss(model, batch)
        loss.backward()
        with torch.inference_mode():
            tally = task.batch_tally(model, batch)
        results.append([loss.detach(), tally.float(), *(p.grad for p in model.parameters())])
    assert_close(*results, sums=4)  # the layer and the loss, forward and backward


def test_metrics_of_a_validation_pass():
    """A loss of 2 ln 2 nats a token is 2 bits, of 4 bytes half a bit a byte."""
    tally = torch.tensor([20 * math.log(2), 10.0, 4.0], dtype=torch.float64)
    assert Task("language", bytes_per_token=4.0).metrics(tally)[1] == {"bits_per_byte": pytest.approx(0.5)}
    assert Task("classification").metrics(tally)[1] == {"accuracy": 0.4}
    assert Task("regression").metrics(tally) == (pytest.approx(2 * math.log(2)), {})
