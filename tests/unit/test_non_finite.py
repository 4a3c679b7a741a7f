"""Steps whose gradients are not finite: skipped and counted, or the end of the run; never in a checkpoint."""

import pytest
import torch

from disttrain.checkpoint.folder import read_manifest
from disttrain.checkpoint.state import first_non_finite
from disttrain.engine.train import batches_of, begin, run
from disttrain.errors import NonFinite
from disttrain.optim import precision
from disttrain.optim.precision import LossScale
from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir, checkpoint_steps
from disttrain.runtime.run_output import RunOutput, record_failure
from tests.support.stopping import alone, config, recorded, train_until


def train_with(made, path, bad):
    """Train on data of which the batches `bad` are not finite: the trainer and the inputs of the steps."""
    output, inputs = RunOutput.of_job(path, 0), []
    output.attempt.path.mkdir(parents=True)
    with begin(made, output, alone()) as trainer:
        batches = enumerate(recorded(batches_of(trainer), inputs), 1)
        run(trainer, ((x * torch.nan if number in bad else x, y) for number, (x, y) in batches))
    return trainer, inputs


def test_a_bad_batch_is_skipped_and_counted(tmp_path):
    trainer, inputs = train_with(config(), tmp_path / "bad", range(5, 7))
    undisturbed, expected = train_with(config(), tmp_path / "good", ())
    metrics = trainer.metrics()
    assert (metrics.status, metrics.steps, metrics.skipped_steps) == ("completed", 12, 2)
    assert undisturbed.metrics().skipped_steps == 0
    assert inputs == expected, "the position in the data"
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    lines, plain = (read_jsonl(RunDir(tmp_path / name).attempt(0).steps(0)) for name in ("bad", "good"))
    assert [line["step"] for line in lines if line["skipped"]] == [5, 6]
    assert [line["step"] for line in lines if line["grad_norm"] is None] == [5, 6]
    assert [line["lr"] for line in lines] == [line["lr"] for line in plain]
    assert [line["grad_norm"] for line in lines[:4]] == [line["grad_norm"] for line in plain[:4]]
    assert [p.grad_norm for p in metrics.grad_norm_history] == [line["grad_norm"] for line in lines]


@pytest.mark.parametrize(
    ("precision", "bad", "message", "steps"),
    [
        ({"on_non_finite": "stop"}, {7}, "step 7: ", [6, 3]),
        ({"on_non_finite": "stop"}, {12}, "step 12: ", [9, 6]),
        ({"max_skipped": 4}, range(5, 100), "4 steps in a row, up to step 8, ", [6, 3]),
    ],
)
def test_the_run_ends_with_a_cause_of_its_own(tmp_path, precision, bad, message, steps):
    made = config(
        precision=precision, checkpoint={"every_steps": 3, "best": False, "asynchronous": False, "keep": 2}
    )
    with pytest.raises(NonFinite, match=f"^{message}") as raised:
        train_with(made, tmp_path, bad)
    assert record_failure(raised.value, 0).cause == "non_finite"
    assert checkpoint_steps(tmp_path / "checkpoints") == steps


def test_a_state_that_is_not_finite_is_never_committed(tmp_path):
    checkpoint = {"every_steps": 2, "best": False, "keep": 9}
    made = config(precision={"on_non_finite": "ignore"}, checkpoint=checkpoint)
    trainer, _ = train_with(made, tmp_path, {5})
    assert not all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert checkpoint_steps(tmp_path / "checkpoints") == [4, 2]
    assert (trainer.metrics().checkpoint_step, trainer.metrics().checkpoints_failed) == (4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_the_tensor_that_is_not_finite_is_named(dtype, value):
    good, bad = torch.zeros(3, dtype=dtype), torch.tensor([1.0, value, 2.0], dtype=dtype)
    state = {"history.losses": bad, "model.step": torch.tensor(3), "model.a": good, "model.e": good[:0]}
    assert first_non_finite(state) is None
    assert first_non_finite({**state, "optimizer.b": bad}) == "optimizer.b"


def test_a_resumed_float16_run_takes_up_its_loss_scale(tmp_path, monkeypatch):
    """The scale changes before the stop; the resumed run goes on with it, to the same bits."""
    made, scales = config(precision={"dtype": "fp16"}), []

    def quickly_growing(device):
        scales.append(LossScale(device, growth_interval=3))
        return scales[-1]

    monkeypatch.setattr(precision, "LossScale", quickly_growing)
    whole, _, resumed = (
        train_until(alone(), made, tmp_path / name, attempt, stop)
        for name, attempt, stop in (("whole", 0, None), ("parts", 0, 5), ("parts", 1, None))
    )
    assert resumed.parameters == whole.parameters
    assert resumed.metrics.grad_norm_history == whole.metrics.grad_norm_history
    [newest] = (tmp_path / "parts/checkpoints").glob("step-*")
    assert "precision.loss_scale" in read_manifest(newest).tensors
    first, stopped, last = [(scale.value.item(), scale.clean_steps.item()) for scale in scales]
    assert stopped[0] != 2.0**16, "the first scale"
    assert last == first
