"""What records a run on one rank: the interface of the training loop, and when files are written.

Every step costs a few clock readings and two list appends (`step_done`). All else happens between steps:

- every `train.log_every` steps or a second, all ranks reduce their losses and compare their communication
- every second, rank 0 takes values for the sinks; a log line, `progress.json` and an interim `metrics.json`
  are written at intervals that grow with the run (`disttrain.telemetry.live_progress`)
- every `telemetry.flush_every_s` seconds, step records are written

A thread writes the files. The loop waits for it when a checkpoint is taken and at the end.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal, get_args

from torch import nn

from disttrain.checkpoint.resume import ResumeSource
from disttrain.checkpoint.share import State
from disttrain.checkpoint.state import OWN, RANK0, decode_json, encode_json
from disttrain.config.config_tree import Config
from disttrain.models.hooks import hooks_of
from disttrain.records.exit_causes import StopCause
from disttrain.records.heartbeat import SCRIPT_TIMEOUT_VARIABLE, Phase
from disttrain.records.json_files import write_json
from disttrain.records.metrics import EvalPoint, GradNormPoint, LossPoint, Metrics, RatioPoint
from disttrain.records.shared_folder import AttemptWatch
from disttrain.runtime import log
from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.runtime.process_group import World
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry import summary
from disttrain.telemetry.background_writer import BackgroundWriter
from disttrain.telemetry.facts import RunFacts
from disttrain.telemetry.live_progress import LiveProgress
from disttrain.telemetry.network import write_network
from disttrain.telemetry.node_sampling import NodeTelemetry
from disttrain.telemetry.profiled.profiled_steps import ProfiledSteps
from disttrain.telemetry.reductions import Reductions
from disttrain.telemetry.step_clock import COMMUNICATION, StepClock, control_sync, make_clock
from disttrain.telemetry.step_log import COMM_SPLIT, StepLog
from disttrain.telemetry.steps import StepResult
from disttrain.telemetry.summary import RankSummary

REDUCE_EVERY_S = 1.0
"""Intended seconds between two reductions, as far as `MOST_STEPS` permits."""
MOST_STEPS = 100
"""Largest number of steps between two reductions if `train.log_every` is smaller: steps may become slower."""
Status = Literal["running", "completed", "stopped", "failed"]


class Recorder:
    """Records the steps of a run. Built after the model."""

    def __init__(self, output: RunOutput, world: World, config: Config, facts: RunFacts) -> None:
        self.world, self.config, self.facts = world, config, facts
        self.run, self.attempt = output.run, output.attempt
        self.metrics_fields = dict(facts.metrics)
        """Fields of `Metrics` that do not come from steps."""
        self.eval_history: list[EvalPoint] = []
        self.origin: ResumeSource
        """The checkpoint of `load_state_dict`."""
        self.clock = make_clock(world.device)
        self._comm_reason = facts.communication.reason
        communication = facts.communication if facts.communication.method else None
        self.timed_world = (
            replace(world, waiting=lambda: control_sync(self.clock)) if communication else world
        )
        """The world for collectives within a step, which are timed as control synchronisation."""
        self.profiled = ProfiledSteps(config, self.attempt, world, facts)
        self.writer = BackgroundWriter()
        self.attempt_watch = AttemptWatch(self.attempt)
        self.steps = StepLog(
            JsonLinesWriter(self.attempt.steps(world.rank), self.writer.submit),
            self.clock, Reductions(self.timed_world), communication,
            samples_per_step=facts.metrics["local_batch_size"] * facts.metrics["accumulation"],
            warmup_steps=config.telemetry.warmup_steps,
            profiled=self.profiled.steps,
            full_records=config.telemetry.full_records,
        )  # fmt: skip
        self._node = NodeTelemetry(self.attempt, world, config.telemetry)
        self._reduce_every = config.train.log_every
        self._seconds_before = 0.0  # of earlier attempts
        self._finished = False
        self._began = time.monotonic()
        self._flush_due = self._began + config.telemetry.flush_every_s
        self._progress: LiveProgress | None = None
        if world.rank == 0:
            self._progress = LiveProgress(output, self.attempt_watch, config, facts, self.writer, self.steps)

    # The training loop calls these, in this order

    def start(self) -> None:
        """Collective: the first step begins now."""
        self._node.start(self.clock.start, lambda: self.steps.step >= self.steps.warm_step)
        self._began = time.monotonic()
        if self._progress:
            self._progress.start(self._began)
        self.clock.start()

    def step_done(self, result: StepResult, *, loss_recorded: bool = True) -> None:
        """Close the optimizer step of `result`. Without `loss_recorded`, its loss is NaN because the loop
        recorded none."""
        step = result.step
        self._comm_reason = self._comm_reason or result.comm_reason
        self.steps.record(result, loss_recorded=loss_recorded)
        self.clock.end_step()
        if step == self.steps.warm_step:
            self._node.warmed_up()
        if step in self.profiled.steps:
            # a trace takes longer to write than a step may last
            with heartbeat.within("finish"), self.outside_steps():
                self.profiled.step_done(step)
        if step % self._reduce_every == 0:
            self.steps.reduce()
        now = time.monotonic()
        if now >= self._flush_due:
            self._flush(now)
        if self._progress and now >= self._progress.due:
            self._progress.write(now, self._node.live())

    @contextmanager
    def outside_steps(self) -> Iterator[None]:
        """Time within belongs to no step; the next step begins at the end."""
        with self._node.outside_steps():
            yield
        self.clock.start()

    def evaluated(self, point: EvalPoint) -> None:
        """Take a validation result."""
        self.eval_history.append(point)
        log.info("validation", step=point.step, loss=point.loss, **point.metrics)
        if self._progress:
            metrics = {f"valid/{name}": value for name, value in point.metrics.items()}
            self._progress.sinks.send(point.step, {"loss/valid": point.loss, **metrics})

    def report_of(self, model: nn.Module) -> None:
        """Collective: take the largest value over ranks of each figure that the model measured itself."""
        for name, value in hooks_of(model).report().items():
            if not isinstance(value, str):
                self.metrics_fields[name] = self.world.all_reduce_max([value])[0]

    def set_pace(self, step_s: float) -> None:
        """Take the seconds of a step (0: unknown): the same on all ranks, and after the same step.

        Where steps are shorter than `REDUCE_EVERY_S`, a reduction follows a multiple of `train.log_every`."""
        every = self.config.train.log_every
        wanted = math.ceil(REDUCE_EVERY_S / step_s / every) if step_s > 0 else 1
        self._reduce_every = every * max(1, min(wanted, MOST_STEPS // every))

    def current(self) -> Metrics:
        """Collective: the metrics so far, over all ranks, outside of steps."""
        self.steps.reduce(wait=True)
        return self._metrics("running", self.world.all_gather_object(self._rank_summary()))

    def finish(self, stop_cause: StopCause | None = None) -> Metrics:
        """Collective: write all records and the final `metrics.json`; the metrics of rank 0, on all ranks."""
        self.steps.reduce(wait=True)
        self._node.close()
        ranks = self.world.all_gather_object(self._rank_summary())
        metrics = self._metrics("stopped" if stop_cause else "completed", ranks, stop_cause)
        metrics = self.world.of_rank0(metrics)
        if self._progress:
            self._progress.write(time.monotonic(), self._node.live(), metrics)
        self._write_final(metrics, ranks)
        self._finished = True
        self._close()
        return metrics

    def abort(self) -> None:
        """Write what this rank measured in a run that fails, without waiting for ranks or the device. Raises
        nothing, so that the first error is the one that is reported."""
        try:
            self.steps.abandon()
            if self._progress and not self._finished:
                ranks = [self._rank_summary()]
                self._write_final(self._metrics("failed", ranks), ranks)
            self._close()
        except Exception as error:
            log.error("the last records are lost", kind=type(error).__name__, error=str(error))

    def skipped_steps(self, wait: bool = False) -> tuple[int, int]:
        """(skipped steps in a row, newest skipped step; 0: none in this attempt) of the steps that the device
        has finished; with `wait`, of all."""
        self.steps.collect(self.steps.unread if wait else 0)
        return self.steps.skipped_in_a_row, self.steps.last_skipped

    # Checkpoints

    def state_dict(self) -> State:
        """Collective: the state that a resumed run needs. Afterwards the record of each step done is in this
        attempt's file, or in the state where steps share a record that is not complete."""
        self.steps.reduce(wait=True)
        self.steps.lines.flush()
        self.writer.wait()
        run, own = self.steps.state()
        state = {OWN + "steps": encode_json(own)}
        if self._progress:
            run |= {"evaluations": [point.model_dump() for point in self.eval_history]}
            state[RANK0 + "run"] = encode_json(run | {"seconds": self._seconds()})
            state |= {RANK0 + name: series.tensor() for name, series in self.steps.series.items()}
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue after the step of `origin`. Without a state of this rank, another number of ranks measured
        the steps before: figures of speed then cover the steps from here on."""
        series = {name.removeprefix(RANK0): each for name, each in state.items() if name.startswith(RANK0)}
        run = decode_json(series.pop("run")) if series else {}
        if run:
            self.eval_history = [EvalPoint.model_validate(point) for point in run.pop("evaluations")]
            self._seconds_before = run.pop("seconds")
        own = decode_json(state[OWN + "steps"]) if OWN + "steps" in state else {}
        self.steps.resume(self.origin.manifest.step, run, own, series, same_run=self.origin.same_run)

    # Between steps

    def _flush(self, now: float) -> None:
        """Have the step records written and, on rank 0 if it is due, an interim `metrics.json`."""
        self._flush_due = now + self.config.telemetry.flush_every_s
        self.steps.collect()
        self.steps.lines.flush()
        if self._progress:
            self._progress.write_summary_if_due(now, lambda: self._metrics("running", [self._rank_summary()]))

    def _write_final(self, metrics: Metrics, ranks: list[RankSummary]) -> None:
        self.writer.wait()  # for an interim `metrics.json`
        if self._progress and self.attempt.superseded() is None:
            write_json(self.run.metrics, metrics)
            if metrics.world_size > 1:
                write_network(self.attempt, metrics.backend, metrics.ranks_per_node, ranks)

    def _close(self) -> None:
        self._node.close()
        self.steps.close()
        if self._progress:
            self._progress.sinks.close()
        self.writer.wait()

    # The summary

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._began

    def _rank_summary(self) -> RankSummary:
        return RankSummary.of(self.steps.measured, self._node, self.world)

    def _metrics(
        self, status: Status, ranks: list[RankSummary], stop_cause: StopCause | None = None
    ) -> Metrics:
        """The summary over `ranks`: all at the end, rank 0 alone while the run goes on."""
        log_, facts, fields = self.steps, self.facts, dict(self.metrics_fields)
        series, count, comm = log_.series, len(log_.series["step_s"]), self.profiled.summary()
        comm_known = fields["comm_method"] is not None and not log_.comm_unmeasured
        ratios = series["ratio"].points(RatioPoint, "ratio")
        phases = summary.phases([rank.measured for rank in ranks], count, comm_known)
        measured_s, seconds = phases["measured_s"], self._seconds()
        if not comm_known:
            fields["comm_method"] = None
        usage, usage_reasons = summary.usage([rank.usage for rank in ranks if rank.usage], self._node.fields)
        metrics = Metrics(
            **fields,
            **phases,
            **summary.rates(
                count * fields["global_batch_size"] / measured_s if measured_s else None,
                self.world.size, self._node.devices, facts,
            ),
            **summary.memory(ranks),
            **usage,
            status=status,
            stop_cause=stop_cause,
            attempt=self.attempt.number,
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
            steps=log_.step,
            seconds_total=seconds,
            training_time=seconds,
            gap_s=log_.gap_s,
            warmup_steps=sum(last - first + 1 for first, last in log_.left_out) - log_.profiled_after_warmup,
            sampled_steps=log_.profiled_after_warmup,
            left_out=log_.left_out,
            measured_steps=count,
            step_time=summary.step_time(series["step_s"].values),
            comm=comm,
            communication_time_per_step=comm.total_s if comm else None,
            comm_split=COMM_SPLIT if comm_known else None,
            communication_computation_history=ratios if comm_known else [],
            skipped_steps=log_.skipped_total,
            grad_norm_history=series["grad_norm"].points(GradNormPoint, "grad_norm"),
            loss_history=series["loss"].points(LossPoint, "loss"),
            eval_history=self.eval_history,
        )  # fmt: skip
        reasons = summary.null_reasons(
            metrics, facts, comm=self._comm_reason,
            requested=self.config.telemetry.profiled_steps, planned=len(self.profiled.for_collectives),
        )  # fmt: skip
        return metrics.model_copy(update={"null_reasons": reasons | usage_reasons})


class ScriptWatch:
    """Writes the heartbeats of one rank of a script, if its run has a limit for a step.

    No limit suits the longest step, validation and save of every script, so without
    `job.script_step_timeout_s` the agent does not watch it. The watch holds from the end of the first step to
    the end of the last one, `steps`: the script may do anything before and after.
    """

    def __init__(self, rank: int, clock: StepClock, steps: int) -> None:
        limit = os.environ.get(SCRIPT_TIMEOUT_VARIABLE)
        self._limit_s = float(limit or 0)
        self._rank, self._clock, self._steps = rank, clock, steps
        self._began = False

    def step_done(self, step: int) -> None:
        """Step `step` is done, and the next one begins."""
        if not self._limit_s:
            return
        if step >= self._steps:
            self.close()
        elif self._began:
            heartbeat.step_done(step)
        else:
            self._began = True
            heartbeat.start(self._rank, dict.fromkeys(get_args(Phase), self._limit_s), step)
            heartbeat.communicates_while(lambda: self._clock.phase in COMMUNICATION)
            heartbeat.enter("step")

    def close(self) -> None:
        """The training has ended: the agent does not watch the rank any more."""
        if self._began:
            heartbeat.stop()
