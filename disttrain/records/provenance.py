"""Where a run comes from: what planned it, and the code it was planned with."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record


class Code(Record):
    """The code a run was planned with."""

    hash: str
    """Hash of the sources of `disttrain/` and `jobs/`: 12 hex digits."""
    git_commit: str | None = None
    git_dirty: bool | None = None
    git_diff: str | None = None
    """Uncommitted changes to tracked files, as `git diff` prints them (at most 256 KiB)."""
    snapshot: Literal["git", "files"] | None = None
    """What the copy of the code that jobs run was made of: the files that git tracks, or those of the
    installed packages. Null for a trainer started without a job: it runs the code as it is."""
    path: str | None = None
    """That copy, below the runs folder."""
    source: str | None = None
    """What it is a copy of; modules that it does not hold are looked for there last."""
    taken: Literal["submission", "start"] | None = None
    """When: at `start` (`sbatch jobs/train.sbatch`) changes made while the job waited are in it."""
    not_covered: list[str] = []
    """Modules that the config names and that are not in the copy: a change to them changes the run."""


class Provenance(Record):
    """Where and with what a run was planned."""

    created: str
    """UTC, ISO 8601."""
    host: str
    user: str | None = None
    python: str
    packages: dict[str, str]
    """Versions of the packages that matter, by name."""
    code: Code
    argv: list[str]
    """The command that planned it, secrets masked."""
