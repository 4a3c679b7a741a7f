"""A finding, and the table rows that make findings. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

Severity = Literal["error", "warning", "note"]
"""`error`: runs fail or wait for ever. `warning`: some runs fail, lose work, or are measured wrongly.
`note`: worth knowing before jobs are submitted or compared."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
F = TypeVar("F")


@dataclass(frozen=True)
class Finding:
    """One problem. Each text is one line."""

    severity: Severity
    key: str
    """Stable name: `family.problem` (`signals.kill_wait`), or the name of a check of the pre-flight."""
    problem: str
    remedy: str
    evidence: str = ""
    """The fact behind the finding, in the notation of its source: `KillWait = 5`."""
    hosts: tuple[str, ...] = ()
    """Hosts at fault."""


@dataclass(frozen=True)
class Check(Generic[F]):
    """A row of a table of checks."""

    key: str
    severity: Severity
    evidence: Callable[[F], Any]
    """The fact behind the problem; None or empty text where there is no problem."""
    problem: str
    """`{evidence}` and `{where}` are filled in."""
    remedy: str


def examine(checks: Iterable[Check[F]], facts: F, where: str = "") -> list[Finding]:
    """The findings of a table. `where`: `this host`, or the name of a node."""
    return [
        Finding(
            row.severity, row.key, row.problem.format(evidence=evidence, where=where), row.remedy, evidence
        )
        for row in checks
        if (evidence := row.evidence(facts))
    ]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


@dataclass(frozen=True)
class Unchecked:
    """A check that could not be made."""

    check: str
    reason: str
