"""Append the result of a benchmark to `benchmarks/results/BENCHMARK.jsonl`, where README and docs cite it.

A record is one JSON object on one line:

| key | content |
|---|---|
| `label` | name by which a page cites the record; the newest record of a label counts |
| `date`, `command`, `commit` | of the run; `uncommitted` lists tracked files that differed from the commit |
| `machine`, `versions` | processors, memory, system, load before the run; Python and packages |
| `figures` | numbers that pages may cite; a name ends in its unit (`_us`, `_ms`, `_s`, `_percent`) |
| `raw` | the numbers that `figures` is computed from |

A benchmark module defines `figures(raw)`; a test recomputes the figures of each record with it.
`python -m benchmarks.claims` checks what README and docs cite.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LOAD_AT_START = os.getloadavg()[0]
LABEL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--save LABEL`; without it `save` writes nothing."""
    parser.add_argument(
        "--save",
        metavar="LABEL",
        type=_label,
        help="append the result to benchmarks/results under this label, such as every-step-60",
    )


def save(
    benchmark: str,
    label: str | None,
    figures: dict[str, Any],
    raw: dict[str, Any],
    packages: Iterable[str] = ("torch",),
    folder: Path = RESULTS,
) -> Path | None:
    """Append one record to `folder/BENCHMARK.jsonl`; write nothing and return None if `label` is None."""
    if label is None:
        return None
    path = folder / f"{benchmark}.jsonl"
    record = {"label": label, **provenance(packages), "figures": figures, "raw": raw}
    line = json.dumps(record, allow_nan=False)
    folder.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(f"saved to {path} as {label}")
    return path


def provenance(packages: Iterable[str] = (), code: Path = ROOT) -> dict[str, Any]:
    """Date, command, commit of the code, machine and package versions of this process."""
    status = _git(code, "status", "--porcelain", "--untracked-files=no").splitlines()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "commit": _git(code, "rev-parse", "HEAD").strip() or None,
        "uncommitted": [line[3:] for line in status if not line[3:].startswith("benchmarks/results/")],
        "machine": machine(),
        "versions": {"python": platform.python_version(), **_versions(packages)},
    }


def machine() -> dict[str, Any]:
    """Processors, memory in bytes, operating system, and the 1-minute load average at the start."""
    return {
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "load_at_start": round(LOAD_AT_START, 2),
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a results file, oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _command() -> str:
    return shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def _label(text: str) -> str:
    if not LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed are lower-case words and digits joined by '-'")
    return text


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git(code: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=code, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
