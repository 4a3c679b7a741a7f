"""Stop, save, resume and records for training programs that do not use this project's trainer.

A loop calls `stop_requested()` after each step, then saves to `checkpoint_dir()`, from which it resumes;
`saved()` after a save elsewhere. `lightning.fit` and `huggingface.train` do all of it.
"""

from __future__ import annotations

from disttrain.integrations.loop import checkpoint_dir, saved, stop_requested

__all__ = ["checkpoint_dir", "saved", "stop_requested"]
