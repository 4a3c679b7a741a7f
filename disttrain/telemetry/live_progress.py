"""Rank 0's live view of a run: log lines, `progress.json`, interim `metrics.json`, and scalars for the sinks.

Sinks get scalars every second. Files are written at intervals that grow with the run to `LONGEST_INTERVAL_S`:
each write is several calls to the shared file system.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from disttrain.config.config_tree import Config
from disttrain.errors import is_disk_full
from disttrain.records.attempt import Progress
from disttrain.records.json_files import json_text, write_json, write_text
from disttrain.records.metrics import Metrics
from disttrain.records.shared_folder import AttemptWatch, growing_interval
from disttrain.runtime import log
from disttrain.runtime.json_lines import drop_if_disk_full
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry import sinks
from disttrain.telemetry.background_writer import BackgroundWriter
from disttrain.telemetry.facts import RunFacts
from disttrain.telemetry.step_log import OF_SPEED
from disttrain.telemetry.step_series import StepSeries

PROGRESS_EVERY_S = 1.0
"""Seconds between two sets of scalars, and between the first writes of `progress.json`."""
LONGEST_INTERVAL_S = 60.0
"""Longest time between two writes of `progress.json`, or of an interim `metrics.json`."""
SUMMARY_SHARE = 0.001
"""Largest share of the loop's time for interim summaries, whose cost grows with the run."""


class LiveProgress:
    """Has the progress of a run written by `writer`. Times are readings of the monotonic clock in seconds."""

    def __init__(
        self,
        output: RunOutput,
        watch: AttemptWatch,
        config: Config,
        facts: RunFacts,
        writer: BackgroundWriter,
    ):
        self._run, self._attempt, self._watch = output.run, output.attempt, watch
        self._config, self._facts, self._writer = config, facts, writer
        self._sinks = [sinks.open_sink(name, output.attempt) for name in config.telemetry.sinks]
        self._unsent: deque[tuple[int, dict[str, float]]] = deque()
        self._sent: dict[str, int] = {}
        """Newest step of each series that the sinks have."""
        self._progress_at = self._summary_at = -math.inf
        self._summary_s = self._last_summary_s = 0.0
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
        scalars: Mapping[str, float],
        series: Mapping[str, StepSeries],
        hardware: Mapping[str, float],
        mean_samples_per_s: float | None,
        final: Metrics | None = None,
    ) -> None:
        """Take the state after `step`, and have the file written if it is due.

        `scalars` are of this step; the newest values of the `series` are some steps back. `hardware` has the
        newest samples by their names in `Progress`; `mean_samples_per_s` is the rate over the measured steps.
        At the end, the rate of `final`, the summary of the run, replaces both rates in `progress.json`.
        """
        global_batch: int = self._facts.metrics["global_batch_size"]
        steps: int = self._facts.metrics["steps_total"]
        if now > self._sampled_at and step > self._step:
            self._samples_per_s = (step - self._step) * global_batch / (now - self._sampled_at)
        self._sampled_at, self._step = now, step
        line = {**scalars, **({"samples_per_s": self._samples_per_s} if self._samples_per_s else {})}
        self._queue(step, line | {_scalar_name(name): value for name, value in hardware.items()})
        newest = {name: each.newest for name, each in series.items() if name not in OF_SPEED and each.newest}
        for name, (at, value) in newest.items():
            line |= {"loss_step": at, "loss": value} if name == "loss" else {name: value}
            if self._sent.get(name) != at:
                self._queue(at, {"loss/train" if name == "loss" else name: value})
            self._sent[name] = at
        if final is None and not self._is_over(now, self._progress_at, PROGRESS_EVERY_S):
            self._submit_queued()
            return
        self._progress_at = now
        progress = Progress(
            attempt=self._attempt.number,
            step=step,
            steps=steps,
            emulated=self._config.emulated,
            samples_per_s=final.samples_per_s if final else self._samples_per_s,
            mean_samples_per_s=final.samples_per_s if final else mean_samples_per_s,
            loss=line.get("loss"),
            eta_s=max(0, steps - step) * global_batch / self._samples_per_s if self._samples_per_s else None,
            updated=time.time(),
            **hardware,
        )
        if samples := self._facts.samples_of_data:
            line["epoch"] = step * global_batch / samples
        self._writer.submit("progress", partial(self._write, progress, line))

    def write_summary_if_due(self, now: float, summary: Callable[[], Metrics]) -> None:
        """If it is due, have an interim `metrics.json` written, and the composition of a step sent to the
        sinks."""
        every_s = max(self._config.telemetry.flush_every_s, self._summary_s / SUMMARY_SHARE)
        if not self._is_over(now, self._summary_at, every_s):
            return
        self._summary_at = now
        metrics = summary()
        text = json_text(metrics.model_dump(mode="json"))  # here, as in `BackgroundJsonLines`
        # the smaller of two, so that one summary in which the process was suspended does not count
        cost_s = time.monotonic() - now
        self._summary_s, self._last_summary_s = min(cost_s, self._last_summary_s), cost_s
        self._writer.submit("metrics", partial(self._write_summary, text))
        self.send(metrics.steps, {f"step/{name}": value for name, value in metrics.composition.items()})

    def _is_over(self, now: float, since: float, every_s: float) -> bool:
        """Whether the interval of a file that was written at `since` is over; at first it is `every_s`."""
        grown = growing_interval(min(every_s, LONGEST_INTERVAL_S), LONGEST_INTERVAL_S, now - self._began)
        interval = max(every_s, grown)
        return now - since >= interval - min(every_s, PROGRESS_EVERY_S) / 2

    def _write_summary(self, text: str) -> None:
        if self._watch.superseded() is None:
            with drop_if_disk_full():
                write_text(self._run.metrics, text, durable=False)

    def _write(self, progress: Progress, line: Mapping[str, float]) -> None:
        self._send_queued()
        if self._watch.superseded() is not None:
            return  # the next stop agreement ends this attempt
        with drop_if_disk_full():
            write_json(self._run.progress, progress.model_dump(mode="json"), durable=False)
        log.info("step", step=progress.step, steps=progress.steps, **line)

    # Sinks

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
            self._unsent.append((step, {name: each for name, each in values.items() if each is not None}))

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
        self._writer.submit(self, self._close)
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
