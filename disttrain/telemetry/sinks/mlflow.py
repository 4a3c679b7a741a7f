"""MLflow sink: one experiment per sweep, and one MLflow run per run, for all its attempts.

The store is `MLFLOW_TRACKING_URI`, or else an SQLite file in the folder of the sweep:

    mlflow ui --backend-store-uri sqlite:///runs/<sweep>/mlflow.db

Needs the extra `mlflow`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from disttrain.config.dotted_keys import flat_values
from disttrain.errors import ConfigError
from disttrain.records.run_directory import Attempt
from disttrain.telemetry.sinks.store import Scalars, StoreSink

RUN_TAG = "disttrain.run"
_BATCH = 100
"""Metrics or parameters per call; MLflow allows at most 1,000 metrics and 100 parameters."""


def build(attempt: Attempt) -> MLflow:
    try:  # before the run starts
        import mlflow.tracking  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(
            "telemetry.sinks: mlflow is not installed: pip install 'disttrain[mlflow]'"
        ) from None
    return MLflow(attempt)


class MLflow(StoreSink):
    def open(self) -> None:
        """Set the MLflow run of an earlier attempt to running again, or create one."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs each table that it creates
        folder, sweep, name = self.run.path.parent.absolute(), self.run.sweep, self.run.name
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db"
        with open(folder / ".mlflow.lock", "a", encoding="utf-8") as lock:
            with contextlib.suppress(OSError):  # a file system without locks, as some of Lustre are
                fcntl.flock(lock, fcntl.LOCK_EX)  # one of concurrent runs creates tables and experiment
            client = self._client = MlflowClient(tracking_uri=uri)
            experiment = client.get_experiment_by_name(sweep)
            number = experiment.experiment_id if experiment else client.create_experiment(sweep)
        if earlier := client.search_runs([number], f"tags.`{RUN_TAG}` = '{name}'", max_results=1):
            self._id = earlier[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            return
        tags = {RUN_TAG: name, "disttrain.run_key": str(self.record.get("run_key", ""))}
        self._id = client.create_run(number, tags=tags, run_name=name).info.run_id
        config = [Param(key, str(value)) for key, value in flat_values(self.record.get("config", {})).items()]
        for first in range(0, len(config), _BATCH):
            client.log_batch(self._id, params=config[first : first + _BATCH])

    def write(self, scalars: Sequence[Scalars]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, int(1000 * seconds), step)
            for step, seconds, values in scalars
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._id, metrics=metrics[first : first + _BATCH])

    def finish(self, metrics: Mapping[str, Any], figures: Mapping[str, float]) -> None:
        summary = {f"summary/{name}": value for name, value in figures.items()}
        self.write([(int(metrics.get("steps") or 0), time.time(), summary)])
        ended = {"completed": "FINISHED", "stopped": "KILLED"}.get(metrics.get("status", ""), "FAILED")
        self._client.set_terminated(self._id, status=ended)
