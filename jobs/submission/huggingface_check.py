"""Check Hugging Face models and their data before submission, as far as this machine can."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from disttrain.config.huggingface_fields import described, require_one
from disttrain.errors import EXIT_BAD_INPUT, ConfigError
from sweeps.expand import RunPlan

_TIMEOUT_S = 120.0
"""Importing transformers and torch from a cold network file system may take a minute."""


def check_huggingface(runs: Sequence[RunPlan]) -> str | None:
    """A sentence on options that only the job can check; None if all are valid.

    Raises `ConfigError` for a model type or a field of its config that transformers does not have, and for
    data of which the model has no head.
    """
    found = {}
    for run in runs:
        if run.config.model.kind == "huggingface":
            given = described(run.config)
            found[json.dumps(given, sort_keys=True)] = given["model"]
    for options in found.values():
        require_one(options["path"], options["model_type"])
    here = [
        text
        for text, options in found.items()
        if options["path"] is None or Path(options["path"], "config.json").is_file()
    ]
    unknown = _checked(tuple(here)) if here else None
    if unknown is None and len(here) < len(found):
        unknown = "model.path has no config.json on this machine"
    return unknown and f"model.kind=huggingface: {unknown}, so only the job can check model.config and data"


@functools.cache
def _checked(models: tuple[str, ...]) -> str | None:
    """Why transformers could not check these models (JSON texts), or None if they are valid."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed here"
    command = [sys.executable, "-m", "disttrain.config.huggingface_fields"]
    folder = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            command, input=f"[{','.join(models)}]", capture_output=True, text=True, timeout=_TIMEOUT_S,
            cwd=folder, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"transformers was not imported within {_TIMEOUT_S:.0f} s"
    if done.returncode == EXIT_BAD_INPUT:
        raise ConfigError(done.stdout)
    if done.returncode:
        return f"transformers failed ({(done.stderr.strip().splitlines() or [str(done.returncode)])[-1]})"
    return None
