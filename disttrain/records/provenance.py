"""Provenance of a run: host, command, package versions and code at planning."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record


class Code(Record):
    """The code of a run."""

    hash: str | None
    """SHA-256 over the sources that run inside a job: `2-` and 12 hex digits. Older versions hashed all of
    `disttrain/` and `jobs/`, without the prefix. Null for a training loop of the user, whose sources are
    unknown; the fields of git are then those of the user's script."""
    git_commit: str | None = None
    git_dirty: bool | None = None
    git_diff: str | None = None
    """Output of `git diff HEAD`: uncommitted changes of tracked files, at most 256 KiB."""
    snapshot: Literal["git", "files"] | None = None
    """Source of the code copy that the job runs: files tracked by git, or files of the installed
    packages. Null for a trainer started by hand, which runs the code in place."""
    path: str | None = None
    """Path of the snapshot, below the runs folder."""
    source: str | None = None
    """The folder that was copied; the last entry of the job's module search path."""
    taken: Literal["submission", "start"] | None = None
    """Time of the snapshot; `start` (`sbatch jobs/train.sbatch`) includes changes made in the queue time."""
    not_covered: list[str] = []
    """Modules named in the config that are not in the snapshot: later changes to them affect the run."""


class CommandCode(Record):
    """The code of a `command`."""

    folder: str
    """Working directory of the submission, and of each process of the command."""
    source: str | None
    """The folder that was copied: the git repository of the script, or the script's folder. Null for an
    installed module (`-m package.train`), which is not copied."""
    path: str | None
    """Path of the copy, below the runs folder."""
    hash: str | None
    """SHA-256 over the Python, YAML and TOML files of the copy: `c-` and 12 hex digits."""
    git_commit: str | None = None
    """Of the repository of the script, like the fields below; null without one."""
    git_dirty: bool | None = None
    git_diff: str | None = None
    """Output of `git diff HEAD`: uncommitted changes of tracked files, at most 256 KiB."""


class Provenance(Record):
    """Host, command and software of the planning of a run."""

    created: str
    """UTC, ISO 8601."""
    host: str
    user: str | None = None
    python: str
    packages: dict[str, str]
    """Versions of the recorded packages, by name."""
    code: Code
    command: CommandCode | None = None
    """The code of a `command`; null for a run of the trainer."""
    argv: list[str]
    """The planning command, secrets masked."""
