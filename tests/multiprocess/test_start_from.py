"""Starting a run from a named checkpoint: what continues, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.checkpoint.folder import CommittedCheckpoint, read_manifest
from disttrain.checkpoint.state import refuse_other_model
from disttrain.errors import ConfigError
from tests.support.ranks import Ranks
from tests.support.stopping import alone, config, samples_of, train_until

pytestmark = pytest.mark.multiprocess


def test_another_number_of_ranks_goes_on_with_the_same_samples(
    two_ranks: Ranks, three_ranks: Ranks, tmp_path: Path
) -> None:
    six = {"train": {"local_batch_size": None, "global_batch_size": 6}, "model": {"hidden": 8}}
    whole = three_ranks.call(train_until, config(ranks=3, **six), tmp_path / "whole", 0, None)
    first = three_ranks.call(train_until, config(ranks=3, **six), tmp_path / "a", 0, 5)
    start = {"start_from": str(tmp_path / "a" / "checkpoints" / "step-00000005")}
    rest = two_ranks.call(train_until, config(nodes=2, **six, checkpoint=start), tmp_path / "b", 0, None)
    assert rest[0].metrics.resumed_step == 5
    assert sorted(samples_of(first) + samples_of(rest)) == sorted(samples_of(whole))
    assert [point.step for point in rest[0].metrics.loss_history] == list(range(1, 13))
    # timings of another shape are no part of this run's figures
    assert rest[0].metrics.left_out == [(1, 7)]
    assert rest[0].metrics.measured_steps == 5


def test_the_model_alone(tmp_path: Path) -> None:
    train_until(alone(), config(), tmp_path / "a", 0, 5)
    start = {"start_from": str(tmp_path / "a" / "checkpoints" / "step-00000005"), "start_with": "model"}
    seen = train_until(alone(), config(checkpoint=start, train={"seed": 3}), tmp_path / "b", 0, None)
    assert (seen.metrics.steps, seen.metrics.resumed_step, len(seen.inputs)) == (12, None, 12)
    fresh = train_until(alone(), config(train={"seed": 3}), tmp_path / "c", 0, None)
    assert seen.parameters != fresh.parameters


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train": {"seed": 1}}, "seed was 0 and is 1"),
        ({"train": {"local_batch_size": 8}}, "global_batch_size was 4 and is"),
        ({"model": {"hidden": 8}}, "is of another model"),
        ({"train": {"steps": 4}}, "step 5, beyond the 4 steps"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict, says: str) -> None:
    train_until(alone(), config(), tmp_path / "a", 0, 5)
    start = {"start_from": str(tmp_path / "a" / "checkpoints" / "step-00000005")}
    with pytest.raises(ConfigError, match=says):
        train_until(alone(), config(checkpoint=start, **change), tmp_path / "b", 0, None)


SYNTHETIC = {"kind": "synthetic", "samples": 40, "valid_samples": 9, "shape": [8], "classes": 4}


@pytest.mark.parametrize(
    ("data", "change"),
    [
        (SYNTHETIC, {"seed": 9}),
        (SYNTHETIC, {"samples": 41}),
        ({}, {"samples": 41}),  # a source of another package, whose record has no hash
    ],
)
def test_other_data_is_refused(tmp_path: Path, data: dict, change: dict) -> None:
    train_until(alone(), config(data=data), tmp_path / "a", 0, 5)
    start = {"start_from": str(tmp_path / "a" / "checkpoints" / "step-00000005")}
    with pytest.raises(ConfigError, match="cannot be resumed: dataset_"):
        train_until(alone(), config(data={**data, **change}, checkpoint=start), tmp_path / "b", 0, None)
    again = train_until(alone(), config(data=data, checkpoint=start), tmp_path / "c", 0, None)
    assert again.metrics.resumed_step == 5


def test_a_model_that_has_less_than_the_checkpoint_is_another(tmp_path: Path) -> None:
    train_until(alone(), config(), tmp_path, 0, 5)
    path = tmp_path / "checkpoints" / "step-00000005"
    found = CommittedCheckpoint(path, read_manifest(path))
    wanted = {name: t.shape for name, t in found.manifest.tensors.items() if name.startswith("model.")}
    refuse_other_model(found, wanted)
    wanted.pop("model.layers.0.0.bias")
    with pytest.raises(ConfigError, match=r"another model: layers\.0\.0\.bias .* in it, this model has no"):
        refuse_other_model(found, wanted)
