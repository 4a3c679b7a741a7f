"""Batch scripts: their text, the changes by each shipped profile, and values that could run as commands."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings

from disttrain.config.parsing import check, load
from docs.generate.slurm import by_hand
from jobs.core import code_copy, environment
from jobs.core.run_code import archive_of
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.site_profiles import resolve
from jobs.schedulers.slurm.profile import GENERIC, Profile
from jobs.schedulers.slurm.script import render, render_report
from tests.support.golden import golden
from tests.support.scripts import (
    DEAF,
    SHIPPED_NAMES,
    batch,
    config,
    directives,
    fields,
    placing,
    program,
    run,
    sift,
    sift_batch,
    sift_follow_up,
)
from tests.support.scripts import SHARED as ROOT

SITE = """\
partition: gpu,big
account: physics
qos: high
constraint: a100&nvme
reservation: workshop
exclude: gpu[01-04,7]
gpus: gres
gpu_type: a100
cpus_per_task: 64
memory: 0
exclusive: true
mail_user: somebody@example.org
mail_type: [END, FAIL]
wckey: scaling
sbatch: {hint: nomultithread, switches: 1@30, contiguous: true, gres: "nvme:1"}
srun: {cpu-bind: none, mpi: none}
modules: [gcc/13.2, cuda/12.4]
setup: 'export TMPDIR=/local/$SLURM_JOB_ID && mkdir -p "$TMPDIR" || exit'
node_setup: [test -d "$TMPDIR" || exit, "ulimit -l 'unlimited'"]
python: /opt/site/bin/python
container: {kind: pyxis, image: "docker://nvcr.io#nvidia/pytorch:25.01-py3", mounts: ["/data:/data:ro"]}
"""


@pytest.fixture
def site(tmp_path: Path) -> Profile:
    """A profile that sets everything."""
    (tmp_path / "site.yaml").write_text(SITE)
    return resolve(ProfileSelection(str(tmp_path / "site.yaml")))


def changes_by(profile: Profile) -> str:
    """Variables of the ranks from the profile, and lines in which its batch script differs from generic's."""
    recorded = profile.model_dump(mode="json")
    added = environment.added_variables(config(), {}, profile=recorded)
    variables = [f"{name}={added[name].value}" for name in added if added[name].source == "site"]
    plain, own = (render(batch(ROOT, each)).splitlines() for each in (GENERIC, profile))
    lines = [line for line in difflib.ndiff(plain, own) if line.startswith(("+ ", "- "))]
    sections = {"environment of the ranks": sorted(variables), "batch script, compared with generic": lines}
    parts = ([f"# {title}", *(found or ["(nothing)"])] for title, found in sections.items())
    return "".join("\n".join(part) + "\n" for part in parts)


def test_the_script_without_a_profile_is_that_of_generic() -> None:
    script = render(batch(ROOT, resolve(ProfileSelection("generic"))))
    golden("generic.sbatch", script)
    assert script == render(batch(ROOT))


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_each_shipped_profile_changes_only_this(name: str) -> None:
    """Most set variables alone, which agents add to those of the ranks; their scripts are generic's."""
    golden(f"profile-{name}.txt", changes_by(resolve(ProfileSelection(name))))


def test_no_two_shipped_profiles_are_the_same() -> None:
    changes = {name: changes_by(resolve(ProfileSelection(name))) for name in SHIPPED_NAMES}
    assert len(set(changes.values())) == len(changes)


def test_the_script_of_a_site_that_sets_everything(site: Profile) -> None:
    golden("site.sbatch", render(batch(ROOT, site, runs=2, logs=ROOT / "runs" / "demo" / ".arrays")))


