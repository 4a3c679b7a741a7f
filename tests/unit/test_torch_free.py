"""The packages that the login node uses load without torch, third-party imports included."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import disttrain.config
import disttrain.records

ALONE = (
    "disttrain.errors",
    "disttrain.integrations.loop",
    "disttrain.masking",
    "disttrain.models.peaks",
    "disttrain.runtime.log",
    "disttrain.runtime.process",
    "disttrain.runtime.stop_signals",
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
