"""The Python of the ranks (`job.python`), which may have neither this project nor its packages."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jobs.checks import describe_python
from jobs.core.child_process import output
from jobs.core.environment import AddedVariable, rank_environment

_WITHIN_S = 120.0
"""`uv run` may first install what a lock file names."""
_OF_PROJECT = ("pydantic", "psutil", "PyYAML", "numpy")
_OF_SHELL = ("_", "SHLVL", "PWD", "OLDPWD")


@dataclass(frozen=True)
class RankContainer:
    """The container of the ranks on a node."""

    words: Sequence[str]
    """The command that runs its arguments inside."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of its image, where that command does not set them."""
    precedence: str = ""
    """Prefix of a variable that takes precedence over the image's of that name; empty where all do."""


@dataclass(frozen=True)
class RankPython:
    """A Python as this node has it."""

    words: Sequence[str]
    """The interpreter, which torchrun and the ranks are started with, in its container."""
    version: str = ""
    path: Sequence[str] = ()
    """Its module search path."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of its distributions by name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that `uv run` and its like set for it, or those of its container's image."""
    problem: str | None = None
    """Why it cannot start the ranks, in one line."""
    has_numactl: bool = False
    """Whether torchrun has the command `numactl`, by which it binds ranks."""
    container: RankContainer | None = None

    @property
    def is_recent(self) -> bool:
        """Whether it has the syntax of this project, and the option `-P`."""
        return tuple(map(int, self.version.split(".")[:2])) >= (3, 11)

    @property
    def missing(self) -> str:
        """What modules of this project lack in it; empty where they can run."""
        needed = [] if self.is_recent else ["Python 3.11"]
        return ", ".join([*needed, *(name for name in _OF_PROJECT if name not in self.packages)])

    def environment(
        self,
        inherited: Mapping[str, str],
        added: Mapping[str, AddedVariable],
        secrets: Mapping[str, str] = {},
    ) -> dict[str, str]:
        """The complete environment of the ranks; `secrets` have a mask in `added`."""
        own = rank_environment({**inherited, **self.variables}, added) | dict(secrets)
        prefix = self.container.precedence if self.container else ""
        return {**own, **{f"{prefix}{name}": own[name] for name in added}}


def nccl_version(packages: Mapping[str, str]) -> str | None:
    """By NVIDIA's package; None without one."""
    names = (name for name in packages if re.fullmatch(r"nvidia-nccl-cu\d+", name))
    return next((packages[name] for name in names), None)


def words_of(python: str | None, default: str = sys.executable) -> list[str]:
    """The words that start `job.python`: an interpreter, the folder of an environment, or `uv run`."""
    if python is None:
        return [default]
    path, words = Path(python).expanduser(), shlex.split(python)
    if len(words) > 1 and not path.exists():
        return words if os.path.basename(words[-1]).startswith("python") else [*words, "python"]
    return [str(path / "bin" / "python" if path.is_dir() else path)]


def find(
    job: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    is_trainer: bool,
    container: RankContainer | None = None,
) -> RankPython:
    """The Python that section `job` of a config names, by default that of the agent, or of the container."""
    python = job.get("python")
    name = f"the Python of the job, {sys.executable}," if python is None else f"job.python={python!r}"
    words, is_own = words_of(python), python is None
    if container is not None:
        environ = {**environ, **container.variables}
        name = "python3 of the container" if is_own else f"{name} of the container"
        words, is_own = [*container.words, *words_of(python, "python3")], False
    try:
        about = describe_python.describe() if is_own else _described(words, environ)
    except OSError as error:
        return RankPython(words, problem=f"{name} cannot be started: {error.strerror}")
    except subprocess.CalledProcessError as error:
        why = next(reversed(error.stderr.strip().splitlines()), f"exit code {error.returncode}")
        return RankPython(words, problem=f"{name} cannot be started: {why}")
    except ValueError as error:
        return RankPython(words, problem=f"{name} cannot be started: it printed {str(error)!r}")
    except subprocess.TimeoutExpired:
        return RankPython(words, problem=f"{name} did not start within {_WITHIN_S:g} s")
    if container is not None:
        words, variables = [*container.words, about["executable"]], container.variables
    else:
        variables = {
            name: value
            for name, value in about["environ"].items()
            if len(words) > 1 and environ.get(name) != value and name not in _OF_SHELL
        }
        words = [about["executable"]]
    seen = RankPython(
        words,
        about["version"],
        about["path"],
        about["packages"],
        variables,
        has_numactl=about["has_numactl"],
        container=container,
    )
    return replace(seen, problem=_problem(name, seen, job, is_trainer=is_trainer))


def _described(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    line = next(reversed(output([*words, describe_python.__file__], _WITHIN_S, environ).splitlines()), "")
    try:
        return dict(json.loads(line))
    except (TypeError, ValueError):
        raise ValueError(line) from None


def _problem(name: str, seen: RankPython, job: Mapping[str, Any], *, is_trainer: bool) -> str | None:
    needs_torch = job.get("launcher", "torchrun") == "torchrun" and "torch" not in seen.packages
    absent = "torch" if needs_torch else seen.missing if is_trainer else ""
    return f"{name} is Python {seen.version} without {absent}" if absent else None
