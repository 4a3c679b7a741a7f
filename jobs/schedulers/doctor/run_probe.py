"""Run `probe` as a child process, on this host or on a node (by a command prefix)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.core.code_snapshot import CODE_ROOT
from jobs.schedulers.doctor import probe
from jobs.schedulers.doctor.probe import ProbeFacts

TIMEOUT_S = 30.0
_END_S = 5.0


class ProbeError(Exception):
    """The probe gave no facts; the message is one line."""


class ProbeTimeout(ProbeError):
    """The probe did not end within its time limit."""


def module_arguments(runs: Path, shared: Path | None = None) -> list[str]:
    """Arguments of Python that run the probe."""
    more = [] if shared is None else ["--shared-folder", str(shared)]
    return ["-m", probe.__name__, str(runs.absolute()), *more]


def run_probe(
    command: Sequence[str], environ: Mapping[str, str] = os.environ, timeout_s: float = TIMEOUT_S
) -> ProbeFacts:
    """The facts that a command prints. Raises `ProbeError`.

    After the time limit the process is killed and not waited for: one that waits for a file system that hangs
    does not die.
    """
    path = os.pathsep.join([str(CODE_ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    own = {**environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    try:
        process = subprocess.Popen(
            command,
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ProbeError(f"{command[0]}: {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # srun withdraws its job
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_S)
        process.kill()
        raise ProbeTimeout(f"no answer within {timeout_s:g} s") from None
    for line in reversed(output.splitlines()):  # lines of the site's prolog may come before
        try:
            return probe.parsed(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
    said = [line for line in errors.splitlines() if line.strip()]
    raise ProbeError(said[-1].strip() if said else f"exit code {process.returncode} without a message")


def probe_here(runs: Path) -> ProbeFacts:
    """The facts of this host. Raises `ProbeError`."""
    return run_probe([sys.executable, *module_arguments(runs)])
