"""Findings of `submit.py doctor`, and the interface of a scheduler's doctor. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

Severity = Literal["error", "warning", "note"]
"""`error`: runs fail or wait for ever. `warning`: some runs fail, lose work, or are measured wrongly.
`note`: no change is needed for `submit.py`; scripts of your own may need one."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    """One problem or trap. Each text is one line."""

    severity: Severity
    key: str
    """Stable name, `family.problem`: `signals.kill_wait`."""
    problem: str
    fix: str
    evidence: str
    """The fact behind the finding, in the notation of its source: `KillWait = 5`."""


@dataclass(frozen=True)
class Unchecked:
    """A check that could not be made."""

    check: str
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """Result of a doctor."""

    subject: str
    """The examined cluster or machine, in one line."""
    facts: dict[str, Any]
    """Values that were read, as JSON."""
    findings: tuple[Finding, ...]
    """Worst first; of equal severity in the order of the checks."""
    unchecked: tuple[Unchecked, ...]

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


class Doctor(Protocol):
    """Examines a scheduler, this machine and the runs folder."""

    def diagnose(self, runs: Path, *, job: bool) -> Diagnosis:
        """Examine; with `job`, also on a node, in a job of at most 5 minutes."""

    def draft_profile(self, name: str) -> str:
        """Text of a site profile drafted from the present use. Raises `ConfigError`."""
