"""Rank 0's live view of a run: one log line per second, `progress.json`, and scalars for the sinks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.errors import is_disk_full
from disttrain.records.json_files import write_json
from disttrain.records.metrics import Metrics
from disttrain.records.progress import Progress
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.runtime import log
from disttrain.telemetry import sinks
from disttrain.telemetry.background_writer import BackgroundWriter
from disttrain.telemetry.json_lines import drop_if_disk_full


class LiveProgress:
    """Has the progress of a run written by `writer`. Times are readings of the monotonic clock in seconds."""

    def __init__(
        self,
        run: RunDir,
        attempt: Attempt,
        config: Config,
        metrics_fields: Mapping[str, Any],
        now: float,
        writer: BackgroundWriter,
    ):
        self._run = run
        self._writer = writer
        self._attempt = attempt
        self._emulated = config.emulated
        self._steps_total: int = metrics_fields["steps_total"]
        self._global_batch: int = metrics_fields["global_batch_size"]
        self._sinks = [sinks.open_sink(name, attempt) for name in config.telemetry.sinks]
        self._unsent: deque[tuple[int, dict[str, float]]] = deque()
        self.written_at = now
        self._step = 0
        self._loss_step: int | None = None
        self._grad_norm_step: int | None = None
        self._samples_per_s: float | None = None

    def restart(self, step: int, now: float) -> None:
        """Count the live rate from `step` on, which is done at `now`."""
        self._step, self.written_at = step, now

    def exclude(self, seconds: float) -> None:
        """Leave out of the live rate seconds that belong to no step."""
        self.written_at += seconds

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
        """Write the state after `step`.

        `loss` and `grad_norm` are the newest ones with their step, some steps back (see
        `ReductionPace`); `hardware` has the newest samples by their names in `Progress`;
        `mean_samples_per_s` is the rate over the measured steps.
        At the end, the rate of `final`, the summary of the run, replaces both rates in `progress.json`.
        """
        if now > self.written_at and step > self._step:
            self._samples_per_s = (step - self._step) * self._global_batch / (now - self.written_at)
        self.written_at, self._step = now, step
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
        self._writer.submit("progress", partial(self._write, progress, live))

    def _write(self, progress: Progress, live: Mapping[str, float]) -> None:
        self._send_queued()
        if self._attempt.superseded() is not None:
            return  # the next stop agreement ends this attempt
        with drop_if_disk_full():
            write_json(self._run.progress, progress.model_dump(mode="json"), durable=False)
        log.info("step", step=progress.step, steps=progress.steps, **live)

    def send(self, step: int, values: Mapping[str, float | None]) -> None:
        """Send the values that are not null to every sink. A full disk ends a sink."""
        self._queue(step, values)
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
