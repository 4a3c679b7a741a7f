"""The packages that the login node uses load without torch, third-party imports included."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest

import disttrain.config
import disttrain.records
from disttrain.errors import ConfigError
from disttrain.runtime import torch_version
from jobs.core.run_code import CODE_ROOT

ALONE = (
    "disttrain.errors",
    "disttrain.integrations.loop",
    "disttrain.masking",
    "disttrain.models.peaks",
    "disttrain.runtime.log",
    "disttrain.runtime.process",
    "disttrain.runtime.stop_signals",
    "disttrain.runtime.torch_version",
)


def test_the_torch_free_packages_load_without_torch() -> None:
    packages = (disttrain.config, disttrain.records)
    names = [
        f"{package.__name__}.{found.name}"
        for package in packages
        for found in pkgutil.iter_modules(package.__path__)
    ]
    assert len(names) > 20
    code = f"import sys, {', '.join([*names, *ALONE])}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("version", ["2.2.0+cpu", "2.10.1", None])
@pytest.mark.parametrize("name", ["Trainer", "LoopTelemetry"])
def test_a_torch_below_the_bound_is_refused(version, name, monkeypatch):
    def installed(package):
        if version is None:
            raise metadata.PackageNotFoundError(package)
        return version

    monkeypatch.setattr(torch_version.metadata, "version", installed)
    why = f"has torch {version}; the trainer" if version else "has no torch; install disttrain[train]"
    with pytest.raises(ConfigError, match=re.escape(why)):
        getattr(disttrain, name)


def test_a_rank_with_an_old_torch_ends_with_one_line(tmp_path):
    about = tmp_path / "torch-2.2.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.2.0\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{CODE_ROOT}"}
    command = [sys.executable, "-m", "disttrain", "--config", "none.yaml"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {sys.executable} has torch 2.2.0; ")


@pytest.mark.parametrize("version", ["2.11.0a0+50eac811a6.nv26.02", "2.13.0+cpu", "3.0"])
def test_a_newer_torch_is_accepted(version, monkeypatch):
    monkeypatch.setattr(torch_version.metadata, "version", lambda _: version)
    torch_version.require_torch()
    project = tomllib.loads((CODE_ROOT / "pyproject.toml").read_text())["project"]
    assert f"torch>={torch_version.LOWEST}" in project["optional-dependencies"]["train"]
    assert not any(text.startswith("torch") for text in project["dependencies"])
