"""`submit.py doctor` on stand-ins of Slurm's commands, and on a machine without Slurm."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import submit
from jobs.checks import host_facts
from jobs.checks.host_facts import HostFacts, ProbeError, ProbeTimeout
from jobs.schedulers.local import doctor as local_doctor
from jobs.schedulers.slurm import doctor as slurm_doctor
from jobs.schedulers.slurm.profile import Profile
from tests.support.cluster_sites import install
from tests.support.commands import Commands
from tests.support.verbs import TINY

OWN = ("--slurm", "partition=batch", "account=physics")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and a healthy host whose runs folder is on a disk of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.delenv("DISTTRAIN_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    packages = {name: "2.0" for name in host_facts.PACKAGES}
    facts = HostFacts(
        "login1", time.time(), "/opt/python", "3.12.1", packages, None, None, 2**34, False,
        "/data/runs", "/data", "xfs", "/", ["rw"], 2**40, {}, 0.01, 0.0,
    )  # fmt: skip
    monkeypatch.setattr(slurm_doctor, "probe_here", lambda runs: facts)
    return tmp_path


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`doctor(*arguments, code=0)`: the JSON document, or with `text=True` what is printed."""

    def run(*arguments: str, code: int = 0, text: bool = False) -> Any:
        assert submit.main(["doctor", *([] if text else ["--json"]), *arguments]) == code
        out = capsys.readouterr().out
        return out if text else json.loads(out)

    return run


@pytest.fixture
def site(commands: Commands) -> Commands:
    install(commands, "h100")
    return commands


Doctor = Callable[..., Any]


def test_findings_come_worst_first_with_fix_and_evidence(site, doctor):
    out = doctor("--slurm", "partition=old", "account=physics", code=1, text=True)
    assert out.startswith(
        "Slurm 24.11.5, cluster hyper: 7 nodes, 45 GPUs, partitions batch, mixed, old; site"
    )
    error = (
        "error     the partition of the site profile starts no jobs (old: State=DRAIN)\n"
        "          fix   name another partition"
    )
    assert out.index(error) < out.index("note      ")
    assert "          read  old: State=DRAIN" in out
    assert "not checked:" in out
    assert all(len(line) <= 110 for line in out.splitlines()[1:])


