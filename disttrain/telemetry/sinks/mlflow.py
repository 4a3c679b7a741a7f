"""MLflow sink: one experiment per sweep, and one MLflow run per run, for all its attempts.

The store is `MLFLOW_TRACKING_URI`, or else an SQLite file in the folder of the sweep:

    mlflow ui --backend-store-uri sqlite:///runs/<sweep>/mlflow.db

Needs the extra `mlflow`. A thread writes to the store every `WRITE_EVERY_S` seconds, because a store is slow.
A failing store is logged and never ends the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from disttrain.config.dotted_keys import flat_values
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.runtime import log

WRITE_EVERY_S = 10.0
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


class MLflow:
    def __init__(self, attempt: Attempt) -> None:
        self._run = RunDir(attempt.path.parent.parent)
        self._waiting: list[tuple[str, float, int, int]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="mlflow", daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._waiting += [(name, value, now, step) for name, value in values.items()]

    def close(self) -> None:
        """Write the remaining scalars and the summary of `metrics.json`; waits at most 60 s."""
        self._closing.set()
        self._thread.join(timeout=60)

    def _write_on(self) -> None:
        try:
            self._open()
            while not self._closing.wait(WRITE_EVERY_S):
                self._write()
            self._finish()
        except Exception as error:
            log.error("MLflow record is incomplete", kind=type(error).__name__, error=str(error)[:300])

    def _open(self) -> None:
        """Set the MLflow run of an earlier attempt to running again, or create one."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs each table that it creates
        folder, sweep, name = self._run.path.parent.absolute(), self._run.sweep, self._run.name
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
        record = read_json_or_none(self._run.run_json) or {}
        tags = {RUN_TAG: name, "disttrain.run_key": str(record.get("run_key", ""))}
        self._id = client.create_run(number, tags=tags, run_name=name).info.run_id
        config = [Param(key, str(value)) for key, value in flat_values(record.get("config", {})).items()]
        for first in range(0, len(config), _BATCH):
            client.log_batch(self._id, params=config[first : first + _BATCH])

    def _write(self) -> None:
        from mlflow.entities import Metric

        while self._waiting:
            batch = [Metric(*scalar) for scalar in self._waiting[:_BATCH]]
            del self._waiting[: len(batch)]
            self._client.log_batch(self._id, metrics=batch)

    def _finish(self) -> None:
        """Write the remaining scalars, and the figures and the status of `metrics.json`."""
        metrics: dict[str, Any] = read_json_or_none(self._run.metrics) or {}
        figures = flat_values(metrics)
        numbers = {
            f"summary/{name}": float(value)
            for name, value in figures.items()
            if isinstance(value, int | float)
            and not isinstance(value, bool)
            and not name.endswith("schema_version")
        }
        self.scalars(int(metrics.get("steps") or 0), numbers)
        self._write()
        ended = {"completed": "FINISHED", "stopped": "KILLED"}.get(metrics.get("status", ""), "FAILED")
        self._client.set_terminated(self._id, status=ended)
