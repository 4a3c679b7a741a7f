"""Rank 0's live view of a run: log lines, `progress.json`, interim `metrics.json`, and scalars for the sinks.

Sinks get scalars every second. Files are written at intervals that grow with the run to `LONGEST_INTERVAL_S`:
each write is several calls to the shared file system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from disttrain.config.config_tree import Config
from disttrain.records.attempt import Progress
from disttrain.records.base import Record
from disttrain.records.json_files import json_text, write_text
from disttrain.records.metrics import Metrics
from disttrain.records.shared_folder import AttemptWatch, growing_interval
from disttrain.runtime import log
from disttrain.runtime.device import peak_memory_bytes
from disttrain.runtime.json_lines import drop_if_disk_full
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.background_writer import BackgroundWriter
from disttrain.telemetry.facts import RunFacts
from disttrain.telemetry.sinks import Sinks
from disttrain.telemetry.step_log import OF_SPEED, StepLog

PROGRESS_EVERY_S = 1.0
"""Seconds between two sets of scalars, and between the first writes of `progress.json`."""
LONGEST_INTERVAL_S = 60.0
"""Longest time between two writes of `progress.json`, or of an interim `metrics.json`."""
SUMMARY_SHARE = 0.001
"""Largest share of the loop's time for interim summaries, whose cost grows with the run."""


class LiveProgress:
    """Reads the `steps` of rank 0, and has their progress written by `writer`. Times are readings of the
    monotonic clock in seconds."""

    def __init__(
        self,
        output: RunOutput,
        watch: AttemptWatch,
        config: Config,
        facts: RunFacts,
        writer: BackgroundWriter,
        steps: StepLog,
    ):
        self._run, self._attempt, self._watch = output.run, output.attempt, watch
        self._config, self._facts, self._writer, self._steps = config, facts, writer, steps
        self.sinks = Sinks(config.telemetry.sinks, output.attempt, writer)
        self._sent: dict[str, int] = {}
        """Newest step of each series that the sinks have."""
        self._progress_due = self._summary_due = 0.0
        self._samples_per_s: float | None = None

    def start(self, now: float) -> None:
        """The first step begins."""
        self._began, self.due = now, now + PROGRESS_EVERY_S
        self._rated = self._steps.closed

    def write(self, now: float, hardware: Mapping[str, float], final: Metrics | None = None) -> None:
        """Take the state after the newest step, and have the file written if it is due.

        The newest values of the steps' records are some steps back. `hardware` has the newest samples by
        their names in `Progress`. At the end, the rate of `final`, the summary of the run, replaces both
        rates in `progress.json`.
        """
        self.due = now + PROGRESS_EVERY_S
        log_, metrics, step = self._steps, self._facts.metrics, self._steps.step
        global_batch, steps = metrics["global_batch_size"], metrics["steps_total"]
        log_.collect()
        (before, before_s), (newest, newest_s) = self._rated, log_.closed
        if newest_s > before_s:
            self._rated = log_.closed
            self._samples_per_s = (newest - before) * global_batch / (newest_s - before_s)
        measured_s, rate = sum(log_.measured), self._samples_per_s
        line = {"lr": log_.lr, "memory_gib": peak_memory_bytes(log_.reductions.world.device) / 2**30}
        line |= {"samples_per_s": rate} if rate else {}
        self.sinks.send(step, line | {_scalar_name(name): value for name, value in hardware.items()})
        for name, series in log_.series.items():
            if name in OF_SPEED or series.newest is None:
                continue
            at, value = series.newest
            line |= {"loss_step": at, "loss": value} if name == "loss" else {name: value}
            if self._sent.get(name) != at:
                self.sinks.send(at, {"loss/train" if name == "loss" else name: value})
            self._sent[name] = at
        if final is None and now < self._progress_due:
            return
        self._progress_due = now + growing_interval(PROGRESS_EVERY_S, LONGEST_INTERVAL_S, now - self._began)
        mean = len(log_.series["step_s"]) * global_batch / measured_s if measured_s else None
        progress = Progress(
            attempt=self._attempt.number,
            step=step,
            steps=steps,
            emulated=self._config.emulated,
            samples_per_s=final.samples_per_s if final else rate,
            mean_samples_per_s=final.samples_per_s if final else mean,
            loss=line.get("loss"),
            eta_s=max(0, steps - step) * global_batch / rate if rate else None,
            updated=time.time(),
            **hardware,
        )
        if dataset := metrics["dataset"]:
            line["epoch"] = step * global_batch / dataset.train_samples
        self._submit(self._run.progress, progress, {"step": step, "steps": steps, **line})

    def write_summary_if_due(self, now: float, summary: Callable[[], Metrics]) -> None:
        """If it is due, have an interim `metrics.json` written, and the composition of a step sent to the
        sinks."""
        if now < self._summary_due:
            return
        began_s = time.thread_time()
        metrics = summary()
        self._submit(self._run.metrics, metrics)
        cost_s = (time.thread_time() - began_s) / SUMMARY_SHARE
        every_s = growing_interval(
            self._config.telemetry.flush_every_s, LONGEST_INTERVAL_S, now - self._began
        )
        self._summary_due = now + max(every_s, cost_s)
        self.sinks.send(metrics.steps, {f"step/{name}": value for name, value in metrics.composition.items()})

    def _submit(self, path: Path, record: Record, line: Mapping[str, float] | None = None) -> None:
        """Have a file written, and a log line after it."""
        text = json_text(record)  # here, as in `JsonLinesWriter`
        self._writer.submit(path, partial(self._write, path, text, line))

    def _write(self, path: Path, text: str, line: Mapping[str, float] | None) -> None:
        if self._watch.superseded() is not None:
            return  # the next stop agreement ends this attempt
        with drop_if_disk_full():
            write_text(path, text, durable=False)
        if line:
            log.info("step", **line)


def _scalar_name(name: str) -> str:
    """`gpu/power_w` for `gpu_power_w` of `Progress`; fields of the processes are below `host/`."""
    return name.replace("gpu_", "gpu/", 1) if name.startswith("gpu_") else f"host/{name}"
