"""W&B sink: one W&B run per run, for all its attempts; the name of the sweep is its group.

`WANDB_PROJECT`, `WANDB_MODE=offline` and all other variables of W&B apply. Needs the extra `wandb`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from disttrain.errors import ConfigError
from disttrain.records.run_directory import Attempt
from disttrain.records.tracking import tracking_variables
from disttrain.telemetry.sinks.store import Scalars, StoreSink


def build(attempt: Attempt) -> WandB:
    try:  # before the run starts
        import wandb  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError("telemetry.sinks: wandb is not installed: pip install 'disttrain[wandb]'") from None
    return WandB(attempt)


class WandB(StoreSink):
    def open(self) -> None:
        import wandb

        for name, value in tracking_variables(self.run, str(self.record.get("run_key", ""))).items():
            os.environ.setdefault(name, value)
        settings = wandb.Settings(console="off", silent=True)
        self._wandb = wandb.init(config=self.record.get("config", {}), settings=settings)
        self._wandb.define_metric("*", step_metric="step")  # W&B's own steps never go back, as a resume does

    def write(self, scalars: Sequence[Scalars]) -> None:
        for step, _, values in scalars:
            self._wandb.log({**values, "step": step})

    def finish(self, metrics: Mapping[str, Any], figures: Mapping[str, float]) -> None:
        self._wandb.summary.update({f"summary/{name}": value for name, value in figures.items()})
        self._wandb.finish(exit_code=0 if metrics.get("status") in ("completed", "stopped") else 1)
