"""The content of a report as data, from which the page, the Markdown and the JSON are made."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from analysis.comparison import RepeatPlan
from analysis.overlaps import SharedGpus
from analysis.results.curves import Curve, Unit

REPORT_SCHEMA_VERSION = 6


class ReportPart(BaseModel):
    """Base of the report and its parts; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class CaveatPart(ReportPart):
    """What limits the numbers of these runs."""

    kind: str
    gravity: Literal["grave", "warning", "note"]
    """A note explains a number, a warning doubts it, a grave one forbids it."""
    text: str
    """Empty where the headline says it."""
    runs: list[str]
    """`sweep/run`."""
    forbids: list[str]
    """Statements that the report does not make on these runs."""


class TrainingQuality(ReportPart):
    """Losses of the runs of one point at their last validation; means over repeats."""

    curve: str
    unit: Unit
    size: int
    repeats: int
    steps: int
    train_loss: float | None
    valid_loss: float | None
    bits_per_byte: float | None
    unigram_entropy_bits: float | None
    """Bits per byte of a model of byte frequencies alone."""
    accuracy: float | None


class Run(ReportPart):
    """One run that counts in the figures."""

    sweep: str
    run: str
    emulated: bool
    nodes: int
    ranks_per_node: int
    samples_per_s: float
    step_s: float
    step_p50_s: float | None
    step_p95_s: float | None
    step_p99_s: float | None
    measured_steps: int
    peak_memory_bytes: int | None


class RunCost(ReportPart):
    """GPU-hours and queue time of one run over all attempts, finished or not."""

    sweep: str
    run: str
    state: str
    attempts: int
    hours: float
    unit: str
    """`GPU-hours`, or `CPU rank-hours` where ranks had no GPU."""
    hours_bound: float | None
    """Most hours that one start may use: its time limit times its devices."""
    queue_wait_s: float | None
    """Summed over all starts; null if no submission is on record."""
    source: str
    """`sacct`: Slurm's accounting; `timestamps`: the attempts' own times."""


class ExcludedRun(ReportPart):
    """One run that does not count in the figures."""

    sweep: str
    run: str
    state: str
    reason: str


class RunOverlap(ReportPart):
    """Two runs that were at work on one node at the same time; at least one counts in the figures."""

    run: str
    """`sweep/run`."""
    other: str
    hosts: list[str]
    seconds: float
    """Time in which both ran on at least one common node."""
    gpus: SharedGpus
    """Whether a GPU was visible to both; `unknown` without GPUs, and where they are not recorded."""


class FigureSpec(ReportPart):
    """One figure, a file beside the page."""

    file: str
    title: str
    alt: str
    emulated: bool
    """Whether it shows emulated runs."""


class Answer(ReportPart):
    """One sentence of the first screen, with its question."""

    question: str
    text: str


class ColumnPart(ReportPart):
    """One column of a table."""

    name: str
    heading: str
    unit: str
    """Unit of the raw values; shares are between 0 and 1."""
    formula_id: str | None
    """Definition of the metric, in `definitions`."""


class TablePart(ReportPart):
    """A table of the page with raw values; an estimate is an object with value, low, high and repeats."""

    name: str
    caption: str
    columns: list[ColumnPart]
    rows: list[list[Any]]
    sources: list[list[str]]
    """Runs that the numbers of each row come from; empty where rows name their run."""


class SectionPart(ReportPart):
    """One section of the page."""

    id: str
    title: str
    conclusion: str
    paragraphs: list[str]
    tables: list[TablePart]


class DefinitionPart(ReportPart):
    """One metric: formula and meaning."""

    id: str
    name: str
    formula: str
    text: str


class ProvenanceItem(ReportPart):
    """One property of the runs with all its values."""

    name: str
    values: list[str]


class Report(ReportPart):
    """`report.json`."""

    schema_version: int = REPORT_SCHEMA_VERSION
    title: str
    sweeps: list[str]
    generated: str
    """UTC, ISO 8601."""
    confidence: float
    headline: list[str]
    """One sentence a curve."""
    setting: str
    """Model size, global batch and steps of the runs in the figures; empty without a curve."""
    lead: str
    """The sentence of the curve with the highest throughput."""
    answers: list[Answer]
    """The sentences of the first screen."""
    emulated: bool
    """Whether a run in the figures is emulated."""
    caveats: list[CaveatPart]
    """The gravest first."""
    curves: list[Curve]
    repeat_plan: RepeatPlan | None
    """Null without a size with more than one repeat."""
    training_quality: list[TrainingQuality]
    figures: list[FigureSpec]
    sections: list[SectionPart]
    definitions: list[DefinitionPart]
    runs: list[Run]
    excluded_runs: list[ExcludedRun]
    run_costs: list[RunCost]
    """Of all started runs, excluded ones too."""
    overlaps: list[RunOverlap]
    """Longest first."""
    provenance: list[ProvenanceItem]
