"""Wall time of `submit.py` processes in seconds, interpreter start included."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SUBMIT = Path(__file__).resolve().parent.parent / "submit.py"


def seconds(arguments: Sequence[str], repeats: int) -> list[float]:
    """Wall time of each of `repeats` runs of `submit.py` with these arguments, after one uncounted run.

    The uncounted run fills the file cache and writes the byte code.
    """
    return [once(arguments) for _ in range(repeats + 1)][1:]


def once(arguments: Sequence[str]) -> float:
    """Wall time of one run of `submit.py` with these arguments; raises if it fails."""
    start = time.perf_counter()
    subprocess.run([sys.executable, str(SUBMIT), *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def summary(taken_s: Sequence[float]) -> dict[str, float]:
    """Median and extremes of wall times in seconds."""
    return {"median_s": statistics.median(taken_s), "min_s": min(taken_s), "max_s": max(taken_s)}


def show(arguments: Sequence[str], taken_s: Sequence[float], goal_s: float) -> None:
    """Print the median beside its goal."""
    found = summary(taken_s)
    print(
        f"python submit.py {' '.join(arguments)}: median {found['median_s']:.3f} s of {len(taken_s)} "
        f"(from {found['min_s']:.3f} to {found['max_s']:.3f}; goal {goal_s} s)"
    )
