"""Text of batch scripts: golden files, options of sbatch, and values that could run as commands."""

from __future__ import annotations

import difflib
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from disttrain.errors import ConfigError
from jobs.core import environment
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.site_profiles import resolve
from jobs.schedulers.slurm.profile import GENERIC, Profile
from jobs.schedulers.slurm.script import render, render_report, shape_options
from jobs.schedulers.slurm.train_script import script_of_checkout
from tests.support.golden import golden
from tests.support.scripts import (
    DEAF,
    SHARED,
    SHIPPED_NAMES,
    batch,
    config,
    directives,
    fields,
    placing,
    run,
    sift,
    sift_batch,
)

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
REQUESTS = (
    "reservation=workshop", "exclude=gpu[01-04,7]", "gpus=gres", "gpus=gpus", "gpus=none",
    "gpu_type=h100_80gb_hbm3", "gpus=gres gpu_type=h100 sbatch.gres=nvme:1", "gpus=gpus gpu_type=h100",
    "sbatch.gres=nvme:1", "sbatch.dependency=singleton", "sbatch.licenses=matlab:2", "sbatch.switches=1@30",
    "sbatch.segment=2", "sbatch.consolidate-segments=true", "exclusive=topo", "sbatch.stepmgr=true",
    "sbatch.mem-update=10@60", "sbatch.requeue=expedite", "srun.cpu-bind=rank",
    "srun.network=disable_rdzv_get",
)  # fmt: skip
"""Options that sites ask for, as `--slurm` has them."""
PYXIS = Profile.model_validate({"name": "x", "container": {"kind": "pyxis", "image": "x"}})


def profile(**keys: Any) -> Profile:
    return Profile.model_validate({"name": "x", **keys})


@pytest.fixture
def site(tmp_path: Path) -> Profile:
    """A profile that sets everything."""
    (tmp_path / "site.yaml").write_text(SITE)
    return resolve(ProfileSelection(str(tmp_path / "site.yaml")))


def differences(one: Profile) -> list[str]:
    """Lines in which the batch script of a profile differs from that of generic."""
    plain, own = (render(batch(SHARED, each)).splitlines() for each in (GENERIC, one))
    return [line for line in difflib.ndiff(plain, own) if line.startswith(("+ ", "- "))]


def test_the_script_without_a_profile_is_that_of_generic():
    script = render(batch(SHARED, resolve(ProfileSelection("generic"))))
    golden("generic.sbatch", script)
    assert script == render(batch(SHARED))


def test_the_script_of_a_site_that_sets_everything(site):
    golden("site.sbatch", render(batch(SHARED, site, runs=2, logs=SHARED / "runs" / "demo" / ".arrays")))


@pytest.mark.parametrize(
    ("mail", "requested"),
    [("END,FAIL", ["END,FAIL"]), ("END", ["END,FAIL"]), ("FAIL", ["FAIL"]), ("NONE", [])],
)
def test_the_script_of_its_report_job_requests_mail_when_it_starts(site, mail, requested):
    changes = {"container": None, "python": None, "mail_type": mail or ["NONE"]}
    script = render_report(
        name="report-$(touch canary)",
        comment="disttrain:demo/.report:0:abc",
        after=["1", "2"],
        command=["/code/submit.py", "report", "it's", "--runs", "/my runs/$HOME"],
        logs=SHARED / "runs" / "100 %j" / ".report" / "submissions",
        python="/a=1/bin/python",
        profile=Profile.model_validate({**site.as_dict(), **changes}),
    )
    assert re.findall(r"MailType=(\S+)", script) == requested
    if mail == "END,FAIL":
        golden("report-job.txt", script)


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_each_shipped_profile_changes_only_this(name):
    """Most set variables alone, which agents add to those of the ranks; their scripts are generic's."""
    shipped = resolve(ProfileSelection(name))
    added = environment.added_variables(config(), {}, profile=shipped.as_dict())
    variables = [f"{name}={added[name].value}" for name in added if added[name].source == "site"]
    lines = ["# environment of the ranks", *(sorted(variables) or ["(nothing)"])]
    lines += ["# batch script, compared with generic", *(differences(shipped) or ["(nothing)"])]
    golden(f"profile-{name}.txt", "\n".join(lines) + "\n")


def test_scripts_of_requests_are_those_of_every_version():
    """Slurm 22.05 to 26.05 get the same text; sbatch of an older version refuses newer options itself."""
    lines = ["# requests by --slurm, compared with generic.sbatch"]
    for request in REQUESTS:
        changes = differences(resolve(ProfileSelection("generic", request.split())))
        lines += [request, *(f"  {line}" for line in changes)]
    golden("site-requests.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"excluded_nodes": ("n7", "n9")}, {"exclude": "gpu1,n7,n9"}),
        ({"after": ("12", "14_2"), "at_once": 2}, {"dependency": "afterany:12:14_2,singleton"}),
        ({"needs": ("12",)}, {"dependency": "afterok:12,singleton", "kill-on-invalid-dep": "yes"}),
        (
            {"after": ("1",), "needs": ("2", "3_1")},
            {
                "dependency": "afterany:1,afterok:2:3_1,singleton",
                "kill-on-invalid-dep": "yes",
            },
        ),
        ({"runs": 3, "at_once": 2}, {"array": "0-2%2"}),
        ({"runs": 3}, {"array": "0-2"}),
    ],
)
def test_options_of_the_batch_are_added_to_those_of_the_profile(changes, expected):
    of_site = profile(exclude="gpu1", sbatch={"dependency": "singleton"})
    options = directives(render(batch(SHARED, of_site, **changes)))
    defaults = {"exclude": "gpu1", "dependency": "singleton"}
    names = ("exclude", "dependency", "kill-on-invalid-dep", "array")
    assert {name: options[name] for name in names if name in options} == defaults | expected


