"""Checkpoints of real training: damage, fences, retention, other world sizes, and safe to load."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint import storage
from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.checkpoint.saver import CheckpointSaver, _delete_old
from disttrain.config.config_tree import Config
from disttrain.engine.step import Stepper
from disttrain.errors import ConfigError, Superseded
from disttrain.records.json_files import read_json, read_jsonl, write_json
from disttrain.records.metrics import EvalPoint, Metrics
from disttrain.records.run_directory import RunDir
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from jobs.status.outcome import warning
from tests.support.damaged_checkpoint import damage
from tests.support.ranks import RankFailed, Ranks
from tests.support.stopping import Seen, alone, config, train_until

pytestmark = pytest.mark.multiprocess


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "checkpoints"))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_regular_ones_are_kept_and_the_end_is_one(tmp_path: Path, asynchronous: bool) -> None:
    made = config(checkpoint={"every_steps": 3, "keep": 2, "asynchronous": asynchronous}, train={"steps": 11})
    train_until(alone(), made, tmp_path, 0, None)
    # the last step is the validated one, and so the best
    assert names(tmp_path) == ["step-00000009", "step-00000011"]
    assert folders.read_manifest(tmp_path / "checkpoints" / "step-00000011").valid_loss is not None


def test_the_best_validated_one_is_taken_and_kept(tmp_path: Path) -> None:
    losses = {3: 3.0, 6: 1.0, 9: 2.0, 12: 2.5}

    def validate(_self: Stepper, _dataset: object, step: int, *_: object) -> EvalPoint:
        return EvalPoint(step=step, loss=losses[step], metrics={}, samples=1, elapsed_s=0.0)

    made = config(checkpoint={"every_steps": 100, "keep": 1}, train={"eval_every": 3})
    with patch.object(Stepper, "validate", validate):
        train_until(alone(), made, tmp_path, 0, 8)
        assert names(tmp_path) == ["step-00000006", "step-00000008"]
        train_until(alone(), made, tmp_path, 1, None)  # which knows what was best before it began
    assert names(tmp_path) == ["step-00000006", "step-00000012"]


def test_ranks_agree_on_what_was_best_before_they_began(three_ranks: Ranks, tmp_path: Path) -> None:
    """Only rank 0 has the history of earlier attempts: one rank alone would meet the others for nothing."""
    losses = {3: 1.0, 6: 2.0, 9: 3.0, 12: 0.5}
    made = config(
        ranks=3,
        checkpoint={"every_steps": 100, "keep": 1},
        train={"eval_every": 3},
        job={"stop_check_s": 1000},  # no meeting but for a checkpoint
    )
    at_every_step = made.model_copy(update={"job": made.job.model_copy(update={"stop_check_s": 0.0})})
    three_ranks.call(validating, losses, at_every_step, tmp_path, 0, 4)
    seen = three_ranks.call(validating, losses, made, tmp_path, 1, None)
    assert [rank.metrics.steps for rank in seen] == [12, 12, 12]
    assert names(tmp_path) == ["step-00000012"]


def validating(
    world: World, losses: dict[int, float], made: Config, folder: Path, attempt: int, stop: int | None
) -> Seen:
    def validate(_self: Stepper, _dataset: object, step: int, *_: object) -> EvalPoint:
        return EvalPoint(step=step, loss=losses[step], metrics={}, samples=1, elapsed_s=0.0)

    with patch.object(Stepper, "validate", validate):
        return train_until(world, made, folder, attempt, stop)


def test_by_the_clock(tmp_path: Path) -> None:
    made = config(checkpoint={"every_s": 1e-9, "keep": 100}, train={"steps": 4})
    train_until(alone(), made, tmp_path, 0, None)
    assert names(tmp_path) == [f"step-{step:08d}" for step in (1, 2, 3, 4)]


def test_its_time_is_in_the_step_and_in_its_own_class(tmp_path: Path) -> None:
    made = config(checkpoint={"every_steps": 4, "asynchronous": False})
    train_until(alone(), made, tmp_path, 0, None)
    steps = {record["step"]: record for record in read_jsonl(RunDir(tmp_path).attempt(0).steps(0))}
    waited = {step for step, record in steps.items() if record["checkpoint_s"] > 0}
    assert {5, 9} <= waited  # the state after 4 and 8 was saved before the next step
    assert len(waited) <= 3  # the ranks agree once on the read-back of the first one


@pytest.mark.parametrize("how", ["bit", "truncated", "manifest"])
def test_a_damaged_one_is_set_aside_and_the_one_before_taken(
    three_ranks: Ranks, tmp_path: Path, how: str
) -> None:
    made = config(ranks=3, checkpoint={"every_steps": 4, "keep": 9})
    three_ranks.call(train_until, made, tmp_path, 0, 6)
    assert names(tmp_path) == ["step-00000004", "step-00000006"]
    damaged = tmp_path / "checkpoints" / "step-00000006"
    damage(damaged, how)
    answers = three_ranks.call(errors_told, made, tmp_path, 1)
    seen = [rank for rank, _ in answers]
    (told,) = [call for _, calls in answers for call in calls]
    assert told[0] == "damaged checkpoint in quarantine"
    assert (told[1]["path"], told[1]["quarantine"]) == (str(damaged), "step-00000006.damaged")
    reasons = {"bit": "checksum", "truncated": "bytes", "manifest": "manifest"}
    assert reasons[how] in told[1]["problem"]
    assert [rank.metrics.resumed_step for rank in seen] == [4, 4, 4]
    assert "step-00000006.damaged" in names(tmp_path)
    whole = three_ranks.call(train_until, made, tmp_path / "whole", 0, None)
    assert [rank.parameters for rank in seen] == [rank.parameters for rank in whole]
    assert seen[0].metrics.loss_history == whole[0].metrics.loss_history


def test_an_intact_one_that_cannot_be_loaded_is_refused_and_nothing_moved(
    three_ranks: Ranks, tmp_path: Path
) -> None:
    made = config(ranks=3, checkpoint={"every_steps": 4, "keep": 9})
    three_ranks.call(train_until, made, tmp_path, 0, 6)
    path = tmp_path / "checkpoints" / "step-00000006"
    write_json(path / "manifest.json", read_json(path / "manifest.json") | {"torch": "99.0"})
    damage(path, "no tensor")
    with pytest.raises(RankFailed, match=r"ConfigError.*is intact.*cannot read it.*PyTorch 99\.0 wrote it"):
        three_ranks.call(train_until, made, tmp_path, 1, None)
    assert names(tmp_path) == ["step-00000004", "step-00000006"]


def test_metadata_of_dcp_are_not_read(tmp_path: Path) -> None:
    """Its reader executes code in them."""
    train_until(alone(), config(), tmp_path, 0, 6)
    path = tmp_path / "checkpoints" / "step-00000006"
    damage(path, "foreign code")
    assert train_until(alone(), config(), tmp_path, 1, None).metrics.resumed_step == 6
    assert not (path / "executed").exists()


def test_a_run_whose_checkpoints_are_all_damaged_never_starts_at_zero(
    three_ranks: Ranks, tmp_path: Path
) -> None:
    made = config(ranks=3)
    three_ranks.call(train_until, made, tmp_path, 0, 5)
    damage(tmp_path / "checkpoints" / "step-00000005", "bit")
    for attempt in (1, 2):  # the second one finds nothing but the quarantine of the first
        with pytest.raises(RankFailed, match=r"ConfigError.*all checkpoints.*damaged.*--from-scratch"):
            three_ranks.call(train_until, made, tmp_path, attempt, None)
        assert names(tmp_path) == ["step-00000005.damaged"]
    (tmp_path / "checkpoints").rename(tmp_path / "checkpoints.aside")
    assert three_ranks.call(train_until, made, tmp_path, 3, None)[0].metrics.resumed_step is None


def test_one_that_cannot_be_read_back_is_reported_while_training_goes_on(
    three_ranks: Ranks, tmp_path: Path
) -> None:
    """The first checkpoint of an attempt cannot be read, the second can."""
    made = config(ranks=3, checkpoint={"every_steps": 4, "keep": 1})
    three_ranks.call(train_until, made, tmp_path, 0, 2)
    seen, calls, states = zip(*three_ranks.call(with_a_blind_reader, made, tmp_path, 4), strict=True)
    (told,) = [call for each in calls for call in each]
    assert told[0] == "checkpoint cannot be restored"
    assert (told[1]["step"], "rank 1" in told[1]["problem"]) == (4, True)
    assert "the checkpoint of step 4 cannot be restored" in states[0][8]
    assert states[0][12] is None  # that of step 8 was read back
    assert seen[0].metrics.status == "completed"
    assert (seen[0].metrics.checkpoints_failed, seen[0].metrics.checkpoint_step) == (1, 12)
    assert states[0]["kept"] == ["step-00000002", "step-00000004"]
    assert names(tmp_path) == ["step-00000012"]


def with_a_blind_reader(
    world: World, made: Config, folder: Path, blind: int
) -> tuple[Seen, list[tuple[str, dict[str, object]]], dict[object, object]]:
    """Rank 1 cannot load the checkpoint of step `blind`. The result has the warning that `status` reads as
    each later checkpoint begins, and the checkpoints there are after the failure."""
    states: dict[object, object] = {}
    original, save = storage.verify_content, CheckpointSaver.save

    def verify_content(found: CommittedCheckpoint, files: Collection[str]) -> None:
        if world.rank == 1 and found.path.name == f"step-{blind:08d}":
            raise ValueError("no such class")
        original(found, files)

    def saved(self: CheckpointSaver, step: int, valid_loss: float | None) -> None:
        self.commit()
        self.commit()  # ends the read-back of the checkpoint before, which the first may have begun
        states[step] = warning(RunDir(folder), 1)
        if step == 2 * blind:
            states["kept"] = names(folder)
        save(self, step, valid_loss)

    with (
        patch.object(storage, "verify_content", verify_content),
        patch.object(CheckpointSaver, "save", saved),
    ):
        seen, calls = errors_told(world, made, folder, 1)
    return seen, calls, states


def errors_told(
    world: World, made: Config, folder: Path, attempt: int
) -> tuple[Seen, list[tuple[str, dict[str, object]]]]:
    """What a rank saw of an attempt, and the errors it put into its log: message and fields."""
    with patch.object(log, "error", wraps=log.error) as said:
        seen = train_until(world, made, folder, attempt, None)
    return seen, [(call.args[0], dict(call.kwargs)) for call in said.call_args_list]


def test_checkpoints_of_another_config_are_refused_not_taken(tmp_path: Path) -> None:
    train_until(alone(), config(), tmp_path, 0, 5)
    with pytest.raises(ConfigError, match="another config"):
        train_until(alone(), config(train={"steps": 99}), tmp_path, 1, None)
    assert names(tmp_path) == ["step-00000005"]


@pytest.mark.parametrize("path", ["missing", "damaged"])
def test_a_named_one_has_to_be_good(three_ranks: Ranks, tmp_path: Path, path: str) -> None:
    named = tmp_path / "a" / "checkpoints" / "step-00000005"
    if path == "damaged":
        train_until(alone(), config(), tmp_path / "a", 0, 5)
        damage(named, "bit")
    made = config(ranks=3, checkpoint={"start_from": str(named)})
    with pytest.raises(RankFailed, match=r"checkpoint\.start_from="):
        three_ranks.call(train_until, made, tmp_path / "b", 0, None)
    assert not (named.parent / "step-00000005.damaged").exists()  # it is somebody else's


def test_what_one_node_alone_cannot_see_is_not_given_up(three_ranks: Ranks, tmp_path: Path) -> None:
    made = config(ranks=3)
    three_ranks.call(train_until, made, tmp_path, 0, 5)
    with pytest.raises(RankFailed, match="intact on rank 0, but not on other ranks"):
        three_ranks.call(in_the_dark, made, tmp_path)
    assert names(tmp_path) == ["step-00000005"]


def in_the_dark(world: World, made: Config, folder: Path) -> None:
    """As on a node whose view of a shared file system is an old one."""
    with patch.object(folders, "file_digest", side_effect=FileNotFoundError) if world.rank else nullcontext():
        train_until(world, made, folder, 1, None)


def test_a_late_comer_touches_nothing_of_its_successor(tmp_path: Path) -> None:
    """As an attempt that was frozen at its start, before it had looked for checkpoints."""
    train_until(alone(), config(), tmp_path, 0, 5)
    damage(tmp_path / "checkpoints" / "step-00000005", "bit")
    (tmp_path / "checkpoints" / "step-00000007.a000.tmp").mkdir()
    RunDir(tmp_path).attempt(2).path.mkdir(parents=True)
    with pytest.raises(Superseded, match="attempt 2 of this run has begun"):
        train_until(alone(), config(), tmp_path, 1, None)
    assert names(tmp_path) == ["step-00000005", "step-00000007.a000.tmp"]


def test_nor_does_it_delete_what_its_successor_may_read(tmp_path: Path) -> None:
    made, attempt = config(checkpoint={"every_steps": 3, "keep": 2}), RunDir(tmp_path).attempt(0)
    train_until(alone(), made, tmp_path, 0, 5)
    assert names(tmp_path) == ["step-00000003", "step-00000005"]
    RunDir(tmp_path).attempt(1).path.mkdir()
    _delete_old(tmp_path / "checkpoints", 1, attempt)
    assert names(tmp_path) == ["step-00000003", "step-00000005"]
    RunDir(tmp_path).attempt(1).path.rmdir()
    _delete_old(tmp_path / "checkpoints", 1, attempt)
    assert names(tmp_path) == ["step-00000005"]


def test_going_on_with_other_code_is_said(tmp_path: Path) -> None:
    train_until(alone(), config(), tmp_path, 0, 5)
    with (
        patch("disttrain.checkpoint.resume.code_hash", return_value="0ther"),
        patch.object(log, "info", wraps=log.info) as said,
    ):
        train_until(alone(), config(), tmp_path, 1, None)
    (told,) = [call for call in said.call_args_list if call.args == ("resume is not exact",)]
    assert "and is 0ther" in told.kwargs["reason"]


@pytest.mark.parametrize("what", ["write", "plan", "copy"])
def test_a_disk_that_fails_costs_a_checkpoint_not_the_run(
    three_ranks: Ranks, tmp_path: Path, what: str
) -> None:
    made = config(ranks=3, checkpoint={"every_steps": 4})
    seen = three_ranks.call(on_a_full_disk, made, tmp_path, what)
    metrics = seen[0].metrics
    assert (metrics.status, metrics.steps) == ("completed", 12)
    assert (metrics.checkpoints_failed, metrics.checkpoint_step) == (3, None)
    assert not list(tmp_path.glob("checkpoints/*"))


def on_a_full_disk(world: World, made: Config, folder: Path, what: str) -> Seen:
    """The disk of rank 1 takes nothing more."""
    module = "disttrain.checkpoint.storage"
    target = {
        "write": f"{module}.write",
        "plan": f"{module}.dcp.FileSystemWriter.prepare_local_plan",
        "copy": "disttrain.checkpoint.share.HostBuffers.copy",
    }[what]
    full = OSError(errno.ENOSPC, "No space left on device")
    with patch(target, side_effect=full) if world.rank == 1 else nullcontext():
        return train_until(world, made, folder, 0, None)


@pytest.mark.parametrize("looks_at_its_start", [True, False])
def test_an_attempt_that_was_superseded_writes_nothing_shared(
    three_ranks: Ranks, tmp_path: Path, looks_at_its_start: bool
) -> None:
    """As after a node that was frozen, given up and thawed: another attempt has begun meanwhile."""
    made = config(ranks=3, checkpoint={"every_steps": 4})
    RunDir(tmp_path).attempt(1).path.mkdir(parents=True)
    with pytest.raises(RankFailed, match="Superseded"):
        three_ranks.call(superseded, made, tmp_path, looks_at_its_start)
    assert not RunDir(tmp_path).metrics.exists()
    assert not (tmp_path / "checkpoints").exists()


def superseded(world: World, made: Config, folder: Path, looks_at_its_start: bool) -> None:
    blind = patch("disttrain.checkpoint.resume._refuse_superseded")
    with nullcontext() if looks_at_its_start else blind:
        train_until(world, made, folder, 0, None)


def test_a_deadline_that_has_passed_stops_it_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTTRAIN_DEADLINE", "1")
    metrics = train_until(alone(), config(), tmp_path, 0, None).metrics
    assert (metrics.status, metrics.stop_cause, metrics.steps) == ("stopped", "deadline", 0)
    assert not (tmp_path / "checkpoints").exists()  # there was nothing to save


def test_the_usual_tools_read_it(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    train_until(alone(), config(), tmp_path, 0, 5)
    path = tmp_path / "checkpoints" / "step-00000005"
    weight = {"model.layers.0.0.weight": torch.zeros(24, 8)}
    dcp.load(weight, checkpoint_id=path, no_dist=True)
    own = {"model.layers.0.0.weight": torch.ones(24, 8)}
    storage.load_tensors(own, CommittedCheckpoint(path, folders.read_manifest(path)))
    assert torch.equal(weight["model.layers.0.0.weight"], own["model.layers.0.0.weight"])


def test_figures_of_a_resumed_run_leave_out_the_first_steps_of_each_start(tmp_path: Path) -> None:
    made = config(train={"steps": 12})
    train_until(alone(), made, tmp_path, 0, 6)
    seen = train_until(alone(), made, tmp_path, 1, None)
    assert seen.metrics.left_out == [(1, 2), (7, 8)]
    assert (seen.metrics.warmup_steps, seen.metrics.measured_steps) == (4, 8)
    records = [list(read_jsonl(attempt.steps(0))) for attempt in RunDir(tmp_path).attempts()]
    measured = [record["step_s"] for own in records for record in own[2:]]
    assert seen.metrics.measured_s == pytest.approx(sum(measured), abs=1e-5)
    assert Metrics.model_validate(read_json(RunDir(tmp_path).metrics)) == seen.metrics
