"""Chunked cross-entropy: loss and gradients of F.cross_entropy, without the logits of all tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from disttrain.data import synthetic
from disttrain.engine.memory_estimate import LiveBytes
from disttrain.engine.objective import Task
from disttrain.errors import ConfigError
from disttrain.models import gpt
from disttrain.models.chunked_cross_entropy import IGNORED, chunked_cross_entropy
from disttrain.transforms import chunk_loss
from tests.support.step_memory import allocated_peak
from tests.support.tolerance import assert_close, tolerance

TOKENS, WIDTH, CLASSES = 50, 16, 301


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(CLASSES, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.randint(CLASSES, (TOKENS,), generator=generator)
    targets[7] = IGNORED
    return hidden, weight, targets


@pytest.mark.parametrize("chunk", [1, 7, 25, TOKENS, 1000])
def test_loss_and_gradients_are_those_of_cross_entropy(chunk):
    results = []
    for compute in (
        lambda hidden, weight, targets: F.cross_entropy((hidden @ weight.T).float(), targets),
        lambda hidden, weight, targets: chunked_cross_entropy(hidden, weight, targets, chunk),
    ):
        hidden, weight, targets = problem(torch.float32)
        loss = compute(hidden, weight, targets)
        (3 * loss).backward()
        results.append((loss.detach(), hidden.grad, weight.grad))
    assert_close(*results, sums=3)  # logits, softmax, gradient


def test_autocast_computes_products_in_its_dtype():
    hidden, weight, targets = problem(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.cross_entropy(hidden @ weight.T, targets)
        found = chunked_cross_entropy(hidden, weight, targets, 8)
    assert found.item() == pytest.approx(expected.item(), rel=tolerance(dtype=torch.bfloat16))
    exact = F.cross_entropy(hidden @ weight.T, targets)
    assert found.item() != pytest.approx(exact.item(), rel=tolerance(2)), "the products are of float32"
    found.backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.float32


def test_a_part_without_gradient_gets_none():
    hidden, weight, targets = problem()
    chunked_cross_entropy(hidden, weight.detach(), targets, 8).backward()
    assert hidden.grad is not None
    assert weight.grad is None


def peak_bytes(chunk):
    hidden, weight, targets = torch.randn(512, 8), torch.randn(1000, 8), torch.randint(1000, (512,))
    hidden.requires_grad_()
    weight.requires_grad_()
    with LiveBytes() as live:
        for tensor in (hidden, weight, targets):
            live.count_as(tensor, 0)
        if chunk is None:
            F.cross_entropy(hidden @ weight.T, targets).backward()
        else:
            chunked_cross_entropy(hidden, weight, targets, chunk).backward()
    return live.peak


def test_the_peak_follows_the_chunk_and_not_the_tokens():
    logits = 4 * 512 * 1000
    assert peak_bytes(None) > 2 * logits
    assert peak_bytes(32) < logits / 4


@pytest.mark.parametrize("tied", [True, False])
def test_a_gpt_trains_and_validates_as_with_logits(tied):
    source = synthetic.build(task="language", vocab=64, seq_len=16, samples=4, valid_samples=0)
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
    assert dataclasses.astuple(Task.of(source))[2] is False


def test_the_chunk_is_an_attribute_of_the_model():
    with pytest.raises(ConfigError, match="loss_chunk_tokens=8: Linear computes no loss"):
        chunk_loss(torch.nn.Linear(2, 2), 8)


@pytest.mark.parametrize(
    ("dtype", "per_logit", "per_weight"),
    [
        (torch.float32, 4, 8),  # at the end: the gradient by weight, and its part from one chunk
        (torch.bfloat16, 6, 4),  # at the conversion of the logits
    ],
)
def test_one_chunk_of_logits_exists_at_a_time(dtype: torch.dtype, per_logit: int, per_weight: int) -> None:
    hidden = torch.randn(64, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(4096, 8, dtype=dtype, requires_grad=True)
    targets = torch.randint(4096, (64,))
    peak = allocated_peak(lambda: chunked_cross_entropy(hidden, weight, targets, chunk=16))
    assert peak == pytest.approx(per_logit * 16 * 4096 + per_weight * weight.numel(), rel=0.02)


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4, -1e4])
def test_large_logits_keep_the_precision_of_the_loss(offset: float) -> None:
    hidden, weight, targets = problem(torch.float32)
    with torch.no_grad():
        # multiples of 1/8, so that float32 holds the logits without an error
        hidden = torch.cat([(8 * hidden).round() / 8, torch.full((TOKENS, 1), offset)], 1)
        weight = torch.cat([(8 * weight).round() / 8, torch.ones(CLASSES, 1)], 1)
    expected = F.cross_entropy(hidden.double() @ weight.double().T, targets)
    found = chunked_cross_entropy(hidden, weight, targets, 7)
    assert found.item() == pytest.approx(expected.item(), rel=tolerance())


def test_padded_classes_count_neither_in_the_loss_nor_in_the_gradients() -> None:
    classes, results = CLASSES - 13, []
    for compute in (
        lambda hidden, weight, targets: F.cross_entropy(hidden @ weight[:classes].T, targets),
        lambda hidden, weight, targets: chunked_cross_entropy(hidden, weight, targets, 7, classes),
    ):
        hidden, weight, targets = problem(torch.float32)
        loss = compute(hidden, weight, targets % classes)
        loss.backward()
        results.append((loss.detach(), hidden.grad, weight.grad))
    assert_close(*results, sums=3)  # logits, softmax, gradient
    assert not results[1][2][classes:].any()


def test_a_row_without_a_loss_may_hold_infinite_logits() -> None:
    results = []
    for compute in (
        lambda hidden, weight, targets: F.cross_entropy(hidden @ weight.T, targets),
        lambda hidden, weight, targets: chunked_cross_entropy(hidden, weight, targets, 7),
    ):
        hidden, weight, targets = problem(torch.float32)
        with torch.no_grad():
            weight.abs_()
            hidden[7] = 1e38
        loss = compute(hidden, weight, targets)
        loss.backward()
        results.append((loss.detach(), hidden.grad[targets != IGNORED]))
    assert_close(*results, sums=3)  # logits, softmax, gradient
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()
