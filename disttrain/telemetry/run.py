"""The telemetry of one run on one rank: the interface of the training loop, and when files are written.

Every step costs a few clock readings and two list appends (`step_done`). All else happens between steps:

- every `train.log_every` steps or a second, all ranks reduce their losses and compare their communication
- every second, rank 0 takes values for the sinks; a log line, `progress.json` and an interim `metrics.json`
  are written at intervals that grow with the run (`disttrain.telemetry.live_progress`)
- every `telemetry.flush_every_s` seconds, step records are written

A thread writes the files. The loop waits for it when a checkpoint is taken and at the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import torch
from torch import Tensor

from disttrain.config.config_tree import Config
from disttrain.records.exit_causes import StopCause
from disttrain.records.json_files import json_text, write_text
from disttrain.records.metrics import EvalPoint, LossPoint, Metrics, RatioPoint
from disttrain.records.shared_folder import AttemptWatch
from disttrain.runtime import heartbeat, log
from disttrain.runtime.json_tensor import decode_json, encode_json
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry import comm_split, null_reasons, step_series, summary, throughput
from disttrain.telemetry.background_writer import BackgroundJsonLines, BackgroundWriter
from disttrain.telemetry.global_loss import GlobalLoss
from disttrain.telemetry.gradient_log import SkippedSteps
from disttrain.telemetry.left_out_steps import LeftOutSteps
from disttrain.telemetry.live_progress import LiveProgress
from disttrain.telemetry.network import network_record
from disttrain.telemetry.node_sampling import NodeTelemetry
from disttrain.telemetry.profiled.profiled_steps import ProfiledSteps
from disttrain.telemetry.rank_summary import RankSummary, rank_summary
from disttrain.telemetry.reduction_pace import ReductionPace
from disttrain.telemetry.run_metadata import RunMetadata
from disttrain.telemetry.step_clock import PhaseSeconds, make_clock
from disttrain.telemetry.step_records import StepLog
from disttrain.telemetry.step_result import StepResult
from disttrain.telemetry.step_series import StepSeries
from disttrain.telemetry.timed_world import TimedWorld

RECORDS_AT_ONCE = 256
"""Steps read from the clock at once. A larger batch costs less per step, and stalls one step longer."""
FLUSH_SHARE = 0.001
"""Largest share of the loop's time for interim summaries, whose cost grows with the run. It is wall time,
which a loaded machine stretches as it stretches the steps; the smaller one of the newest two counts, so that
one summary in which the process was suspended does not."""
Status = Literal["running", "completed", "stopped", "failed"]


@dataclass
class RunTelemetry:
    """Built after the model. `metrics_fields` are the fields of `Metrics` that are constant over the run;
    `metadata` has other constants that figures and null reasons need."""

    output: RunOutput
    world: World
    config: Config
    metrics_fields: dict[str, Any]
    metadata: RunMetadata = field(default_factory=RunMetadata)
    eval_history: list[EvalPoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run, self.attempt = self.output.run, self.output.attempt
        settings, metrics_fields = self.config.telemetry, self.metrics_fields
        self.clock = make_clock(self.world.device)
        self._measures_comm = metrics_fields["comm_method"] is not None
        if self._measures_comm:
            metrics_fields["comm_split"] = comm_split.METHOD
        timed = TimedWorld(**vars(self.world), clock=self.clock)
        self.timed_world = timed if self._measures_comm else self.world
        """The world for collectives within a step."""
        groups = self.metadata.comm_groups
        self.profiled = ProfiledSteps(
            self.config, self.attempt, self.world,
            times_collectives=self.metadata.profiles_collectives,
            steps=metrics_fields["steps_total"],
            group_sizes={name: group.size() for name, group in groups.items()},
        )  # fmt: skip
        self.writer = BackgroundWriter()
        self.attempt_watch = AttemptWatch(self.attempt)
        self._recorder = StepLog(
            BackgroundJsonLines(self.attempt.steps(self.world.rank), self.writer),
            self.clock,
            samples_per_step=metrics_fields["local_batch_size"] * metrics_fields["accumulation"],
            warmup_steps=settings.warmup_steps,
            split=comm_split.CommSplit(self.timed_world, groups) if self._measures_comm else None,
            full_records=settings.full_records,
            compares_passes=self.metadata.compares_passes,
        )
        self._recorder.profiled = self.profiled.steps
        self._losses = StepSeries()  # on rank 0
        self._global_loss = GlobalLoss(self.timed_world, self._losses)
        self.pace = ReductionPace(self.config.train.log_every)
        self._node = NodeTelemetry(self.attempt, self.world, settings)
        self._step, self._lr = 0, 0.0
        self._began = time.monotonic()
        self._flush_due = self._began + settings.flush_every_s
        self._summary_due = self._began
        self._summary_s = math.inf
        self._progress: LiveProgress | None = None
        if self.is_rank0:
            given = (self.run, self.attempt, self.attempt_watch, self.config, metrics_fields, self._began)
            self._progress = LiveProgress(*given, self.writer)
        self._seconds_before = 0.0  # of earlier attempts
        self._left_out = LeftOutSteps(settings.warmup_steps, self.profiled.steps)

    @property
    def is_rank0(self) -> bool:
        return self.world.rank == 0

    # The training loop calls these, in this order
    def start(self) -> None:
        """The first step begins now. All ranks together."""
        self._node.start(self.clock.start, lambda: self._step >= self._left_out.warm_step)
        self._began = time.monotonic()
        if self._progress:
            self._progress.restart(self._step, self._began)
        self.clock.start()

    def step_done(self, result: StepResult, *, loss_recorded: bool = True) -> None:
        """Close the optimizer step of `result`. Without `loss_recorded`, the loss is NaN because the loop
        recorded none."""
        step = result.step
        if self._step == self._left_out.start:
            self.output.replace_finished()
        self._recorder.record(result)
        if self.metadata.exposed_comm_reason is None:
            self.metadata.exposed_comm_reason = result.exposed_comm_reason
        self._global_loss.add(step, result.loss, loss_recorded)
        self._step, self._lr = step, result.lr
        self.clock.end_step()
        if step == self._left_out.warm_step:
            self._node.warmed_up()
        if step in self.profiled.steps:
            # a trace takes longer to write than a step may last
            with heartbeat.within("finish"), self.outside_steps():
                self.profiled.step_done(step)
        if self.pace.due(step):
            self._reduce()
        now = time.monotonic()
        if now >= self._flush_due:
            self._flush()
        if self._progress and self._progress.is_due(now):
            self._write_progress(now)

    @contextmanager
    def outside_steps(self) -> Iterator[None]:
        """Time within belongs to no step; the next step begins at the end."""
        began = time.monotonic()
        with self._node.outside_steps():
            yield
        if self._progress:
            self._progress.exclude(time.monotonic() - began)
        self.clock.start()

    def evaluated(self, point: EvalPoint) -> None:
        """Take a validation result."""
        self.eval_history.append(point)
        log.info("validation", step=point.step, loss=point.loss, **point.metrics)
        if self._progress:
            metrics = {f"valid/{name}": value for name, value in point.metrics.items()}
            self._progress.send(point.step, {"loss/valid": point.loss, **metrics})

    def checkpointed(self, committed_step: int | None, failed: int) -> None:
        """Take the newest committed checkpoint and the number of failed ones of this attempt."""
        self.metrics_fields |= {"checkpoint_step": committed_step, "checkpoints_failed": failed}

    def current(self) -> Metrics:
        """The metrics so far, over all ranks, outside of steps. All ranks together."""
        self._reduce(wait=True)
        return self._metrics("running", self.world.all_gather_object(self._rank_summary()))

    def finish(self, stop_cause: StopCause | None = None) -> Metrics:
        """Write all records and the final `metrics.json`. All ranks together."""
        if stop_cause is None:
            self.output.replace_finished()
        self._reduce(wait=True)
        self._node.close()
        ranks = self.world.all_gather_object(self._rank_summary())
        metrics = self._metrics("stopped" if stop_cause else "completed", ranks, stop_cause)
        if not self.output.keeps_finished:
            self._write_progress(time.monotonic(), metrics)
        self._write_final(metrics, ranks)
        self._close()
        return metrics

    def abort(self) -> None:
        """Write what this rank measured in a run that fails, without waiting for ranks or the device. Raises
        nothing, so that the first error is the one that is reported."""
        try:
            self._recorder.abandon()
            self._global_loss.collect()
            if self.is_rank0:
                ranks = [self._rank_summary()]
                self._write_final(self._metrics("failed", ranks), ranks)
            self._close()
        except Exception as error:
            log.error("the last records are lost", kind=type(error).__name__, error=str(error))

    def skipped_steps(self, wait: bool = False) -> SkippedSteps:
        """Skipped steps among those that the device has finished; with `wait`, among all."""
        self._recorder.collect(self._recorder.unread if wait else 0)
        return self._recorder.gradients.skipped

    # Checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The state that a resumed run needs: of all ranks (on rank 0, else empty), and of this rank alone.

        All ranks together. Afterwards the record of each step done is in this attempt's file, or in the state
        where steps share a record that is not complete.
        """
        self._reduce(wait=True)
        self._recorder.flush()
        self.writer.wait()
        own = {"measured": torch.tensor(self._recorder.measured, dtype=torch.float64)}
        if (aggregate := self._recorder.open_aggregate()) is not None:
            own["window"] = encode_json(aggregate)
        if not self.is_rank0:
            return {}, own
        loss_steps, losses = self._losses.tensors()
        ratio_steps, ratios = self._recorder.ratios.tensors()
        return {
            "loss_steps": loss_steps,
            "losses": losses,
            "evaluations": encode_json([point.model_dump(mode="json") for point in self.eval_history]),
            "durations": step_series.as_tensor(self._recorder.durations),
            "left_out": encode_json(self._left_out.ranges(self._step)),
            "sampled": torch.tensor(self._left_out.profiled_count(self._step)),
            "ratio_steps": ratio_steps,
            "ratios": ratios,
            "seconds": torch.tensor([self._seconds(), self._recorder.gap_s], dtype=torch.float64),
            **self._recorder.gradients.tensors(),
        }, own

    def resume(
        self, step: int, history: dict[str, Tensor], own: dict[str, Tensor], *, same_run: bool
    ) -> None:
        """Continue after `step` from a `state`, of this run or of another one. Without `own`, another
        number of ranks measured the steps before: figures of speed then cover the steps from here on."""
        self._step = step
        self._left_out.resume(step)
        self._recorder.warm_step = self._left_out.warm_step
        if own:
            self._recorder.measured = own["measured"].tolist()
            if same_run and "window" in own:
                self._recorder.resume(decode_json(own["window"]))
        if not history:
            return
        self._losses.extend(history["loss_steps"], history["losses"])
        self._recorder.gradients.load(history)
        points = decode_json(history["evaluations"])
        self.eval_history = [EvalPoint.model_validate(point) for point in points]
        self._seconds_before, self._recorder.gap_s = history["seconds"].tolist()
        if own:
            step_series.extend(self._recorder.durations, history["durations"])
            ranges = [(first, last) for first, last in decode_json(history["left_out"])]
            self._left_out.extend(ranges, int(history["sampled"].item()))
            self._recorder.ratios.extend(history["ratio_steps"], history["ratios"])

    # Between steps

    def _reduce(self, wait: bool = False) -> None:
        """Reduce the losses and compare the communication. All ranks together."""
        self._global_loss.reduce(wait)
        if wait or self._measures_comm or self._recorder.unread >= RECORDS_AT_ONCE:
            self._recorder.split_comm(everything=wait)
        self._global_loss.collect(wait)

    def _write_progress(self, now: float, final: Metrics | None = None) -> None:
        if self._progress:
            mean = self._samples_per_s([self._recorder.measured])
            self._progress.write(
                self._step, now, self._lr, self._losses.newest, self._recorder.gradients.norms.newest,
                self._node.live(), mean, final,
            )  # fmt: skip

    def _flush(self) -> None:
        """Have the step records written and, on rank 0 if it is due, an interim `metrics.json`."""
        began = time.monotonic()
        self._flush_due = began + self.config.telemetry.flush_every_s
        self._recorder.collect()
        self._recorder.flush()
        if self._progress and began >= self._summary_due and self._progress.summary_is_due(began):
            started = time.monotonic()
            self._progress.write_summary(began, self._metrics("running", [self._rank_summary()]))
            now = time.monotonic()
            self._summary_due = now + min(now - started, self._summary_s) / FLUSH_SHARE
            self._summary_s = now - started

    def _write_final(self, metrics: Metrics, ranks: list[RankSummary]) -> None:
        self.writer.wait()  # for an interim `metrics.json`
        if self.is_rank0 and not self.output.keeps_finished and self.attempt.superseded() is None:
            write_text(self.run.metrics, json_text(metrics.model_dump(mode="json")))
            if metrics.world_size > 1:
                network_record.write(self.attempt, metrics.backend, metrics.ranks_per_node, ranks)

    def _close(self) -> None:
        self._node.close()
        self._recorder.close()
        if self._progress:
            self._progress.close()
        self.writer.close()

    # The summary

    def _samples_per_s(self, measured: Sequence[PhaseSeconds]) -> float | None:
        """Throughput over the measured steps, from the sums of one or more ranks; None without such steps."""
        measured_s = sum(map(sum, measured)) / len(measured)
        samples = len(self._recorder.durations) * self.metrics_fields["global_batch_size"]
        return samples / measured_s if measured_s else None

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._began

    def _rank_summary(self) -> RankSummary:
        return rank_summary(self._recorder.measured, self._node, self.world)

    def _metrics(
        self, status: Status, ranks: list[RankSummary], stop_cause: StopCause | None = None
    ) -> Metrics:
        """The summary over `ranks`: all at the end, rank 0 alone while the run goes on."""
        recorder, metadata = self._recorder, self.metadata
        steps, comm = len(recorder.durations), self.profiled.summary()
        left_out = self._left_out.ranges(self._step)
        profiled = self._left_out.profiled_count(self._step)
        measured = [rank.measured for rank in ranks]
        measured_s = sum(map(sum, measured)) / len(ranks) if steps else None
        samples_per_s = self._samples_per_s(measured)
        metrics_fields, seconds = dict(self.metrics_fields), self._seconds()
        fields, reasons = throughput.of_run(
            metrics_fields, metadata, samples_per_s, self._node.devices, ranks,
            self.config.telemetry.gpu_every_s, self._node.fields,
        )  # fmt: skip
        comm_known = self._measures_comm and not recorder.comm_unmeasured
        if not comm_known:
            metrics_fields |= {"comm_method": None, "comm_split": None}
        ratios = recorder.ratios.thinned() if comm_known else []
        metrics = Metrics(
            **metrics_fields,
            **fields,
            null_reasons=reasons,
            status=status,
            stop_cause=stop_cause,
            attempt=self.attempt.number,
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
            steps=self._step,
            seconds_total=seconds,
            training_time=seconds,
            gap_s=recorder.gap_s,
            warmup_steps=sum(last - first + 1 for first, last in left_out) - profiled,
            sampled_steps=profiled,
            left_out=left_out,
            measured_steps=steps,
            measured_s=measured_s,
            step_time=summary.step_time(recorder.durations),
            composition=summary.composition(measured, steps, comm_known),
            comm=comm,
            communication_time_per_step=comm.total_s if comm else None,
            **summary.communication(measured, comm_known),
            communication_computation_history=[RatioPoint(step=s, ratio=ratio) for s, ratio in ratios],
            peak_memory_bytes=max(rank.peak_memory_bytes for rank in ranks),
            skipped_steps=recorder.gradients.skipped.total,
            grad_norm_history=recorder.gradients.points(),
            loss_history=[LossPoint(step=step, loss=loss) for step, loss in self._losses.thinned()],
            eval_history=self.eval_history,
        )
        profiling = self.profiled.plan(self._left_out.start, self._step)
        late, comm_reason = metadata.emulation_late_reason, metadata.exposed_comm_reason
        reasons = null_reasons.reasons(
            metrics, profiling, late=late, comm=comm_reason, unprofiled=metadata.unprofiled_reason
        )
        return metrics.model_copy(update={"null_reasons": reasons})
