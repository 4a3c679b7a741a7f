"""A padded vocabulary changes neither loss nor gradients, and its rows have no gradient."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import default_collate

from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.checkpoint.share import describe
from disttrain.checkpoint.state import model_tensors, refuse_other_model
from disttrain.data import synthetic
from disttrain.data.source import Source
from disttrain.engine.objective import Task
from disttrain.errors import ConfigError
from disttrain.models import gpt
from disttrain.models.flops import flops_per_sample
from disttrain.models.gpt import GPT
from disttrain.transforms import chunk_loss
from tests.support.manifests import manifest
from tests.support.tolerance import assert_close

VOCABULARY, PADDED = 50, 96
SMALL: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2}


@pytest.fixture(scope="module")
def source() -> Source:
    return synthetic.build(task="language", vocab=VOCABULARY, seq_len=12, samples=4, valid_samples=0)


def pair(source: Source, **options: Any) -> tuple[GPT, GPT]:
    """A model, and one with the same weights and a padded vocabulary."""
    torch.manual_seed(0)
    plain = gpt.build(source, **SMALL, **options)
    padded = gpt.build(source, **SMALL, **options, vocab_multiple=48)
    with torch.no_grad():
        for own, given in zip(padded.parameters(), plain.parameters(), strict=True):
            own[: len(given)] = given
    return plain, padded


def trained(model: GPT, source: Source, chunk: int | None, dtype: torch.dtype | None) -> list[Tensor]:
    """Loss, validation loss and gradients of a batch."""
    if chunk:
        chunk_loss(model, chunk)
    task, batch = Task.of(source, loss_in_model=chunk is not None), default_collate(list(source.train))
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        loss = task.batch_loss(model, batch)
        tally = task.batch_tally(model, batch).detach().float()
    loss.backward()
    return [loss.detach(), tally, *(cast(Tensor, p.grad) for p in model.parameters())]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("chunk", [None, 10])
@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_are_those_without_padding(
    source: Source, tied: bool, chunk: int | None, dtype: torch.dtype | None
) -> None:
    plain, padded = pair(source, tie_weights=tied)
    rows = [p for p in padded.parameters() if len(p) == PADDED]
    assert len(rows) == (1 if tied else 2)
    expected = trained(plain, source, chunk, dtype)
    found = trained(padded, source, chunk, dtype)
    for own, given in zip(found, expected, strict=True):
        assert_close(own[: len(given)] if own.dim() else own, given, sums=4, dtype=dtype)
    for parameter in rows:
        assert parameter.grad is not None
        assert parameter.grad[:VOCABULARY].any()
        assert not parameter.grad[VOCABULARY:].any()


def test_padding_is_never_predicted(source: Source) -> None:
    _, padded = pair(source)
    with torch.no_grad():
        padded.head.weight[VOCABULARY:] = 1e3
        logits = padded(source.train[0][0][None])
    assert logits.shape == (1, 12, PADDED)
    assert logits[..., :VOCABULARY].isfinite().all()
    assert (logits[..., VOCABULARY:] == -torch.inf).all()


def test_the_last_stage_of_a_pipeline_leaves_the_padding_out(source: Source) -> None:
    plain, padded = pair(source, tie_weights=False)
    inputs, targets = default_collate(list(source.train))
    losses = []
    for model in (plain, padded):
        hidden = model.pipeline_stage(0, 2)(inputs)
        logits = model.pipeline_stage(1, 2)(hidden)
        losses.append(F.cross_entropy(logits.flatten(0, -2), targets.flatten()))
    assert_close(losses[1], losses[0])


def test_padding_counts_among_parameters_and_flops(source: Source) -> None:
    models = pair(source)
    parameters = [sum(p.numel() for p in model.parameters()) for model in models]
    flops = [sum(flops_per_sample(m, source.train[0][0]).values()) for m in models]
    rows = PADDED - VOCABULARY
    assert [b - a for a, b in pairwise(parameters)] == [rows * SMALL["width"]]
    assert [b - a for a, b in pairwise(flops)] == [3 * 2 * 12 * rows * SMALL["width"]]


def test_a_checkpoint_of_another_padding_is_refused(source: Source) -> None:
    plain, padded = pair(source)
    saved = {name: describe(value) for name, value in model_tensors(plain).items()}
    found = CommittedCheckpoint(Path("checkpoints/step-8"), manifest().model_copy(update={"tensors": saved}))
    wanted = {name: tuple(value.shape) for name, value in model_tensors(padded).items()}
    message = r"embed\.weight has shape \(50, 16\) in it, \(96, 16\) is needed"
    with pytest.raises(ConfigError, match=message):
        refuse_other_model(found, wanted)
