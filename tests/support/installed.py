"""The project as a wheel, and environments in which it is installed without a checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import submit

ROOT = Path(submit.__file__).parent
_NO_SOURCES = (".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "mutants")
_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def build(folder: Path) -> tuple[Path, Path]:
    """Wheel and source archive in a new folder, as `python -m build` makes them."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*_NO_SOURCES), symlinks=True)
    for kind in ("build_sdist", "build_wheel"):
        command = [sys.executable, "-c", _BUILD, kind, str(folder)]
        subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def install(wheel: Path, folder: Path) -> Path:
    """The site-packages of a new environment with the wheel; all other packages are those of this one."""
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return packages


def uninstall(packages: Path) -> None:
    """Remove the modules from an environment, as an upgrade does."""
    for name in ("disttrain", "jobs", "sweeps", "analysis"):
        shutil.rmtree(packages / name)
