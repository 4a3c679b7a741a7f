"""Hugging Face's Trainer stops together with all ranks, resumes, and its steps are recorded.

Call `train(trainer)` in place of `trainer.train()`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disttrain.integrations.loop import checkpoint_dir, stop_requested
from disttrain.integrations.step_records import StepRecords

# isort: split
import torch
from transformers import Trainer, TrainerCallback

_SPEEDS = ("runtime", "_per_second", "epoch")
"""Ends of names of figures that are no result of a validation."""


def train(trainer: Trainer, **options: Any) -> Any:
    """`trainer.train` from the newest checkpoint of this run, with a `DisttrainCallback`.

    In a job, `output_dir` becomes `checkpoint_dir()`.
    """
    folder = checkpoint_dir(str(trainer.args.output_dir))
    trainer.args.output_dir = str(folder)
    callback = DisttrainCallback(trainer)
    trainer.add_callback(callback)
    try:
        return trainer.train(**{"resume_from_checkpoint": newest_checkpoint(folder), **options})
    except BaseException as error:
        callback.records.close(error)
        raise


def newest_checkpoint(folder: Path) -> str | None:
    """The newest complete `checkpoint-N` in `folder`."""
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]  # written at the end
    steps = {int(step): path for path in complete if (step := path.name.rpartition("-")[2]).isdecimal()}
    return str(steps[max(steps)]) if steps else None


class DisttrainCallback(TrainerCallback):
    """At a stop request, all ranks save after the same step, and exit with code 0. The last of the callbacks.

    A step that the trainer logs has the logged loss in its record: the mean since the log before.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.records = StepRecords()
        self._trainer = trainer
        self._to_log = self._stops = False

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        args, state = self._trainer.args, self._trainer.state
        self.records.begin(
            self._trainer.model_wrapped,  # `model` lacks the DDP wrapper
            self._trainer.optimizer,
            steps=state.max_steps,
            samples_per_step=args.train_batch_size * args.gradient_accumulation_steps,
            accumulation=args.gradient_accumulation_steps,
            resumed_step=state.global_step,
        )

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.records.batch_arrived()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        control = self._trainer.control
        if stop_requested():
            self._stops = control.should_save = True
            control.should_evaluate = False
        self._to_log = control.should_log
        if not self._to_log:
            self._end_step()

    def on_log(self, *_: Any, **event: Any) -> None:
        loss = event["logs"].get("loss")
        if self._to_log and loss is not None:
            self._end_step(torch.tensor(loss))

    def _end_step(self, loss: torch.Tensor | None = None) -> None:
        self._to_log = False
        self.records.step_done(loss)
        self.on_epoch_end()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        if self._trainer.control.should_evaluate or self._trainer.control.should_save:
            self.records.leave_steps()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        self.records.leave_steps()  # of a further validation set

    def on_evaluate(self, *_: Any, **event: Any) -> None:
        values = {name.removeprefix("eval_"): value for name, value in event["metrics"].items()}
        figures = {name: value for name, value in values.items() if not name.endswith(_SPEEDS)}
        self.records.validated(figures.pop("loss", None), figures)
        if not self._trainer.control.should_save:
            self.records.await_batch()

    def on_save(self, *_: Any, **__: Any) -> None:
        self.records.await_batch()
        if self._stops:
            self.records.close()
            raise SystemExit(0)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.records.close()
