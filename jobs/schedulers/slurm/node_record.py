"""The record of a node of a Slurm job: `python -m jobs.schedulers.slurm.node_record ATTEMPT_DIR NODE`.

The record extends that of `jobs.node.node_info` (hardware) by the `SLURM_*` variables and, on node 0, by the
output of `scontrol show job`. Secrets are masked, as are the variables among the arguments of a job by hand.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from disttrain.config.masking import MASK, is_secret, mask_lines
from jobs.node import node_info
from jobs.schedulers.slurm import commands

_VARIABLES = re.compile(r"(?<=--job\.env).*")


def collect_node_record(
    node: int,
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    describe: Callable[[str], str | None] = commands.describe,
) -> dict[str, Any]:
    """`node_info.collect_node_info` with `slurm` and `scontrol`; `describe` returns the text of a job id."""
    job_id = environ.get("SLURM_JOB_ID")
    text = describe(job_id) if job_id and node == 0 else None
    return {
        **node_info.collect_node_info(node, root=root),
        "slurm": {
            name: MASK if is_secret(name) else value
            for name, value in sorted(environ.items())
            if name.startswith("SLURM_")
        },
        "scontrol": mask_lines(_VARIABLES.sub(f" {MASK}", text)) if text else None,
    }


if __name__ == "__main__":
    sys.exit(node_info.main(sys.argv[1:], collect_node_record))
