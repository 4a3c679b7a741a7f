"""How long `status` takes over many runs: `python benchmarks/status.py [--runs 1000]`. Goal: under 1 s.

Makes the run directories of a sweep in a temporary folder (done, running, queued and failed ones, with the
journal that a real submission leaves) and times whole processes, the interpreter's start included.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for tests.support, which is not installed

from timing import seconds, show  # noqa: E402

from disttrain.records.collect_provenance import code_hash  # noqa: E402
from tests.support.states import make_run  # noqa: E402

STATES = ("done", "done", "done", "running", "queued", "failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=11)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        code = code_hash()
        for number in range(given.runs):
            make_run(Path(folder), f"many/n{number}", STATES[number % len(STATES)], code=code)
        print(f"{given.runs} runs")
        for arguments in (["status", "--runs", folder], ["status", "--runs", folder, "--json"]):
            show(arguments, seconds(arguments, given.repeats), goal_s=1.0)


if __name__ == "__main__":
    main()
