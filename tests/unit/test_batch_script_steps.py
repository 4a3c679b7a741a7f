"""Job steps of a batch script, which runs with a stub in place of srun."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jobs.schedulers.slurm.profile import GENERIC, Profile
from jobs.schedulers.slurm.script import render
from tests.support.scripts import batch, directives


def run_with_stub(
    folder: Path, srun: str, profile: Profile = GENERIC, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Run a script with `srun` in place of srun; the arguments of each call."""
    stub = folder / "srun"
    stub.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" >> calls; echo >> calls\n{srun}\n")
    stub.chmod(0o755)
    (folder / "script").write_text(render(batch(folder, profile=profile)))
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **environment}
    done = subprocess.run(
        ["bash", "script"], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    return done, [line.split("\0")[:-1] for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize(("first", "second", "code"), [(0, None, 0), (137, 0, 0), (137, 75, 137)])
def test_a_failed_step_is_followed_by_one_that_closes_the_attempt(
    tmp_path: Path, first: int, second: int | None, code: int
) -> None:
    (tmp_path / "codes").write_text("\n".join(str(each) for each in (first, second) if each is not None))
    done, calls = run_with_stub(
        tmp_path, 'code=$(head -n 1 codes); sed -i 1d codes; kill $PPID; kill -USR1 $PPID; exit "$code"'
    )
    assert done.returncode == code, "the batch shell survives signals"
    assert (tmp_path / "codes").read_text() == ""
    assert len(calls) == (1 if second is None else 2)
    agents, *after = calls
    assert "--after-failure" not in agents
    for one in after:
        assert {"--nodes=1", "--ntasks=1", "--relative=0", "--overlap", "--mem=0"} <= set(one)
        assert one[-4:] == ["--after-failure", *agents[-3:]]


@pytest.mark.parametrize(("restarts", "before"), [(None, 0), ("1", 1), ("3", 3), ("5", 1)])
def test_the_agents_step_has_another_number_in_each_start(
    tmp_path: Path, restarts: str | None, before: int
) -> None:
    environ = {"SLURM_RESTART_COUNT": restarts} if restarts else {}
    done, calls = run_with_stub(tmp_path, "exit 0", **environ)
    assert done.returncode == 0
    assert [one[-1] for one in calls[:-1]] == ["true"] * before
    assert len(calls) == before + 1


def test_a_failed_empty_step_does_not_end_a_restart(tmp_path: Path) -> None:
    profile = Profile(name="strict", setup=("set -e",))
    srun = '[ "${!#}" != true ]'  # the empty steps alone fail
    done, calls = run_with_stub(tmp_path, srun, profile, SLURM_RESTART_COUNT="2")
    assert (done.returncode, len(calls)) == (0, 3)


def test_an_expedited_job_does_not_fail(tmp_path: Path) -> None:
    """Slurm would hold it, so that it never ends for jobs that wait for it."""
    profile = Profile(name="x", sbatch={"requeue": "expedite"}, setup=("test -e allowed || exit 3",))
    (tmp_path / "calls").touch()
    done, calls = run_with_stub(tmp_path, "exit 1", profile)
    assert (done.returncode, calls) == (0, [])
    (tmp_path / "allowed").touch()
    done, calls = run_with_stub(tmp_path, "exit 1", profile)
    assert (done.returncode, len(calls)) == (0, 2)
    assert directives((tmp_path / "script").read_text())["requeue"] == "expedite"
