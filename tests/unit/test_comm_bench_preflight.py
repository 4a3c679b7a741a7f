"""The measurement of the pre-flight runs on the processors of the ranks."""

from __future__ import annotations

import os
import subprocess
import sys

from disttrain.records.run_directory import PROCESSORS

SCRIPT = """
import os
from disttrain.comm_bench import preflight

def ended():
    print(sorted(os.sched_getaffinity(0)))
    raise SystemExit

preflight.rank_info = ended
preflight.main()
"""


def test_a_rank_is_bound_before_it_measures() -> None:
    own = os.sched_getaffinity(0)
    environ = {**os.environ, "LOCAL_RANK": "1", PROCESSORS: f"9999;{max(own)}"}
    command = [sys.executable, "-c", SCRIPT, "result.json", "--run", ".", "--device", "cpu"]
    found = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout == f"{[max(own)]}\n"
