"""MLflow sink: one experiment per sweep, and one MLflow run per run, for all its attempts.

The store is `MLFLOW_TRACKING_URI`, or else an SQLite file in the folder of the sweep:

    mlflow ui --backend-store-uri sqlite:///runs/<sweep>/mlflow.db

Needs the extra `mlflow`. A thread writes to the store every `WRITE_EVERY_S` seconds, because a store is slow.
A failing store is logged and never ends the run.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from disttrain.config.dotted_keys import flat_values
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.runtime import log

WRITE_EVERY_S = 10.0
RUN_TAG = "disttrain.run"
_BATCH = 500
"""Metrics per call; MLflow allows at most 1,000 metrics and 100 parameters."""
_PARAMS = 100
_PARAM_LENGTH = 500


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
        self._waiting: list[tuple[int, str, float, int]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="mlflow", daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        with self._lock:
            self._waiting += [(step, name, value, now) for name, value in values.items()]

    def close(self) -> None:
        """Write the remaining scalars and the summary of `metrics.json`; waits at most 60 s."""
        self._closing.set()
        self._thread.join(timeout=60)

    def _write_on(self) -> None:
        try:
            store = _Store(self._run)
            while not self._closing.wait(WRITE_EVERY_S):
                store.write(self._taken())
            store.write(self._taken())
            store.finish()
        except Exception as error:
            log.error("MLflow record is incomplete", kind=type(error).__name__, error=str(error)[:300])

    def _taken(self) -> list[tuple[int, str, float, int]]:
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken


class _Store:
    """The MLflow run of this run."""

    def __init__(self, run: RunDir) -> None:
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs each table that it creates
        self._run = run
        given = os.environ.get("MLFLOW_TRACKING_URI")
        file = run.path.parent.absolute() / "mlflow.db"
        # the lock lets one of several concurrent runs create the tables
        with _locked(None if given else file.with_name(".mlflow.lock")):
            self._client = MlflowClient(tracking_uri=given or f"sqlite:///{file}")
            self._id = self._find() or self._create()

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._run.sweep)
        return found.experiment_id if found else self._client.create_experiment(self._run.sweep)

    def _find(self) -> str | None:
        """The MLflow run of an earlier attempt, set to running again; None without one."""
        wanted = f"tags.`{RUN_TAG}` = '{self._run.name}'"
        found = self._client.search_runs([self._experiment()], wanted, max_results=1)
        if not found:
            return None
        self._client.update_run(found[0].info.run_id, status="RUNNING")
        return str(found[0].info.run_id)

    def _create(self) -> str:
        record = read_json_or_none(self._run.run_json) or {}
        tags = {RUN_TAG: self._run.name, "disttrain.run_key": str(record.get("run_key", ""))}
        made = self._client.create_run(self._experiment(), tags=tags, run_name=self._run.name)
        parameters = list(_flat(record.get("config", {})))
        from mlflow.entities import Param

        for first in range(0, len(parameters), _PARAMS):
            batch = [Param(key, value) for key, value in parameters[first : first + _PARAMS]]
            self._client.log_batch(made.info.run_id, params=batch)
        return str(made.info.run_id)

    def write(self, scalars: list[tuple[int, str, float, int]]) -> None:
        from mlflow.entities import Metric

        for first in range(0, len(scalars), _BATCH):
            some = scalars[first : first + _BATCH]
            batch = [Metric(name, value, when, step) for step, name, value, when in some]
            self._client.log_batch(self._id, metrics=batch)

    def finish(self) -> None:
        """Write the figures and the status of `metrics.json`."""
        metrics = read_json_or_none(self._run.metrics) or {}
        now, step = int(1000 * time.time()), int(metrics.get("steps") or 0)
        self.write([(step, f"summary/{name}", value, now) for name, value in _figures(metrics)])
        ended = {"completed": "FINISHED", "stopped": "KILLED"}.get(metrics.get("status", ""), "FAILED")
        self._client.set_terminated(self._id, status=ended)


def _figures(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers of a record by name, nested ones as `part.name`, without lists (histories, histograms)."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", figure) for inner, figure in _figures(value))
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "schema_version":
            yield name, float(value)


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in flat_values(config).items():
        yield key, str(value)[:_PARAM_LENGTH]


@contextmanager
def _locked(lock: Path | None) -> Iterator[None]:
    """Hold an exclusive lock on the file `lock`; no lock for None."""
    if lock is None:
        yield
        return
    with open(lock, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
