"""What a report says, as data: the page, its Markdown twin and its JSON twin are all made from this."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from analysis.efficiency import Curve, Unit

REPORT_SCHEMA_VERSION = 1


class Part(BaseModel):
    """Base of the report and its parts: closed, documented under each field."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Notice(Part):
    """Something the reader has to know before using a number."""

    kind: Literal["emulated", "warning", "note"]
    text: str


class Learned(Part):
    """Whether the runs of one point learned anything, at their last validation; means over launches."""

    curve: str
    unit: Unit
    size: int
    launches: int
    steps: int
    train_loss: float | None
    valid_loss: float | None
    bits_per_byte: float | None
    unigram_entropy_bits: float | None
    """Bits per byte of a model that knows only how often each byte occurs."""
    accuracy: float | None


class Run(Part):
    """One run that the figures are made from."""

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


class Used(Part):
    """What one run used, finished or not, every attempt counted."""

    sweep: str
    run: str
    state: str
    attempts: int
    hours: float
    unit: str
    """`GPU-hours`, or `CPU rank-hours` where ranks had no GPU."""
    hours_bound: float | None
    """What one start may use at most: its time limit on all its devices."""
    queue_wait_s: float | None
    """Before all starts together; null where no submission is known."""
    source: str
    """`sacct`: Slurm's accounting; `timestamps`: the attempts' own times."""


class LeftOut(Part):
    """One run that the figures are made without."""

    sweep: str
    run: str
    state: str
    why: str


class Picture(Part):
    """One figure, beside the page as a file."""

    file: str
    title: str
    reading: str
    """One line that says how to read it."""
    alt: str


class Fact(Part):
    """One line of provenance: every value that occurs among the runs."""

    name: str
    values: list[str]


class Report(Part):
    """`report.json`."""

    schema_version: int = REPORT_SCHEMA_VERSION
    title: str
    sweeps: list[str]
    generated: str
    """UTC, ISO 8601."""
    confidence: float
    headline: list[str]
    """One sentence a curve."""
    notices: list[Notice]
    curves: list[Curve]
    learned: list[Learned]
    pictures: list[Picture]
    runs: list[Run]
    left_out: list[LeftOut]
    used: list[Used]
    """Of all runs that were started, those too that the figures are made without."""
    method: list[str]
    provenance: list[Fact]
