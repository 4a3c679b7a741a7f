"""Lightning's Trainer stops together with all ranks, resumes, and its steps are recorded.

Call `fit(trainer, model, loader)` in place of `trainer.fit(model, loader)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disttrain.integrations.loop import checkpoint_dir, handle_stop_signal, stop_requested
from disttrain.integrations.step_records import StepRecords

# isort: split
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.data import extract_batch_size


def fit(trainer: Trainer, model: LightningModule, *args: Any, **options: Any) -> None:
    """`trainer.fit` from the newest checkpoint of this run, with a `DisttrainCallback`.

    Checkpoint callbacks without a `dirpath` save to `checkpoint_dir()`, which is searched for `*.ckpt`.
    """
    for callback in trainer.checkpoint_callbacks:
        if getattr(callback, "dirpath", "") is None:
            callback.dirpath = str(checkpoint_dir())  # type: ignore[attr-defined]
    trainer.callbacks.insert(0, DisttrainCallback())  # type: ignore[attr-defined]
    trainer.fit(model, *args, **{"ckpt_path": newest_checkpoint(), **options})


def newest_checkpoint() -> Path | None:
    """The newest complete `*.ckpt` in `checkpoint_dir()`: a file, or a folder of shards."""
    complete = [
        path
        for path in checkpoint_dir().glob("*.ckpt")
        if path.is_file() or (path / "meta.pt").exists()  # written after the shards
    ]
    return max(complete, key=lambda path: path.stat().st_mtime, default=None)


class DisttrainCallback(Callback):
    """At a stop request, all ranks save after the same step, and exit with code 0.

    The first of the callbacks, so that checkpoints of others belong to no step.
    """

    def __init__(self) -> None:
        self._records = StepRecords()
        self._step = 0
        self._loss: Any = None
        """Of the batches since the last optimizer step."""

    def on_sanity_check_start(self, *_: Any) -> None:
        handle_stop_signal()  # Lightning's own handler calls a collective wherever the signal arrives

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        handle_stop_signal()
        self._step = trainer.global_step

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, *_: Any) -> None:
        if not self._records.begun and trainer.optimizers:
            batches = trainer.accumulate_grad_batches
            self._records.begin(
                module,
                trainer.optimizers[0],
                steps=trainer.estimated_stepping_batches,
                samples_per_step=batches * extract_batch_size(batch),
                accumulation=batches,
                resumed_step=self._step,
            )
        self._records.batch_arrived()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, *_: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + loss
        if trainer.global_step == self._step:
            return self._records.await_batch()
        self._step = trainer.global_step
        self._records.step_done(self._loss)
        self._loss = None
        if stop_requested():
            self._save(trainer)
            self._records.close()
            raise SystemExit(0)

    def _save(self, trainer: Trainer) -> None:
        path = checkpoint_dir() / f"stopped-step={self._step}.ckpt"
        earlier = [*path.parent.glob("stopped-step=*.ckpt")]
        trainer.save_checkpoint(path)
        for other in earlier:
            if other != path:
                trainer.strategy.remove_checkpoint(other)

    def on_save_checkpoint(self, *_: Any) -> None:
        self._records.leave_steps()

    def on_validation_start(self, *_: Any) -> None:
        self._records.leave_steps()

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        metrics = {n: float(v) for n, v in trainer.callback_metrics.items() if n.startswith("val")}
        loss = next((metrics.pop(name) for name in [*metrics] if name.endswith("loss")), None)
        self._records.validated(loss, metrics)
        self._records.await_batch()

    def on_train_end(self, *_: Any) -> None:
        self._records.close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        self._records.close(exception)
