"""The telemetry of one run on one rank: what the loop calls, and when anything is written.

Every step costs a few clock readings and two list appends (`step_done`). All else happens between steps:
the reduction of losses every `log_every` steps, which all ranks do together; and by each rank's own
clock, the log and live state once a second, files and the interval summary every `flush_every_s` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import torch

from disttrain.checkpoint.state_tensors import decode_json, encode_json
from disttrain.checkpoint.storage import State
from disttrain.config.sections import Config
from disttrain.records.causes import StopCause
from disttrain.records.json_files import write_json
from disttrain.records.metrics import EvalPoint, LossPoint, Metrics, RatioPoint
from disttrain.records.progress import Progress
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from disttrain.step_result import StepResult
from disttrain.telemetry import comm_split, null_reasons, sinks, step_series, summary, throughput
from disttrain.telemetry.global_loss import GlobalLoss
from disttrain.telemetry.hardware.node import NodeTelemetry
from disttrain.telemetry.json_lines import drop_if_disk_full, is_disk_full
from disttrain.telemetry.profiled_steps import ProfiledSteps
from disttrain.telemetry.rank_summary import RankSummary, rank_summary
from disttrain.telemetry.run_metadata import RunMetadata
from disttrain.telemetry.step_clock import make_clock
from disttrain.telemetry.step_log import StepLog
from disttrain.telemetry.step_series import StepSeries
from disttrain.telemetry.timed_world import TimedWorld

RECORDS_AT_ONCE = 256
"""Step records written in one go: many, because that is cheaper, but not so many that a step stalls."""
FLUSH_SHARE = 0.001
"""Largest share of the time that interval summaries may take: they grow with the run, so they space out."""
PROGRESS_EVERY_S = 1.0
"""How often rank 0 says how it goes, in the log, the sinks and `progress.json`: as often as people look."""


@dataclass
class RunTelemetry:
    """Built once the model stands; `facts` are the fields of `Metrics` that are known by then, `background`
    what else is."""

    run: RunDir
    attempt: Attempt
    world: World
    config: Config
    facts: dict[str, Any]
    background: RunMetadata = field(default_factory=RunMetadata)
    eval_history: list[EvalPoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan_samples = self.facts["local_batch_size"] * self.facts["accumulation"]
        self.clock = make_clock(self.world.device)
        self._measures_comm = self.facts["comm_method"] is not None
        if self._measures_comm:
            self.facts["comm_split"] = comm_split.METHOD
        self.timed_world = (
            TimedWorld(**vars(self.world), clock=self.clock) if self._measures_comm else self.world
        )
        """The world, for what ranks do together within a step."""
        self._recorder = StepLog(
            self.attempt.steps(self.world.rank),
            self.clock,
            samples_per_step=plan_samples,
            warmup_steps=self.config.telemetry.warmup_steps,
            split=comm_split.CommSplit(self.timed_world) if self._measures_comm else None,
            full_records=self.config.telemetry.full_records,
        )
        self._steps_total: int = self.facts["steps_total"]
        samples = self.background.samples_comm
        self.profiled = ProfiledSteps(
            self.config, self.attempt, self.world, samples=samples, steps=self._steps_total
        )
        self._recorder.profiled = self.profiled.steps
        self._global_loss = GlobalLoss(self.timed_world)
        self._losses = StepSeries()  # on rank 0
        self._sinks = (
            [sinks.open_sink(name, self.attempt) for name in self.config.telemetry.sinks]
            if self.is_rank0
            else []
        )
        self._log_every = self.config.train.log_every
        self._step = 0
        self._first_step = 0  # done before this attempt
        self._left_out_before: list[tuple[int, int]] = []  # of the figures, by earlier attempts
        self._sampled_before = 0
        self._seconds_before = 0.0
        self._lr = 0.0
        self._began = self._told = time.monotonic()
        self._told_step = 0
        self._told_loss: int | None = None  # of which step
        self._flush_due = self._began + self.config.telemetry.flush_every_s
        self._rate: float | None = None
        self._node = NodeTelemetry(self.attempt, self.world, self.config.telemetry.gpu_every_s)

    @property
    def is_rank0(self) -> bool:
        return self.world.rank == 0

    def state(self) -> tuple[State, State]:
        """What a resumed run goes on from: for all (on rank 0, else empty), and of this rank alone.

        All ranks call this together. Of each step done the record is then in the file of this attempt or, of
        those that share the next line there, in the state.
        """
        self._reduce(wait=True)  # the sums that travel are of every step before this one
        self._recorder.flush()
        own = {"measured": torch.tensor(self._recorder.measured, dtype=torch.float64)}
        if (window := self._recorder.open_aggregate()) is not None:
            own["window"] = encode_json(window)
        if not self.is_rank0:
            return {}, own
        loss_steps, losses = self._losses.tensors()
        ratio_steps, ratios = self._recorder.ratios.tensors()
        return {
            "loss_steps": loss_steps,
            "losses": losses,
            "evaluations": encode_json([point.model_dump(mode="json") for point in self.eval_history]),
            "durations": step_series.as_tensor(self._recorder.durations),
            "left_out": encode_json(self._left_out()),
            "sampled": torch.tensor(self._sampled_before + len(self._sampled())),
            "ratio_steps": ratio_steps,
            "ratios": ratios,
            "seconds": torch.tensor(self._seconds(), dtype=torch.float64),
        }, own

    def resume(self, step: int, history: State, own: State, *, same_run: bool) -> None:
        """Go on after `step` from what `state` gave, in this run or in another one. Without `own`, another
        number of ranks measured the steps before: figures of speed are about the steps from here on."""
        self._step = self._first_step = self._told_step = step
        self._recorder.warm_step = step + self.config.telemetry.warmup_steps
        self._left_out_before = [(1, step)]
        if own:
            self._recorder.measured = own["measured"].tolist()
            if same_run and "window" in own:
                self._recorder.resume(decode_json(own["window"]))
        if not history:
            return
        self._losses.extend(history["loss_steps"], history["losses"])
        self.eval_history = [EvalPoint.model_validate(point) for point in decode_json(history["evaluations"])]
        self._seconds_before = history["seconds"].item()
        if own:
            step_series.extend(self._recorder.durations, history["durations"])
            self._left_out_before = [(first, last) for first, last in decode_json(history["left_out"])]
            self._sampled_before = int(history["sampled"].item())
            self._recorder.ratios.extend(history["ratio_steps"], history["ratios"])

    def start(self) -> None:
        """The first step begins now. All ranks call this together."""
        self._node.start(self.clock.start, lambda: self._step >= self._recorder.warm_step)
        self._began = self._told = time.monotonic()
        self.clock.start()

    def step_done(self, result: StepResult, comm_reason: str | None = None) -> None:
        """Close the optimizer step of `result`.

        `comm_reason` says why the clock does not know all of this step's communication, where that is so.
        """
        step, loss, lr = result.step, result.loss, result.lr
        self._recorder.record(step, loss, lr, comm_measured=comm_reason is None)
        if comm_reason is not None and self.background.comm_reason is None:
            self.background.comm_reason = comm_reason
        self._global_loss.add(step, loss)
        self._step, self._lr = step, lr
        self.clock.end_step()
        if step in self.profiled.steps:
            with self.outside_steps():
                self.profiled.step_done(step)
        if step % self._log_every == 0:
            self._reduce()
        now = time.monotonic()
        if now >= self._flush_due:
            self._flush()
        if now - self._told >= PROGRESS_EVERY_S and self.is_rank0:
            self._write_progress(now)

    @contextmanager
    def outside_steps(self) -> Iterator[None]:
        """What happens in here belongs to no step; the next step begins when it is over."""
        began = time.monotonic()
        with self._node.outside_steps():
            yield
        self._told += time.monotonic() - began  # the live rate is about steps, too
        self.clock.start()

    def evaluated(self, point: EvalPoint) -> None:
        """Take a validation result."""
        self.eval_history.append(point)
        log.info("validation", step=point.step, loss=point.loss, **point.metrics)
        values = {"loss/valid": point.loss, **{f"valid/{k}": v for k, v in point.metrics.items()}}
        self._send(point.step, {k: v for k, v in values.items() if v is not None})

    def checkpointed(self, committed_step: int | None, failed: int) -> None:
        """What the summary says of this attempt's checkpoints."""
        self.facts |= {"checkpoint_step": committed_step, "checkpoints_failed": failed}

    def finish(self, stop_cause: StopCause | None = None) -> Metrics:
        """Write everything, agree on the summary over ranks, and write the final `metrics.json`.

        All ranks call this together.
        """
        self._reduce(wait=True)
        self._node.close()
        totals = self.world.all_gather_object(self._totals())
        metrics = self._metrics("stopped" if stop_cause else "completed", totals, stop_cause)
        if self.is_rank0:
            self._write_progress(time.monotonic())
        self.profiled.finish(self._recorder.profiled_phases)
        if self.is_rank0 and self.attempt.superseded_by() is None:
            write_json(self.run.metrics, metrics.model_dump(mode="json"))
        self._close()
        return metrics

    def abort(self) -> None:
        """The run is failing: keep what this rank knows, without asking the others or waiting for the
        device. Raises nothing, so that what went wrong first is what is reported."""
        try:
            self._recorder.abandon()
            self.profiled.finish(self._recorder.profiled_phases)
            if self.is_rank0 and self.attempt.superseded_by() is None:
                write_json(
                    self.run.metrics, self._metrics("failed", [self._totals()]).model_dump(mode="json")
                )
            self._close()
        except Exception as error:
            log.error("the last records are lost", kind=type(error).__name__, error=str(error))

    def _reduce(self, wait: bool = False) -> None:
        """All ranks together: reduce the losses, compare the communication."""
        self._global_loss.reduce()
        if wait or self._measures_comm or self._recorder.unread >= RECORDS_AT_ONCE:
            self._recorder.split_comm(everything=wait)
        fresh = self._global_loss.ready(wait)
        if self.is_rank0:
            for step, loss in fresh:
                self._losses.add(step, loss)

    def _write_progress(self, now: float) -> None:
        """Say how it goes: a log line, scalars, `progress.json`."""
        if now > self._told and self._step > self._told_step:
            self._rate = (self._step - self._told_step) * self.facts["global_batch_size"] / (now - self._told)
        self._told, self._told_step = now, self._step
        if self.attempt.superseded_by() is not None:
            return  # the next meeting of the ranks ends this attempt
        left = (self._steps_total - self._step) * self.facts["global_batch_size"]
        usage = self._node.live()
        newest = self._losses.newest
        progress = Progress(
            attempt=self.attempt.number,
            step=self._step,
            steps=self._steps_total,
            emulated=self.config.emulated,
            samples_per_s=self._rate,
            loss=newest[1] if newest else None,
            eta_s=left / self._rate if self._rate else None,
            updated=time.time(),
            **usage,
        )
        with drop_if_disk_full():
            write_json(self.run.progress, progress.model_dump(mode="json"), durable=False)
        live = {"lr": self._lr} | ({"samples_per_s": self._rate} if self._rate else {})
        self._send(self._step, live | {_scalar(name): value for name, value in usage.items()})
        if newest:  # the newest loss that all ranks have agreed on, up to `log_every` steps back
            step, loss = newest
            if step != self._told_loss:
                self._send(step, {"loss/train": loss})
            self._told_loss = step
            live |= {"loss": loss, "loss_step": step}
        log.info("step", step=self._step, steps=self._steps_total, **live)

    def _flush(self) -> None:
        self._recorder.collect()
        self._recorder.flush()
        began = time.monotonic()
        if self.is_rank0 and self.attempt.superseded_by() is None:
            metrics = self._metrics("running", [self._totals()])
            with drop_if_disk_full():
                write_json(self.run.metrics, metrics.model_dump(mode="json"), durable=False)
            self._send(self._step, {f"step/{k}": v for k, v in metrics.composition.items() if v is not None})
        now = time.monotonic()
        self._flush_due = now + max(self.config.telemetry.flush_every_s, (now - began) / FLUSH_SHARE)

    def _left_out(self) -> list[tuple[int, int]]:
        first, last = self._first_step + 1, min(self._recorder.warm_step, self._step)
        warm = [(first, last)] if last >= first else []
        return [*self._left_out_before, *warm, *((step, step) for step in self._sampled())]

    def _sampled(self) -> list[int]:
        """The steps of this attempt that were looked at closely so far, warm-up aside."""
        return sorted(step for step in self.profiled.steps if self._recorder.warm_step < step <= self._step)

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._began

    def _metrics(
        self,
        status: Literal["running", "completed", "stopped", "failed"],
        totals: list[RankSummary],
        stop_cause: StopCause | None = None,
    ) -> Metrics:
        durations = self._recorder.durations
        steps = len(durations)
        measured_s = sum(sum(rank.measured) for rank in totals) / len(totals) if steps else None
        samples_per_s = steps * self.facts["global_batch_size"] / measured_s if measured_s else None
        left_out = self._left_out()
        sampled = self._sampled_before + len(self._sampled())
        comm = self.profiled.summary()
        facts, seconds = dict(self.facts), self._seconds()
        every_s, background = self.config.telemetry.gpu_every_s, self.background
        fields, reasons = throughput.of_run(
            facts, background, samples_per_s, self._node.devices, totals, every_s
        )
        measured = [rank.measured for rank in totals]
        comm_known = self._measures_comm and not self._recorder.comm_unmeasured
        if not comm_known:
            facts |= {"comm_method": None, "comm_split": None}
        metrics = Metrics(
            **facts,
            **fields,
            null_reasons=reasons,
            status=status,
            stop_cause=stop_cause,
            attempt=self.attempt.number,
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
            steps=self._step,
            seconds_total=seconds,
            training_time=seconds,
            warmup_steps=sum(last - first + 1 for first, last in left_out) - sampled,
            sampled_steps=sampled,
            left_out=left_out,
            measured_steps=steps,
            measured_s=measured_s,
            step_time=summary.step_time(durations),
            composition=summary.composition(measured, steps, comm_known),
            comm=comm,
            communication_time_per_step=comm.total_s if comm else None,
            **summary.communication(measured, comm_known),
            communication_computation_history=[
                RatioPoint(step=step, ratio=ratio)
                for step, ratio in (self._recorder.ratios.thinned() if comm_known else [])
            ],
            peak_memory_bytes=max(rank.peak_memory_bytes for rank in totals),
            loss_history=[LossPoint(step=step, loss=loss) for step, loss in self._losses.thinned()],
            eval_history=self.eval_history,
        )
        sampling = null_reasons.Sampling(
            asked=self.config.telemetry.profiled_steps,
            planned=len(self.profiled.sampled),
            taken=sum(self._first_step < step <= self._step for step in self.profiled.sampled),
        )
        reasons = null_reasons.reasons(
            metrics, sampling, late=background.late_reason, comm=background.comm_reason
        )
        return metrics.model_copy(update={"null_reasons": reasons})

    def _totals(self) -> RankSummary:
        return rank_summary(self._recorder.measured, self._node.device, self.world, self._node.accumulated())

    def _send(self, step: int, values: dict[str, float]) -> None:
        for sink in self._sinks[:]:
            try:
                sink.scalars(step, values)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                log.error("no room on the disk: a sink ends", sink=type(sink).__module__)
                self._sinks.remove(sink)

    def _close(self) -> None:
        self._node.close()
        self._recorder.close()
        for sink in self._sinks:
            with drop_if_disk_full():
                sink.close()
        self._sinks = []


def _scalar(name: str) -> str:
    """`gpu_power_w` of `Progress` is `gpu/power_w` in the sinks, and what is not a GPU's is the host's."""
    return name.replace("gpu_", "gpu/", 1) if name.startswith("gpu_") else f"host/{name}"
