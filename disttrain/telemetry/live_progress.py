"""Rank 0's live view of a run: log lines, `progress.json`, interim `metrics.json`, and scalars for the sinks.

Sinks get scalars every second. Files are written at intervals that grow with the run to `LONGEST_INTERVAL_S`:
each write is several calls to the shared file system.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.errors import is_disk_full
from disttrain.records.json_files import json_text, write_json, write_text
from disttrain.records.metrics import Metrics
from disttrain.records.progress import Progress
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.records.shared_folder import AttemptWatch, growing_interval
from disttrain.runtime import log
from disttrain.runtime.json_lines import drop_if_disk_full
from disttrain.telemetry import sinks
from disttrain.telemetry.background_writer import BackgroundWriter

PROGRESS_EVERY_S = 1.0
"""Seconds between two sets of scalars, and between the first writes of `progress.json`."""
LONGEST_INTERVAL_S = 60.0
"""Longest time between two writes of `progress.json`, or of an interim `metrics.json`."""


class LiveProgress:
    """Has the progress of a run written by `writer`. Times are readings of the monotonic clock in seconds."""

    def __init__(
        self,
        run: RunDir,
        attempt: Attempt,
        watch: AttemptWatch,
        config: Config,
        metrics_fields: Mapping[str, Any],
        now: float,
        writer: BackgroundWriter,
    ):
        self._run = run
        self._writer = writer
        self._attempt = attempt
        self._watch = watch
        self._flush_every_s = config.telemetry.flush_every_s
        self._emulated = config.emulated
        self._steps_total: int = metrics_fields["steps_total"]
        self._global_batch: int = metrics_fields["global_batch_size"]
        self._sinks = [sinks.open_sink(name, attempt) for name in config.telemetry.sinks]
        self._unsent: deque[tuple[int, dict[str, float]]] = deque()
        self._began = self._sampled_at = now
        self._progress_at = self._summary_at = -math.inf
        self._step = 0
        self._loss_step: int | None = None
        self._grad_norm_step: int | None = None
        self._samples_per_s: float | None = None

    def restart(self, step: int, now: float) -> None:
        """Count the live rate from `step` on, which is done at `now`."""
        self._step, self._began, self._sampled_at = step, now, now

    def is_due(self, now: float) -> bool:
        """Whether the next scalars are due."""
        return now - self._sampled_at >= PROGRESS_EVERY_S

    def exclude(self, seconds: float) -> None:
        """Leave out of the live rate seconds that belong to no step."""
        self._sampled_at += seconds

    def write(
        self,
        step: int,
        now: float,
        lr: float,
        loss: tuple[int, float] | None,
        grad_norm: tuple[int, float] | None,
        hardware: dict[str, float],
        mean_samples_per_s: float | None = None,
        final: Metrics | None = None,
    ) -> None:
        """Take the state after `step`, and have the file written if it is due.

        `loss` and `grad_norm` are the newest ones with their step, some steps back (see
        `ReductionPace`); `hardware` has the newest samples by their names in `Progress`;
        `mean_samples_per_s` is the rate over the measured steps.
        At the end, the rate of `final`, the summary of the run, replaces both rates in `progress.json`.
        """
        if now > self._sampled_at and step > self._step:
            self._samples_per_s = (step - self._step) * self._global_batch / (now - self._sampled_at)
        self._sampled_at, self._step = now, step
        live = self._take_scalars(step, lr, loss, grad_norm, hardware)
        if final is None and not self._is_over(now, self._progress_at, PROGRESS_EVERY_S):
            self._submit_queued()
            return
        self._progress_at = now
        left = max(0, self._steps_total - step) * self._global_batch
        progress = Progress(
            attempt=self._attempt.number,
            step=step,
            steps=self._steps_total,
            emulated=self._emulated,
            samples_per_s=final.samples_per_s if final else self._samples_per_s,
            mean_samples_per_s=final.samples_per_s if final else mean_samples_per_s,
            loss=loss[1] if loss else None,
            eta_s=left / self._samples_per_s if self._samples_per_s else None,
            updated=time.time(),
            **hardware,
        )
        self._writer.submit("progress", partial(self._write, progress, live))

    def _take_scalars(
        self,
        step: int,
        lr: float,
        loss: tuple[int, float] | None,
        grad_norm: tuple[int, float] | None,
        hardware: dict[str, float],
    ) -> dict[str, float]:
        """Queue the scalars of `write` for the sinks; those of the log line."""
        live = {"lr": lr} | ({"samples_per_s": self._samples_per_s} if self._samples_per_s else {})
        self._queue(step, live | {_scalar_name(name): value for name, value in hardware.items()})
        if grad_norm:
            if grad_norm[0] != self._grad_norm_step:
                self._queue(grad_norm[0], {"grad_norm": grad_norm[1]})
            self._grad_norm_step = grad_norm[0]
        if loss:
            if loss[0] != self._loss_step:
                self._queue(loss[0], {"loss/train": loss[1]})
            self._loss_step = loss[0]
            live |= {"loss": loss[1], "loss_step": loss[0]}
        return live

    def _is_over(self, now: float, since: float, every_s: float) -> bool:
        """Whether the interval of a file that was written at `since` is over; at first it is `every_s`, at
        which this is called."""
        interval = growing_interval(every_s, LONGEST_INTERVAL_S, now - self._began)
        return now - since >= interval - every_s / 2

    def summary_is_due(self, now: float) -> bool:
        """Whether the next interim `metrics.json` is due."""
        return self._is_over(now, self._summary_at, self._flush_every_s)

    def write_summary(self, now: float, metrics: Metrics) -> None:
        """Have an interim `metrics.json` written, and the composition of a step sent to the sinks."""
        self._summary_at = now
        text = json_text(metrics.model_dump(mode="json"))  # here, as in `BackgroundJsonLines`
        self._writer.submit("metrics", partial(self._write_summary, text))
        self.send(metrics.steps, {f"step/{name}": value for name, value in metrics.composition.items()})

    def _write_summary(self, text: str) -> None:
        if self._watch.superseded() is None:
            with drop_if_disk_full():
                write_text(self._run.metrics, text, durable=False)

    def _write(self, progress: Progress, live: Mapping[str, float]) -> None:
        self._send_queued()
        if self._watch.superseded() is not None:
            return  # the next stop agreement ends this attempt
        with drop_if_disk_full():
            write_json(self._run.progress, progress.model_dump(mode="json"), durable=False)
        log.info("step", step=progress.step, steps=progress.steps, **live)

    def send(self, step: int, values: Mapping[str, float | None]) -> None:
        """Send the values that are not null to every sink. A full disk ends a sink."""
        self._queue(step, values)
        self._submit_queued()

    def _submit_queued(self) -> None:
        if self._unsent:
            self._writer.submit(self, self._send_queued)

    def _queue(self, step: int, values: Mapping[str, float | None]) -> None:
        """Leave the values to the next write of the writer."""
        if self._sinks:
            given = {name: value for name, value in values.items() if value is not None}
            self._unsent.append((step, given))

    def _send_queued(self) -> None:
        while self._unsent:
            step, values = self._unsent.popleft()
            for sink in self._sinks[:]:
                try:
                    sink.scalars(step, values)
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    log.error("the disk is full: a sink ends", sink=type(sink).__module__)
                    self._sinks.remove(sink)

    def close(self) -> None:
        """Close the sinks, after all values have been sent."""
        self._writer.submit(object(), self._close)
        self._writer.wait()

    def _close(self) -> None:
        self._send_queued()
        for sink in self._sinks:
            with drop_if_disk_full():
                sink.close()
        self._sinks = []


def _scalar_name(name: str) -> str:
    """`gpu/power_w` for `gpu_power_w` of `Progress`; fields of the processes are below `host/`."""
    return name.replace("gpu_", "gpu/", 1) if name.startswith("gpu_") else f"host/{name}"
