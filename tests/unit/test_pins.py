"""Ranges, pins and the conda file agree with each other and with what is installed."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: needed for name, needed in PROJECT["optional-dependencies"].items() if name != "notebooks"}
"""Those that `make install` installs."""
DIRECT = [Requirement(text) for extra in (PROJECT["dependencies"], *EXTRAS.values()) for text in extra]
LINES = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]
PINS = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in LINES}
PYTHONS = [text.rsplit(" ", 1)[1] for text in PROJECT["classifiers"]]
INSTALLED = {
    canonicalize_name(found.name): Version(found.version).public for found in metadata.distributions()
}
EDITABLE = "--config-settings editable_mode=compat"
"""Type checkers outside of the repository read paths of `.pth` files, and run no import hook."""


def test_constraints_are_exact_portable_and_given_once():
    assert len(PINS) == len(LINES)
    for pin in LINES:
        assert [spec.operator for spec in pin.specifier] == ["=="], pin
        assert pin.url is None, pin
        assert Version(next(iter(pin.specifier)).version).local is None, pin


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_a_direct_dependency_has_a_lower_bound_and_a_pin_inside_its_range(requirement):
    assert any(spec.operator == ">=" for spec in requirement.specifier)
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("python", PYTHONS)
def test_everything_that_gets_installed_is_pinned(python):
    """Follow the requirements of what is installed, as on this version of Python: none of them may float."""
    environment = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
    needed, seen = list(DIRECT), set()
    while needed:
        name = canonicalize_name(needed.pop().name)
        of_cuda = name.startswith(("nvidia-", "cuda-", "triton")) and name != "nvidia-ml-py"
        if name in seen or of_cuda:  # torch pins the parts of its CUDA build itself
            continue
        seen.add(name)
        assert name in PINS, f"{name} is not in constraints.txt"
        further = map(Requirement, (metadata.requires(name) if name in INSTALLED else None) or [])
        needed += [each for each in further if each.marker is None or each.marker.evaluate(environment)]


def test_the_pins_are_what_is_installed():
    """A pin may be absent (not needed on this platform); what is there has the pinned version."""
    found = {name: INSTALLED.get(name, pin) for name, pin in PINS.items()}
    assert found == PINS, "run `make install`"
    assert metadata.packages_distributions()["pynvml"] == ["nvidia-ml-py"]
    assert "pynvml" not in PINS


def test_the_conda_environment_and_the_makefile_install_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    python = next(item for item in environment if str(item).startswith("python="))
    assert PROJECT["requires-python"] == f">={python.removeprefix('python=')}"
    (pip,) = [item["pip"] for item in environment if isinstance(item, dict)]
    extras = ",".join(sorted(EXTRAS.keys() - {"docs"}))  # which `make docs` installs
    assert pip == ["-c constraints.txt", f"-e .[{extras}]"]
    makefile = (ROOT / "Makefile").read_text()
    assert f"-c constraints.txt -e '.[{extras}]'" in makefile
    assert EDITABLE in makefile
