"""Table of all records, by the name of their JSON schema."""

from __future__ import annotations

from disttrain.records.attempt import AttemptRecord, Outcome, Progress, RankError
from disttrain.records.base import Record
from disttrain.records.checkpoint import Checkpoint
from disttrain.records.comm_bench import CommBench, FabricAb
from disttrain.records.communication import CommSample, FabricRecord
from disttrain.records.dataset import PackedTokens
from disttrain.records.gpu_hours import RunGpuHours
from disttrain.records.hardware import GpuSample, HostSample, NodeGpus, NodeHardware
from disttrain.records.layers import Layers
from disttrain.records.metrics import Metrics
from disttrain.records.node import NodeRecord, Preflight
from disttrain.records.planned import AnnotationRecord, EnvRecord, ExcludedNodes, RunRecord, SweepRecord
from disttrain.records.steps import Step, StepAggregate

FILES: dict[str, type[Record]] = {
    "run": RunRecord,
    "env": EnvRecord,
    "sweep": SweepRecord,
    "excluded-nodes": ExcludedNodes,
    "annotation": AnnotationRecord,
    "attempt": AttemptRecord,
    "node": NodeRecord,
    "outcome": Outcome,
    "usage": RunGpuHours,
    "rank-error": RankError,
    "progress": Progress,
    "step": Step,
    "step-window": StepAggregate,
    "gpu-devices": NodeGpus,
    "gpu-sample": GpuSample,
    "host-sample": HostSample,
    "node-hardware": NodeHardware,
    "comm-sample": CommSample,
    "metrics": Metrics,
    "comm-bench": CommBench,
    "fabric-ab": FabricAb,
    "layers": Layers,
    "fabric": FabricRecord,
    "preflight": Preflight,
    "checkpoint": Checkpoint,
    "packed-tokens": PackedTokens,
}
"""Schema name (`docs/schemas/<name>.json`) to record."""
