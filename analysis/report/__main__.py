"""`python -m analysis.report RUNS/SWEEP [...] --out DIR [--base NAME] [--reject-warned]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.report import write
from disttrain.errors import EXIT_BAD_INPUT, ConfigError


def main(argv: list[str] | None = None) -> int:
    """Write a report and print where it is."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.report", description="Report on finished sweeps."
    )
    parser.add_argument(
        "sweeps", nargs="+", type=Path, metavar="SWEEP", help="folder of a sweep: runs/default"
    )
    parser.add_argument("--out", type=Path, help="folder to write to (default: SWEEP/report)")
    parser.add_argument("--base", help="size, or a run of that size, to compare with (default: the smallest)")
    text = "leave out runs whose pre-flight had warnings"
    parser.add_argument("--reject-warned", action="store_true", help=text)
    options = parser.parse_args(argv)
    try:
        page = write(
            options.sweeps,
            options.out or options.sweeps[0] / "report",
            base=options.base,
            reject_warned=options.reject_warned,
        )
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
