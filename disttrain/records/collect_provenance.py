"""Collect a run's provenance: code, package versions, host, command. Standard library only, git optional."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from disttrain.masking import mask_argv, mask_lines

_ROOT = Path(__file__).resolve().parents[2]
_SOURCE = "disttrain/__init__.py"
_PACKAGES = (
    "torch",
    "numpy",
    "submitit",
    "pydantic",
    "pyyaml",
    "nvidia-ml-py",
    "scikit-learn",
    "tensorboard",
    "transformers",
)
_RUN_IN_JOBS = (
    "disttrain/",
    "jobs/arms/",
    "jobs/checks/",
    "jobs/core/",
    "jobs/fabric/",
    "jobs/node/",
    "jobs/schedulers/inherited_variables.py",
    "jobs/schedulers/local/fifo_queue.py",
    "jobs/schedulers/local/supervisor.py",
    "jobs/schedulers/slurm/allocation.py",
    "jobs/schedulers/slurm/commands.py",
    "jobs/schedulers/slurm/container.py",
    "jobs/schedulers/slurm/script.py",  # this and the next render the script of the job
    "jobs/schedulers/slurm/steps.py",
    "jobs/schedulers/task.py",
)
"""Sources that run inside a job, below the root. Decisions of `sweeps/` and `jobs/submission/` are in
`run.json`, and so in the config key. Other code of the login node changes no result."""
_DATA = ("jobs/fabric/variables.json",)
"""Data that decides, with these sources, which variables the ranks get."""
_RULE = "2"
"""Number of the rule by which sources are hashed. The first rule, whose hashes have no number, covered all of
`disttrain/` and `jobs/`."""
_DIFF_LIMIT = 256 * 1024
_GIT_TIMEOUT_S = 10


def collect(script: Path | None = None) -> dict[str, Any]:
    """The provenance of this process, now: the fields of `records.planned.Provenance`.

    With `script`, the code is that of the repository of this file, which belongs to the user and has no hash.
    """
    git = git_state(script.parent, script.name) if script else git_state()
    return {
        "schema_version": 1,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "host": socket.gethostname(),
        "user": _user(),
        "python": platform.python_version(),
        "packages": versions(),
        "code": {"schema_version": 1, "hash": None if script else code_hash(), **git},
        "argv": mask_argv(command_line()),
    }


def without_secrets(provenance: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A provenance whose command and diffs are masked at these names, too."""
    masked = {**provenance, "argv": mask_argv(provenance.get("argv", ()), names)}
    for part in ("code", "command"):
        if (code := provenance.get(part)) and code.get("git_diff"):
            masked[part] = {**code, "git_diff": mask_lines(code["git_diff"], tuple(names))}
    return masked


def command_line() -> list[str]:
    """This process's command line, without the folder of the program."""
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    return [name, *sys.argv[1:]]


def code_hash(root: Path = _ROOT) -> str:
    """SHA-256 over the sources and data below `root` that decide inside a job: `2-` and 12 hex digits.

    Independent of the location of `root`.
    """
    paths = [path for package in ("disttrain", "jobs") for path in (root / package).rglob("*.*")]
    names = {path.relative_to(root).as_posix(): path for path in paths}
    return hash_sources({name: path.read_bytes() for name, path in names.items() if runs_in_job(name)})


def hash_sources(files: Mapping[str, bytes]) -> str:
    """`code_hash` of files given by their paths below the root; other files are ignored."""
    digest = hashlib.sha256()
    for name in sorted(files):
        if runs_in_job(name):
            digest.update(f"{name}\0{len(files[name])}\0".encode())
            digest.update(files[name])
    return f"{_RULE}-{digest.hexdigest()[:12]}"


def runs_in_job(name: str) -> bool:
    """Whether a file, by its path below the root, is part of `code_hash`."""
    return name in _DATA or (name.endswith(".py") and name.startswith(_RUN_IN_JOBS))


def tracked_files(root: Path = _ROOT) -> list[str] | None:
    """Paths below `root` that git tracks; None where it does not track the sources: a repository around them
    may be unrelated."""
    names = (run_git(root, "ls-files", "-z") or "").split("\0")[:-1]
    return names if _SOURCE in names else None


def git_state(root: Path = _ROOT, tracked: str = _SOURCE) -> dict[str, Any]:
    """Commit and uncommitted changes of the checkout around `root`; all None where git does not track
    `tracked`, a file in this folder."""
    commit = diff = None
    if run_git(root, "ls-files", "--error-unmatch", tracked) is not None:
        commit, diff = run_git(root, "rev-parse", "HEAD"), run_git(root, "diff", "HEAD")
    return {
        "git_commit": commit and commit.strip(),
        "git_dirty": None if diff is None else bool(diff),
        "git_diff": mask_lines(diff)[:_DIFF_LIMIT] if diff else None,
    }


def run_git(root: Path, *arguments: str) -> str | None:
    """Output of a git command in `root`; None if it fails, takes over 10 s, or git is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Installed versions of the recorded packages, read from their metadata without an import."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def run_key(config_key: str, code: str) -> str:
    """SHA-256 over config key and code, given by its hash or commit: 12 hex digits."""
    return hashlib.sha256(f"{config_key} {code}".encode()).hexdigest()[:12]


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
