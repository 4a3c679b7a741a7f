"""How long `submit.py cluster up` takes, four nodes: `sudo python benchmarks/cluster.py [--repeats 5]`.

Goal: under 10 s.
"""

from __future__ import annotations

import argparse
import os

from timing import once, show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    name = f"b{os.getpid()}"
    up, down = ["cluster", "up"], ["cluster", "down", "--name", name]
    taken_s = []
    for _ in range(parser.parse_args().repeats):
        try:
            taken_s.append(once([*up, "--name", name]))
        finally:
            once(down)
    show(up, taken_s, goal_s=10)


if __name__ == "__main__":
    main()
