"""Wall time of `submit.py --help`: `python -m benchmarks.help [--repeats 21]`. Goal: under 0.25 s."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import result_record, timing


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Median and extremes of the wall times."""
    return timing.summary(raw["taken_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    result_record.add_option(parser)
    given = parser.parse_args()
    raw = {"taken_s": timing.seconds(["--help"], given.repeats)}
    timing.show(["--help"], raw["taken_s"], goal_s=0.25)
    result_record.save("help", given.save, figures(raw), raw, packages=())


if __name__ == "__main__":
    main()
