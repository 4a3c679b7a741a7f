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
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [
    Requirement(text)
    for text in PROJECT["dependencies"] + [item for extra in EXTRAS.values() for item in extra]
]
LINES = [
    line
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]
PINS = {
    canonicalize_name(pin.name): str(next(iter(pin.specifier)).version) for pin in map(Requirement, LINES)
}
PYTHONS = [text.rsplit(" ", 1)[1] for text in PROJECT["classifiers"]]
INSTALLED = {
    canonicalize_name(found.name): Version(found.version).public for found in metadata.distributions()
}


def test_constraints_are_exact_portable_and_given_once():
    assert len(PINS) == len(LINES)
    for line in LINES:
        requirement = Requirement(line)
        assert [spec.operator for spec in requirement.specifier] == ["=="], line
        assert requirement.url is None, line
        assert Version(PINS[canonicalize_name(requirement.name)]).local is None, line


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_a_direct_dependency_has_a_lower_bound_and_a_pin_inside_its_range(requirement):
    assert any(spec.operator == ">=" for spec in requirement.specifier)
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("python", PYTHONS)
def test_everything_that_gets_installed_is_pinned(python):
    """Follow the requirements of what is installed, as on this version of Python: none of them may float."""
    environment = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
    todo = [canonicalize_name(requirement.name) for requirement in DIRECT]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        assert name in PINS, f"{name} is not in constraints.txt"
        for text in (metadata.requires(name) if name in INSTALLED else None) or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate(environment):
                if needed.name.startswith(("nvidia-", "cuda-", "triton")) and needed.name != "nvidia-ml-py":
                    continue  # torch pins the parts of its CUDA build itself
                todo.append(canonicalize_name(needed.name))


def test_the_pins_are_what_is_installed():
    """A pin may be absent (not needed on this platform); what is there has the pinned version."""
    differing = {
        name: (pin, INSTALLED[name]) for name, pin in PINS.items() if INSTALLED.get(name, pin) != pin
    }
    assert differing == {}, "run `make install`"


def test_the_conda_environment_installs_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(item for item in environment["dependencies"] if str(item).startswith("python="))
    assert PROJECT["requires-python"] == f">={python.removeprefix('python=')}"
    (pip,) = [item["pip"] for item in environment["dependencies"] if isinstance(item, dict)]
    extras = ",".join(sorted(EXTRAS))
    assert pip == ["-c constraints.txt", f"-e .[{extras}]"]
    assert f"-c constraints.txt -e '.[{extras}]'" in (ROOT / "Makefile").read_text()


def test_type_checkers_outside_of_the_repository_find_the_editable_package():
    """They read paths of `.pth` files, and do not run the import hook that setuptools installs otherwise."""
    option = "--config-settings editable_mode=compat"
    assert option in (ROOT / "Makefile").read_text()
    commands = (ROOT / "docs" / "own-loop.md").read_text().splitlines()
    editable = [line for line in commands if "pip install" in line and " -e " in line]
    assert editable
    assert all(option in line for line in editable)


def test_pynvml_is_the_module_of_nvidia_ml_py():
    assert metadata.packages_distributions()["pynvml"] == ["nvidia-ml-py"]
    assert "pynvml" not in PINS
