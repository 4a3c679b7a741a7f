"""One run: everything that it recorded, and whether it counts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analysis.read.attempts import RunAttempt, preflight_columns
from analysis.read.lines import Int32, Real
from analysis.read.samples import Kind, Samples, other_load
from analysis.read.steps import Floats, Steps
from disttrain.config.config_tree import config_fields
from disttrain.config.dotted_keys import flat_values, get_key
from disttrain.config.sections.base import is_excluded_from_key
from disttrain.records import gpu_hours
from disttrain.records.json_files import read_json_or_none
from disttrain.records.metrics import Metrics
from disttrain.records.node import NodeRecord
from disttrain.records.node_hardware import read_hardware
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import gpus_per_rank

_NOT_IN_KEY = {key for key, field in config_fields() if is_excluded_from_key(field)}
UNKNOWN = "unknown"
"""Value in an ingested run of a property that the table does not have."""


def value_at(item: Any, path: str) -> Any:
    """The attribute or the key of a dict at a dotted path; None without it."""
    for name in path.split("."):
        item = item.get(name) if isinstance(item, dict) else getattr(item, name, None)
    return item


class CurvePoint(msgspec.Struct, gc=False):
    """A point of one of the curves of metrics.json (`disttrain.records.metrics`)."""

    step: Int32
    loss: Real | None = None
    grad_norm: Real | None = None
    ratio: Real | None = None
    metrics: dict[str, Real | None] = {}
    elapsed_s: Real | None = None


class Shape(NamedTuple):
    """Nodes and ranks of a run."""

    nodes: int
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, eq=False)
class Run:
    """Everything that one run recorded, and whether it counts."""

    folder: RunDir
    record: RunRecord | None
    """`run.json`; None where it cannot be used."""
    metrics: Metrics | None
    """`metrics.json` over the chosen measured steps, without its curves; None where it cannot be used."""
    curves: Mapping[str, Sequence[CurvePoint]]
    """By name of `load.CURVES`."""
    steps: Steps
    samples: Mapping[Kind, Samples]
    attempts: tuple[RunAttempt, ...]
    usage: gpu_hours.RunGpuHours | None
    """GPU-hours and queue time of all starts; None where they are not on record."""
    reported: Mapping[str, float] | None
    """Figures in the `metrics.json` of a script of one's own without telemetry; None for other runs."""
    tags: str | None
    user_note: str | None
    state: str
    """As `status` shows it; from files alone planned, started, running, done, failed, ..."""
    included: bool
    """Finished and measured, so it counts in the figures."""
    note: str
    """Reason of exclusion, or a caveat; else empty."""
    starts: int
    """Attempts, as the scheduler counts them where it is asked."""
    problems: Sequence[str]
    """One line for each record or file that could not be read."""
    rejected: bool = False
    """Finished and measured, but left out for the warnings of its pre-flight."""

    def __str__(self) -> str:
        return self.folder.name

    @property
    def path(self) -> str:
        return str(self.folder.path)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def sweep(self) -> str:
        return self.folder.sweep

    @cached_property
    def shape(self) -> Shape | None:
        """The planned one without metrics; None where neither is known."""
        if self.metrics is not None:
            return Shape(self.metrics.nodes, self.metrics.ranks_per_node)
        nodes, gpus = (get_key(self.config, f"resources.{name}") for name in ("nodes", "gpus_per_node"))
        ranks = gpus and gpus // gpus_per_rank(self.config)
        return Shape(nodes, ranks) if nodes and ranks else None

    @property
    def devices(self) -> int | None:
        """GPUs, or processors in their place: ranks, or the GPUs of a node for `dp`."""
        if self.shape is None:
            return None
        on_cpu = self.metrics is not None and self.metrics.device == "cpu"
        return self.shape.world_size * (1 if on_cpu else gpus_per_rank(self.config))

    @cached_property
    def busy_share(self) -> float | None:
        """Share of the processors of a run on CPUs that other processes kept busy; None where it is unknown,
        as with loader processes, which are no ranks."""
        metrics = self.metrics
        if (
            metrics is None
            or metrics.device != "cpu"
            or not metrics.cpu_count
            or get_key(self.config, "data.workers")
        ):
            return None
        load = other_load(self.samples["process"])
        return None if load is None else load / metrics.cpu_count

    @property
    def packed(self) -> int:
        """Runs in its job, side by side on one node."""
        return self.record.runs_per_job if self.record else 1

    @property
    def one_machine(self) -> bool:
        """Whether its nodes are several parts of one machine."""
        return bool(self.attempts) and self.attempts[-1].one_machine

    @property
    def cluster(self) -> str | None:
        return self.attempts[-1].cluster if self.attempts else None

    @property
    def first_node(self) -> NodeRecord | None:
        """Hardware and software of the first node of the last attempt."""
        return self.attempts[-1].node_records[0] if self.attempts else None

    @property
    def emulated(self) -> bool:
        return bool(self.metrics and self.metrics.emulated)

    @property
    def ingested(self) -> str | None:
        """The table of step times of another program that the run was made of."""
        return self.record.ingested.source if self.record and self.record.ingested else None

    @property
    def code_hash(self) -> str | None:
        """Of the training program."""
        source = self.record and self.record.provenance
        return (source.command or source.code).hash if source else None

    @cached_property
    def hours_bound(self) -> float | None:
        """Most GPU-hours that one start may use: its time limit times its devices."""
        if self.record is None:
            return None
        planned = {"config": self.config, "cluster": self.record.cluster}
        device = self.metrics.device if self.metrics else None
        with contextlib.suppress(KeyError, TypeError):  # not planned, as for an ingested run
            unit = self.usage.unit if self.usage else gpu_hours.unit_of(planned, device)
            return gpu_hours.bound_hours(planned, unit)
        return None

    @cached_property
    def preflight(self) -> dict[str, Any]:
        """`preflight_columns` of all attempts."""
        return preflight_columns(self.attempts)

    @cached_property
    def final(self) -> dict[str, float | None]:
        """Losses at the end of the training: `train_loss`, and of the last validation `valid_loss` and other
        metrics by their names."""
        if self.metrics is None:
            return {}
        train, valid = (
            (self.curves[name] or [CurvePoint(0)])[-1] for name in ("loss_history", "eval_history")
        )
        return {**valid.metrics, "train_loss": train.loss, "valid_loss": valid.loss}

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config; empty without a usable `run.json`."""
        return self.record.config if self.record else {}

    @cached_property
    def compared(self) -> dict[str, Any]:
        """Known values of the config by dotted key, without those that change neither results nor speed."""
        values = flat_values(self.config)
        return {k: v for k, v in values.items() if k not in _NOT_IN_KEY and v not in (None, UNKNOWN)}

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Environment variables added to the job, of `env.json`; empty without it."""
        variables = (read_json_or_none(self.folder.env_json) or {}).get("variables")
        items = variables.items() if isinstance(variables, dict) else ()
        return {name: each.get("value") for name, each in items if isinstance(each, dict)}

    @property
    def step_s(self) -> float | None:
        """Mean over ranks and measured steps."""
        metrics = self.metrics
        return metrics.measured_s / metrics.measured_steps if metrics and metrics.measured_s else None

    @property
    def command(self) -> str | None:
        return " ".join(self.record.provenance.argv) if self.record else None

    @property
    def own_script(self) -> bool:
        """Without telemetry: no figures but those of its own metrics.json."""
        return self.reported is not None

    @cached_property
    def hardware(self) -> dict[str, float]:
        """Figures of the samples that the agents took in the last attempt; empty without any."""
        return read_hardware(self.attempts[-1].files) if self.attempts else {}

    @property
    def step_durations_s(self) -> Floats:
        """Durations in seconds of the measured steps on rank 0; without step records, of the histogram in
        metrics.json."""
        recorded = self.steps.durations_s
        if recorded.size or self.metrics is None or self.metrics.step_time is None:
            return recorded
        histogram = self.metrics.step_time.histogram
        edges = np.asarray(histogram.edges_s)
        return np.repeat((edges[:-1] + edges[1:]) / 2, histogram.counts)

    @property
    def incomplete(self) -> list[str]:
        """Texts on ranks that lack step records, of a run that counts."""
        if not self.included or self.metrics is None:
            return []
        return self.steps.missing_records(self.metrics.world_size, self.metrics.measured_steps)
