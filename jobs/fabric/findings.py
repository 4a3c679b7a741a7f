"""Findings about variables that a user or a site sets, and all that the rules of the lint read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from jobs.fabric.description import Fabric
from jobs.fabric.registry import Registry, registry


class FindingSeverity(StrEnum):
    """`error`: the job fails, hangs, computes wrong data, or a name is misspelt."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class FindingKind(StrEnum):
    """Type of a finding."""

    UNKNOWN = "unknown"
    NOT_READ = "not-read"
    """This NCCL does not read it: removed, too new, or never read by any version."""
    RENAMED = "renamed"
    OUT_OF_RANGE = "out-of-range"
    DEBUG = "debug"
    OLD_DEFAULT = "old-default"
    NO_EFFECT = "no-effect"
    CONFLICT = "conflict"
    CORRUPTION = "corruption"
    DEADLOCK = "deadlock"
    FALLBACK = "fallback"
    """Traffic takes a slower network without an error."""


@dataclass(frozen=True)
class Setting:
    """One value of a variable, with its origin."""

    name: str
    value: str
    origin: str
    """`job.env`, the name of a profile, `environment`, or `file:line`."""
    is_literal: bool = True
    """False where a shell computes the value: it is not judged."""


@dataclass(frozen=True)
class Finding:
    """One finding; `message` is one line that ends with the step to take."""

    severity: FindingSeverity
    kind: FindingKind
    name: str
    value: str
    origin: str
    message: str
    source: str | None = None
    """Document that has the rule."""


@dataclass(frozen=True)
class LintContext:
    """The variables to judge, and the place where they hold. None: unknown, and its rules are skipped."""

    settings: Mapping[str, Setting]
    fabric: Fabric | None = None
    nodes: int | None = None
    nccl_version: str | None = None
    srun_network: str | None = None
    """Value of srun's `--network`; an empty text where the job is started without it."""
    derived: frozenset[str] = frozenset()
    """Names with the value that the suite derives: they are not reported as debug settings."""
    known: Registry = field(default_factory=registry)

    def value(self, name: str) -> str | None:
        """The literal value of a variable; None if it is not set or a shell computes it."""
        setting = self.settings.get(name)
        return setting.value if setting is not None and setting.is_literal else None

    def finding(
        self,
        severity: FindingSeverity,
        kind: FindingKind,
        name: str,
        message: str,
        source: str | None = None,
    ) -> Finding:
        """A finding about a variable, which need not be set."""
        setting = self.settings.get(name)
        value, origin = (setting.value, setting.origin) if setting else ("", "this node")
        return Finding(severity, kind, name, value, origin, message, source)
