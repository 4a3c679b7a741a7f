"""A padded vocabulary changes neither loss nor gradients, and its rows have no gradient."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import default_collate

from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.checkpoint.share import describe
from disttrain.checkpoint.state import model_tensors, refuse_other_model
from disttrain.data import synthetic
from disttrain.engine.objective import Task
from disttrain.errors import ConfigError
from disttrain.models import gpt
from disttrain.models.flops import flops_per_sample
from disttrain.transforms import chunk_loss
from tests.support.manifests import manifest
from tests.support.tolerance import assert_close

VOCABULARY, PADDED, WIDTH = 50, 96, 16
SOURCE = synthetic.build(task="language", vocab=VOCABULARY, seq_len=12, samples=4, valid_samples=0)
BATCH = default_collate(list(SOURCE.train))


def pair(**options):
    """A model, and one with the same weights and a padded vocabulary."""
    options = {"layers": 2, "width": WIDTH, "heads": 2, **options}
    torch.manual_seed(0)
    plain, padded = (gpt.build(SOURCE, **options, **padding) for padding in ({}, {"vocab_multiple": 48}))
    with torch.no_grad():
        for own, given in zip(padded.parameters(), plain.parameters(), strict=True):
            own[: len(given)] = given
    return plain, padded


@pytest.mark.parametrize(
    ("tied", "chunk", "dtype"), [(True, None, None), (False, 10, None), (True, 10, torch.bfloat16)]
)
def test_loss_and_gradients_are_those_without_padding(tied, chunk, dtype):
    models, results = pair(tie_weights=tied), []
    for model in models:
        if chunk:
            chunk_loss(model, chunk)
        task = Task.of(SOURCE, loss_in_model=chunk is not None)
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = task.batch_loss(model, BATCH)
            tally = task.batch_tally(model, BATCH).detach().float()
        loss.backward()
        results.append([loss.detach(), tally, *(p.grad for p in model.parameters())])
    for own, given in zip(*reversed(results), strict=True):
        assert_close(own[: len(given)] if own.dim() else own, given, sums=4, dtype=dtype)
    rows = [p.grad for p in models[1].parameters() if len(p) == PADDED]
    assert len(rows) == (1 if tied else 2)
    assert all(grad[:VOCABULARY].any() and not grad[VOCABULARY:].any() for grad in rows)


def test_padding_is_never_predicted():
    _, padded = pair()
    with torch.no_grad():
        padded.head.weight[VOCABULARY:] = 1e3
        logits = padded(BATCH[0])
    assert logits[..., :VOCABULARY].isfinite().all()
    assert (logits[..., VOCABULARY:] == -torch.inf).all()


def test_the_last_stage_of_a_pipeline_leaves_the_padding_out():
    losses = []
    for model in pair(tie_weights=False):
        logits = model.pipeline_stage(1, 2)(model.pipeline_stage(0, 2)(BATCH[0]))
        losses.append(F.cross_entropy(logits.flatten(0, -2), BATCH[1].flatten()))
    assert_close(losses[1], losses[0])


def test_padding_counts_among_flops():
    plain, padded = (sum(flops_per_sample(model, SOURCE.train[0][0]).values()) for model in pair())
    assert padded - plain == 3 * 2 * 12 * (PADDED - VOCABULARY) * WIDTH


def test_a_checkpoint_of_another_padding_is_refused():
    plain, padded = map(model_tensors, pair())
    saved = {"tensors": {name: describe(value) for name, value in plain.items()}}
    found = CommittedCheckpoint(Path("checkpoints/step-8"), manifest().model_copy(update=saved))
    with pytest.raises(ConfigError, match=r"embed\.weight has shape \(50, 16\) in it, \(96, 16\) is needed"):
        refuse_other_model(found, {name: tuple(value.shape) for name, value in padded.items()})
