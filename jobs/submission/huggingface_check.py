"""Check the options of Hugging Face models before submission, as far as this machine can."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from disttrain.errors import EXIT_BAD_INPUT, ConfigError
from sweeps.expand import RunPlan

_TIMEOUT_S = 120.0
"""Importing transformers and torch from a cold network file system may take a minute."""


def check_huggingface(runs: Sequence[RunPlan]) -> str | None:
    """A sentence on options that only the job can check; None if all are valid.

    Raises `ConfigError` for a model type or a field of its config that transformers does not have.
    """
    found = {}
    for run in runs:
        if run.config.model.kind == "huggingface":
            options = run.config.model.model_extra or {}
            found[json.dumps(options, sort_keys=True)] = options
    for options in found.values():
        path, model_type = options["path"], options["model_type"]
        if (path is None) == (model_type is None):
            raise ConfigError(
                f"model.path={path} and model.model_type={model_type}: give exactly one of them"
            )
    here = [
        text
        for text, options in found.items()
        if options["path"] is None or Path(options["path"], "config.json").is_file()
    ]
    unknown = _checked(tuple(here)) if here else None
    if unknown is None and len(here) < len(found):
        unknown = "model.path has no config.json on this machine"
    return unknown and f"model.kind=huggingface: {unknown}, so model.config can only be checked in the job"


@functools.cache
def _checked(options: tuple[str, ...]) -> str | None:
    """Why transformers could not check these options (JSON texts), or None if they are valid."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed here"
    command = [sys.executable, "-m", "disttrain.config.huggingface_fields"]
    folder = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            command, input=f"[{','.join(options)}]", capture_output=True, text=True, timeout=_TIMEOUT_S,
            cwd=folder, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"transformers was not imported within {_TIMEOUT_S:.0f} s"
    if done.returncode == EXIT_BAD_INPUT:
        raise ConfigError(done.stdout)
    if done.returncode:
        return f"transformers failed ({(done.stderr.strip().splitlines() or [str(done.returncode)])[-1]})"
    return None
