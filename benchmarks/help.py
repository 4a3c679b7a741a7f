"""How long `python submit.py --help` takes: `python benchmarks/help.py [--repeats 21]`. Goal: under 0.25 s.

After one start that is not counted: it warms the file cache and writes the byte code.
"""

from __future__ import annotations

import argparse

from timing import seconds, show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=21)
    show(["--help"], seconds(["--help"], parser.parse_args().repeats), goal_s=0.25)


if __name__ == "__main__":
    main()
