"""A scheduler is one folder: no other room of `jobs` names one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from jobs.schedulers import select, task

JOBS = Path(select.__file__).parents[1]
ROOMS_THAT_NAME = ("schedulers", "minicluster")
MODULES_THAT_NAME = tuple(
    f"cli/{verb}.py" for verb in ("arguments", "cluster", "doctor", "options", "selection")
)
BATCH = re.compile(
    r"""LOCAL x ACCUM|"LOCAL",|"local": (\w+\.)*(batch\.local|local_batch_size)"""
    "|/usr/local/|[Ll]ocal rank|slurmd-debug"
    "|the local or the global|for slurmd and"
)
"""The local batch, a local rank, `/usr/local` and an option of srun are no scheduler."""


def naming_lines(text: str) -> list[int]:
    """Numbers of the lines that name a scheduler."""
    lines = enumerate(text.splitlines(), 1)
    return [
        number for number, line in lines if re.search(r"(?i)slurm|\blocal\b", BATCH.sub("", line)) is not None
    ]


def test_no_other_room_of_jobs_names_a_scheduler():
    modules = {path.relative_to(JOBS).as_posix(): path for path in JOBS.rglob("*.py")}
    assert {"cli/cancel.py", "cli/selection.py", "node/agent.py"} <= modules.keys()
    found = [
        f"jobs/{name}:{number}"
        for name, path in sorted(modules.items())
        if name not in MODULES_THAT_NAME and name.split("/")[0] not in ROOMS_THAT_NAME
        for number in naming_lines(path.read_text())
    ]
    assert found == []


def test_an_unknown_scheduler_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigError, match="no scheduler 'pbs': there are local, slurm"):
        select.scheduler_named("pbs")


def test_a_process_in_no_job_has_no_allocation():
    with pytest.raises(ConfigError, match="this process is in no job"):
        task.current_allocation({})


@pytest.mark.parametrize(("name", "other"), [("local", "slurm"), ("slurm", "local")])
def test_the_other_scheduler_is_not_imported(name, other):
    code = (
        f"import sys; from jobs.schedulers.select import scheduler_named; scheduler_named({name!r}); "
        f"print([each for each in sys.modules if each.startswith('jobs.schedulers.{other}')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