def job(lead_s: float, limit_min: float) -> dict[str, Any]:
    return config(job={"stop_lead_s": lead_s, "time_limit_min": limit_min})


ON_CPU = config() | {"resources": {**config()["resources"], "device": "cpu"}}
COMMAND = {name: section for name, section in config().items() if name != "data"}


@pytest.mark.parametrize(
    ("of_run", "option", "value"),
    [
        (ON_CPU, "gpus-per-node", None),
        (config(), "cpus-per-task", "20"),  # 4 ranks of 2 threads and 3 loader processes
        (COMMAND, "cpus-per-task", "8"),
        (job(60, 60), "signal", "USR2@60"),
        (job(60, 1), "signal", "USR2@15"),
        (job(0, 60), "signal", "USR2@1"),
        (job(45.5, 600), "signal", "USR2@46"),
        (job(1e9, 1e9), "signal", "USR2@65535"),
        (job(60, 1.5), "time", "2"),
    ],
)
def test_options_of_sbatch_by_config(of_run, option, value):
    assert directives(render(batch(SHARED, config=of_run))).get(option) == value


@pytest.mark.parametrize(("rendezvous_s", "wait_s"), [(600, 630), (0.5, 60), (120.5, 151)])
def test_srun_waits_for_the_rendezvous_before_it_ends_the_other_agents(rendezvous_s, wait_s):
    """At least as long as the other agents wait for node 0 to close the attempt."""
    made = config(job={"rendezvous_timeout_s": rendezvous_s})
    for script in (render(batch(SHARED, config=made)), script_of_checkout(made)):
        assert re.findall(r"--wait=(\S+)", script) == [str(wait_s)]


def test_the_options_of_a_shape_are_those_of_the_script_without_names():
    array = batch(SHARED, profile(partition="gpu"), runs=3, at_once=2, excluded_nodes=("n7",))
    options = shape_options(array)
    written = [line.removeprefix("#SBATCH ") for line in render(array).splitlines() if "#SBATCH" in line]
    assert [line for line in written if line in options] == options
    names = {line.partition("=")[0] for line in {*written} - {*options}}
    assert names == {"--job-name", "--comment", "--output"}


@pytest.mark.parametrize(
    ("of_site", "changes", "what"),
    [
        (GENERIC, {"root": "a\nb"}, "--runs: .* holds a control"),
        (GENERIC, {"root": "a\\b"}, "--runs: .* holds a backslash"),
        (GENERIC, {"root": "a:b"}, "the code: '/shared/a:b/code' holds ':'"),
        (GENERIC, {"root": "a,b"}, None),
        (PYXIS, {"root": "a,b"}, "--runs: .* holds ','"),
        (GENERIC, {"folders": (Path("/home/a,b"),)}, None),
        (PYXIS, {"folders": (Path("/home/a,b"),)}, "the working directory: '/home/a,b' holds ','"),
        (PYXIS, {"folders": (Path("/home/X"),)}, None),
    ],
)
def test_paths_that_a_script_cannot_contain(of_site, changes, what):
    options = {name: value for name, value in changes.items() if name != "root"}
    made = batch(SHARED / changes.get("root", "X"), of_site, **options)
    if what is None:
        render(made)
        return
    with pytest.raises(ConfigError, match=f"^{what}"):
        render(made)


@settings(max_examples=60, deadline=None)
@given(fields, placing)
def test_a_value_is_refused_or_inert(given, placed):
    profile = sift(given)
    made = sift_batch(profile, placed)
    script, share = render(made), made.tasks[0]
    with tempfile.TemporaryDirectory() as folder:
        trace = run(script, Path(folder), PYTHONPATH="before")
    python = profile.python or made.python
    task = ["-m", "jobs.schedulers.task", str(share.run_dir), "--submission", str(share.submission)]
    assert trace.started[-10:] == [*DEAF, python, *task]
    assert trace.environment["PYTHONPATH"] == f"{made.code}:before"
    assert trace.modules == (["load", *profile.modules] if profile.modules else [])
    for name, value in profile.srun.items():
        assert (f"--{name}" if value is True else f"--{name}={value}") in trace.started
    read = directives(script)
    assert (read["job-name"], read["comment"]) == (made.name, made.comment)
    assert read["output"] == f"{str(made.logs).replace('%', '%%')}/%j.log"
    for name, value in profile.sbatch.items():
        assert read[name] == ("" if value is True else value)
    for name in ("partition", "account", "qos", "constraint", "reservation", "exclude", "wckey"):
        assert read.get(name) == getattr(profile, name)
    assert not {"mail-user", "mail-type"} & set(read), "one mail for each run"
    assert (read["nodes"], read["ntasks-per-node"]) == ("2", "1"), "an option of ours was overridden"
