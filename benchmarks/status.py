"""Wall time of `submit.py status` over many runs: `python -m benchmarks.status [--runs 1000]`.

Goal: under 1 s. The runs in a temporary folder are done, running, queued and failed, each with the journal of
a submission.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import result_record, timing
from disttrain.records.collect_provenance import code_hash
from tests.support.states import make_run

STATES = ("done", "done", "done", "running", "queued", "failed")


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Median and extremes of the wall times, of the table and of `--json`."""
    as_json = {f"json_{name}": value for name, value in timing.summary(raw["json_taken_s"]).items()}
    return {"runs": raw["runs"], **timing.summary(raw["taken_s"]), **as_json}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=11)
    result_record.add_option(parser)
    given = parser.parse_args()
    raw: dict[str, Any] = {"runs": given.runs}
    with tempfile.TemporaryDirectory() as folder:
        code = code_hash()
        for number in range(given.runs):
            make_run(Path(folder), f"many/n{number}", STATES[number % len(STATES)], code=code)
        print(f"{given.runs} runs")
        for name, flags in (("taken_s", []), ("json_taken_s", ["--json"])):
            arguments = ["status", "--runs", folder, *flags]
            raw[name] = timing.seconds(arguments, given.repeats)
            timing.show(arguments, raw[name], goal_s=1.0)
    result_record.save("status", given.save, figures(raw), raw, packages=())


if __name__ == "__main__":
    main()