def test_a_cluster_without_errors_is_one_document_and_nothing_is_changed(site, doctor):
    document = doctor(*OWN)
    assert document["facts"]["cluster"]["version"] == "24.11.5"
    assert document["facts"]["cluster"]["partitions"][0]["gpu_types"] == ["h100"]
    assert document["facts"]["runs"] == {"path": "/data/runs", "file_system": "xfs on /"}
    assert "runs.not_shared" in {finding["key"] for finding in document["findings"]}
    severities = [finding["severity"] for finding in document["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    calls = site.calls()
    assert "name=ada cluster=hyper" in calls
    assert [word for word in ("sbatch", "scancel", "update") if word in calls] == []


def test_an_option_of_the_profile_that_slurm_lacks_is_an_error(site, doctor):
    site.add("sbatch", "echo \"sbatch: unrecognized option '$1'\" >&2; exit 255")
    (error, *_) = doctor(*OWN, "sbatch.licences=matlab:1", code=1)["findings"]
    assert error["problem"].startswith("disttrain refuses sbatch.licences of the site profile: sbatch: unrec")
    site.add("sbatch", "echo slurm 24.11.5")
    doctor(*OWN, "sbatch.licenses=matlab:1")


@pytest.mark.parametrize(
    ("broken", "code", "texts"),
    [
        ({"sinfo": "true"}, 0, ["nodes unknown", "nodes and GPUs: `sinfo` shows this user none"]),
        (
            {"sinfo": "true", "scontrol": "echo 'ClusterName = x'"},
            0,
            ["Slurm ?, cluster x: nodes unknown, partitions unknown;"],
        ),
        (
            {"sacct": "echo 'sacct: error: Connection refused' >&2; exit 1"},
            0,
            ["accounting does not answer", "Connection refused"],
        ),
        ({"sdiag": "exit 1"}, 0, ["clock of the controller: `sdiag` gives no time"]),
        (
            {"scontrol": "echo 'scontrol: error: Unable to contact slurm controller' >&2; exit 1"},
            1,
            ["Slurm, whose controller does not answer", "Unable to contact slurm controller"],
        ),
    ],
)
def test_a_command_that_fails_is_named_and_its_facts_are_not_judged(broken, code, texts, site, doctor):
    for name, script in broken.items():
        site.add(name, script)
    out = " ".join(doctor(*([] if "scontrol" in broken else OWN), code=code, text=True).split())
    assert [text for text in texts if text not in out] == []


def test_without_slurm_this_machine_alone_is_examined(monkeypatch, folder, doctor):
    monkeypatch.setenv("PATH", str(folder))
    document = doctor()
    assert document["subject"] == "this machine, for runs without Slurm"
    assert (document["unchecked"][0]["check"], document["facts"]["cluster"]) == ("a cluster", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--cluster local --job", "--job needs Slurm"),
        ("--cluster local --write-profile new.yaml", "--write-profile needs Slurm"),
        ("--cluster local --profile generic", "--profile is for Slurm"),
        ("--cluster local --runs old.yaml", "--runs='old.yaml' is a file; give a folder"),
        ("--write-profile new.txt", "must end in .yaml or .yml"),
        ("--write-profile nope/new.yaml", "no folder"),
        ("--write-profile old.yaml", "exists already, and is not overwritten"),
        ("--write-profile new.yaml --job", "not allowed with"),
        ("--profile nope", "no such profile"),
    ],
)
def test_bad_input_writes_nothing(words, message, folder, site, capsys):
    Path("old.yaml").write_text("partition: mine\n")
    assert submit.main(["doctor", *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert Path("old.yaml").read_text() == "partition: mine\n"
    assert {path.name for path in folder.iterdir()} == {"bin", "old.yaml"}


@pytest.mark.parametrize(("name", "partition"), [("h100", "batch"), ("gb200", "nvl"), ("university", "gpu")])
def test_a_drafted_profile_passes_a_dry_run(name, partition, commands, doctor, capsys):
    install(commands, name)
    Path("tiny.yaml").write_text(TINY)
    assert "--profile ./mine.yaml" in doctor("--write-profile", "mine.yaml", text=True)
    arguments = ["run", "tiny.yaml", "--cluster", "slurm", "--profile", "./mine.yaml", "--dry-run"]
    assert submit.main(arguments) == 0
    assert f"#SBATCH --partition={partition}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "has_gpus", "options"),
    [
        ({"gpu_type": "h100"}, True, {"--gpus-per-node=h100:1", "--mem=1G"}),
        ({"gpus": "none", "srun": {"mpi": "none"}}, True, {"--mpi=none"}),
        ({"gpus": "gres", "python": "/env/bin/python"}, True, {"--gres=gpu:1"}),
        ({}, False, set()),
    ],
)  # fmt: skip
def test_the_job_on_a_node_is_chosen_by_the_profile(fields, has_gpus, options):
    profile = Profile.model_validate({"name": "mine", "partition": "batch", "modules": ["cuda"]} | fields)
    command = slurm_doctor.probe_command(profile, ["-m", "x", "/runs"], has_gpus=has_gpus)
    at = command.index("bash")
    assert {"--partition=batch", *options} <= {*command[:at]}
    assert any("gpu" in word for word in command[:at]) == any("gpu" in word for word in options)
    assert "module load cuda" in command[at + 2]
    assert command[at + 4 :] == [fields.get("python", sys.executable), "-m", "x", "/runs"]


def unchecked(document: dict[str, Any]) -> dict[str, str]:
    return {each["check"]: each["reason"] for each in document["unchecked"]}


@pytest.mark.parametrize("error", [ProbeError("exit code 3"), ProbeTimeout("no answer within 30 s")])
def test_no_node_is_examined_where_the_probe_of_this_host_fails(error, site, doctor, monkeypatch):
    def fail(runs: Path) -> HostFacts:
        raise error

    is_silent = isinstance(error, ProbeTimeout)
    for module, arguments in ((slurm_doctor, ["--job", *OWN]), (local_doctor, ["--cluster", "local"])):
        monkeypatch.setattr(module, "probe_here", fail)
        document = doctor(*arguments, code=int(is_silent))
        keys = [each["key"] for each in document["findings"] if each["severity"] == "error"]
        assert keys == ["runs.silent"] * is_silent
        assert ("a node (--job)" in unchecked(document)) == (module is slurm_doctor)


def test_a_node_settles_whether_the_folder_is_shared(site, doctor):
    site.add("srun", 'while [ "$1" != bash ]; do shift; done; exec "$@"')
    document = doctor("--job", *OWN)
    assert "runs.not_shared" not in {each["key"] for each in document["findings"]}
    assert "--job" not in str(unchecked(document))
    site.add("srun", "echo 'srun: error: Unable to allocate resources' >&2; exit 1")
    reason = unchecked(doctor("--job", *OWN))["a node (--job)"]
    assert reason == "srun: error: Unable to allocate resources"