def test_a_site_that_sets_everything_starts_its_agents(site: Profile, tmp_path: Path) -> None:
    local = str(tmp_path).replace(" ", r"\ ") + "/local/"
    script = render(batch(tmp_path, site, runs=2)).replace("/local/", local)
    trace = run(script, tmp_path / "it", SLURM_ARRAY_TASK_ID="1")
    assert trace.modules == ["load", "gcc/13.2", "cuda/12.4"]
    assert trace.environment["TMPDIR"] == f"{tmp_path}/local/7"
    code, runs = tmp_path / "code", tmp_path / "runs" / "demo"
    assert trace.started == [
        "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=64",
        "--kill-on-bad-exit=0", "--wait=150", "--cpu-bind=none", "--mpi=none",
        "--container-image=docker://nvcr.io#nvidia/pytorch:25.01-py3",
        f"--container-mounts={code}:{code},{runs}:{runs},/data:/data:ro",
        "bash", "-c", trace.started[12], "bash", "/opt/site/bin/python", "-m",
        "jobs.schedulers.task", str(runs / "n2-r1"), "--submission", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(("rendezvous_s", "wait_s"), [(600, 630), (0.5, 60), (120.5, 151)])
def test_srun_waits_for_the_rendezvous_before_it_ends_the_other_agents(
    rendezvous_s: float, wait_s: int
) -> None:
    """At least as long as the other agents wait for node 0 to close the attempt."""
    made = config(job={"rendezvous_timeout_s": rendezvous_s})
    for script in (render(batch(ROOT, config=made)), by_hand(made)):
        assert re.findall(r"--wait=(\S+)", script) == [str(wait_s)]


@pytest.mark.parametrize("kind", [None, "pyxis", "apptainer"])
def test_no_signal_ends_what_has_yet_to_listen(tmp_path: Path, kind: str | None) -> None:
    for name in ("python3", "apptainer"):
        path = tmp_path / name
        path.write_text("#!/bin/sh\nkill -USR1 $$ && kill -USR2 $$ && kill $$ && echo it lives\n")
        path.chmod(0o755)
    profile = Profile.model_validate({"name": "x", "container": kind and {"kind": kind, "image": "x"}})
    made = batch(tmp_path, profile, python=str(tmp_path / "python3"))
    words = run(render(made), tmp_path / "it").started
    starts = [at for at, word in enumerate(words) if word == "sh" and words[at + 1] == "-c"]
    assert len(starts) == (2 if kind == "apptainer" else 1)  # around what it runs, and within
    for at in starts:
        done = subprocess.run(
            words[at:], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "it lives\n")


def test_apptainer_runs_under_srun(tmp_path: Path) -> None:
    container = {"kind": "apptainer", "image": "/img/a b.sif", "arguments": ["--nv"], "mounts": ["/data"]}
    profile = Profile.model_validate({"name": "x", "container": container})
    words = run(render(batch(tmp_path, profile)), tmp_path / "it").started
    code, runs = tmp_path / "code", tmp_path / "runs" / "demo"
    assert words[6:25] == [
        *DEAF, "apptainer", "exec", "--bind", f"{code}:{code}", "--bind", f"{runs}:{runs}", "--bind", "/data",
        "--nv", "/img/a b.sif", *DEAF, "python3",
    ]  # fmt: skip


def test_what_the_submitting_shell_had_does_not_steer_srun(tmp_path: Path) -> None:
    left = {
        "SRUN_CPUS_PER_TASK": "1", "SBATCH_PARTITION": "x", "SLURM_CPU_BIND_TYPE": "mask_cpu:",
        "SLURM_STEP_ID": "0", "SLURM_MEM_BIND": "x", "MASTER_ADDR": "x", "RANK": "3", "LOCAL_RANK": "1",
        "WORLD_SIZE": "9", "SLURM_GPUS": "8", "SLURM_TRES_PER_TASK": "cpu=20",
    }  # fmt: skip
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_NUM_NODES": "2", "LOCAL_SCRATCH": "/local"}
    seen = run(render(batch(tmp_path)), tmp_path / "it", **left, **kept, SLURM_EXPORT_ENV="NONE").environment
    assert not left.keys() & seen.keys()
    assert {name: seen[name] for name in kept} == kept
    assert seen["SLURM_EXPORT_ENV"] == "ALL"


def test_a_job_whose_code_is_gone_says_so(tmp_path: Path) -> None:
    """An agent that some other copy gives refuses; without any, Python has no better words."""
    (tmp_path / "script").write_text(render(batch(tmp_path)))
    done = subprocess.run(["bash", tmp_path / "script"], capture_output=True, text=True, check=False)
    first = f"the code copy of this job is missing: {tmp_path}/code"
    assert done.stderr.splitlines()[0] == first


def test_a_missing_code_copy_is_unpacked_from_its_archive(tmp_path: Path) -> None:
    content = code_copy.CodeContent("files", {"jobs/__init__.py": b"x = 1"})
    code_copy.write_copy(tmp_path, content)
    copy = tmp_path / ".code" / content.name
    archived = archive_of(copy).read_bytes()
    copy.rename(tmp_path / "away")
    code_copy.write_copy(tmp_path, content)
    assert archive_of(copy).read_bytes() == archived, "equal content, equal archive"
    shutil.rmtree(copy)
    (tmp_path / "script").write_text(render(replace(batch(tmp_path), code=copy)))
    environ = {**os.environ, "SLURM_JOB_ID": "7"}
    subprocess.run(["bash", tmp_path / "script"], env=environ, capture_output=True, check=False)
    assert sorted(os.listdir(copy.parent)) == [copy.name, f"{copy.name}.tar"]
    assert (copy / "jobs/__init__.py").read_bytes() == b"x = 1"


def test_the_script_by_hand_mounts_the_code_and_the_submit_directory() -> None:
    contained = Profile.model_validate({"name": "x", "container": {"kind": "pyxis", "image": "x"}})
    script = by_hand(config(), contained)
    assert '--container-image=x --container-mounts="$code":"$code","$PWD":"$PWD" ' in script


def test_the_script_by_hand_is_the_committed_one() -> None:
    repository = Path(__file__).parents[2]
    default = check(load(repository / "sweeps" / "default.yaml")).as_dict()
    assert by_hand(default) == (repository / "jobs" / "train.sbatch").read_text()


@settings(max_examples=60, deadline=None)
@given(fields, placing)
def test_a_value_is_refused_or_inert(given: dict[str, Any], placed: dict[str, str]) -> None:
    profile = sift(given)
    made = sift_batch(profile, placed)
    script, share = render(made), made.tasks[0]
    with tempfile.TemporaryDirectory() as folder:
        trace = run(script, Path(folder), PYTHONPATH="before")
    python = profile.python or (made.python if profile.container is None else "python3")
    run_dir, submission = str(share.run_dir), str(share.submission)
    task = ["-m", "jobs.schedulers.task", run_dir, "--submission", submission]
    assert trace.started[-10:] == [*DEAF, python, *task]
    assert trace.environment["PYTHONPATH"] == f"{made.code}:before"
    assert trace.modules == (["load", *profile.modules] if profile.modules else [])
    for name, value in profile.srun.items():
        assert (f"--{name}" if value is True else f"--{name}={value}") in trace.started
    if profile.container is not None:
        assert set(profile.container.arguments) <= set(trace.started)
        for mount in profile.container.mounts:
            assert any(mount in word for word in trace.started)
    read = directives(script)
    assert (read["job-name"], read["comment"]) == (made.name, made.comment)
    assert read["output"] == f"{str(made.logs).replace('%', '%%')}/%j.log"
    for name, value in profile.sbatch.items():
        assert read[name] == ("" if value is True else value)
    for name in ("partition", "account", "qos", "constraint", "reservation", "exclude", "wckey"):
        assert read.get(name) == getattr(profile, name)
    assert not {"mail-user", "mail-type"} & set(read), "one mail for each run"
    assert (read["nodes"], read["ntasks-per-node"]) == ("2", "1"), "an option of ours was overridden"


@settings(max_examples=60, deadline=None)
@given(fields, placing)
@example({"python": "=1"}, {})
def test_a_value_is_refused_or_inert_in_the_job_after_the_runs(
    given: dict[str, Any], placed: dict[str, str]
) -> None:
    named = {name: program(text) for name, text in placed.items() if name == "python"}
    profile = sift(given | ({"python": program(given["python"])} if "python" in given else {}))
    job = sift_follow_up(profile, placed | named)
    script = render_report(**job)
    python = job["python"] if profile.container else profile.python or job["python"]
    with tempfile.TemporaryDirectory() as folder:
        trace = run(script, Path(folder), starts=python)
    assert trace.started == job["command"]
    assert trace.modules == (["load", *profile.modules] if profile.modules else [])
    read = directives(script)
    assert (read["job-name"], read["comment"]) == (job["name"], job["comment"])
    assert read["output"] == f"{str(job['logs']).replace('%', '%%')}/%j.log"
    assert read["dependency"] == "afterany:1_0:2"
    for name in ("partition", "account", "qos", "reservation", "wckey"):
        assert read.get(name) == getattr(profile, name)
    assert (read["nodes"], read["ntasks"]) == ("1", "1"), "an option of ours was overridden"


@pytest.mark.parametrize("name", ["apptainer", "pyxis"])
def test_ranks_run_inside_the_container_and_the_batch_shell_outside(name: str) -> None:
    profile = resolve(ProfileSelection(name))
    assert profile.container is not None
    image = profile.container.image
    assert re.search(r"[-:@]\S*\d", image.rpartition("/")[2]), "a version or digest pins the image"
    shell, *steps = render(batch(ROOT, profile)).split("srun \\\n")
    assert image not in shell
    assert len(steps) == 2
    for step in steps:
        command = step.partition("\n\n")[0]
        assert command.index(image) < command.index("python3 -m jobs.schedulers.task")
