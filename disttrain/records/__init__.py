"""What a run leaves behind: one model per file of the run directory.

JSON schemas in `docs/schemas/` are generated from these. A field's name carries its unit; a field that
may be absent is null, never zero. What is sampled beside the steps has its models in
`disttrain.samples`. Imports without torch.
"""

from __future__ import annotations

from disttrain.record import SCHEMA_VERSION, Record
from disttrain.records.attempt import AttemptRecord, Outcome, RankError
from disttrain.records.causes import Cause, Next, StopCause
from disttrain.records.checkpoint import Checkpoint, CheckpointFile
from disttrain.records.communication import (
    CalibratedStep,
    CollectiveSummary,
    CommCheck,
    CommSample,
    CommSummary,
    SampledCollective,
)
from disttrain.records.dataset import Dataset
from disttrain.records.files import FILES
from disttrain.records.layers import Layers, LayerTime
from disttrain.records.metrics import EvalPoint, Histogram, LossPoint, Metrics, RatioPoint, StepTime
from disttrain.records.node import Fabric, Gpu, Interface, NodeRecord
from disttrain.records.planned import EnvRecord, EnvVariable, RunRecord, SweepRecord
from disttrain.records.profile import Breakdown, ProfiledStep, ProfileRecord
from disttrain.records.progress import Progress
from disttrain.records.provenance import Code, Provenance
from disttrain.records.steps import CLASSES, Step, StepWindow
from disttrain.records.usage import Usage, UsedStart
from disttrain.samples import GpuSample, GpuUsage, HostSample, NodeGpus, ProcessUsage

__all__ = [
    "CLASSES",
    "FILES",
    "SCHEMA_VERSION",
    "AttemptRecord",
    "Breakdown",
    "CalibratedStep",
    "Cause",
    "Checkpoint",
    "CheckpointFile",
    "Code",
    "CollectiveSummary",
    "CommCheck",
    "CommSample",
    "CommSummary",
    "Dataset",
    "EnvRecord",
    "EnvVariable",
    "EvalPoint",
    "Fabric",
    "Gpu",
    "GpuSample",
    "GpuUsage",
    "Histogram",
    "HostSample",
    "Interface",
    "LayerTime",
    "Layers",
    "LossPoint",
    "Metrics",
    "Next",
    "NodeGpus",
    "NodeRecord",
    "Outcome",
    "ProcessUsage",
    "ProfileRecord",
    "ProfiledStep",
    "Progress",
    "Provenance",
    "RankError",
    "RatioPoint",
    "Record",
    "RunRecord",
    "SampledCollective",
    "Step",
    "StepTime",
    "StepWindow",
    "StopCause",
    "SweepRecord",
    "Usage",
    "UsedStart",
]
