"""Wall time of `submit.py` as the user feels it: whole processes, the interpreter's start included."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SUBMIT = Path(__file__).resolve().parent.parent / "submit.py"


def seconds(arguments: Sequence[str], repeats: int) -> list[float]:
    """Wall time of each of `repeats` runs of `submit.py` with these arguments, after a warm-up."""
    return [once(arguments) for _ in range(repeats + 1)][1:]


def once(arguments: Sequence[str]) -> float:
    """Wall time of one run of `submit.py` with these arguments."""
    start = time.perf_counter()
    subprocess.run([sys.executable, str(SUBMIT), *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def show(arguments: Sequence[str], taken_s: Sequence[float], goal_s: float) -> None:
    """Print the median beside its goal."""
    print(
        f"python submit.py {' '.join(arguments)}: median {statistics.median(taken_s):.3f} s "
        f"of {len(taken_s)} (from {min(taken_s):.3f} to {max(taken_s):.3f}; goal {goal_s} s)"
    )
