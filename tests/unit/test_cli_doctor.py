"""`submit.py doctor` on stand-ins of Slurm's commands, and on a machine without Slurm."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

import submit
from jobs.checks import host_facts
from jobs.checks.host_facts import HostFacts, ProbeError, ProbeTimeout
from jobs.schedulers.slurm import doctor as slurm_doctor
from jobs.schedulers.slurm.profile import Profile
from tests.support.cluster_sites import install
from tests.support.commands import Commands
from tests.support.verbs import TINY


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.delenv("DISTTRAIN_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe of a healthy host whose runs folder is on a disk of its own."""
    packages = {name: "2.0" for name in host_facts.PACKAGES}
    facts = HostFacts(
        "login1", time.time(), "/opt/python", "3.12.1", packages, None, None, 2**34, False,
        "/data/runs", "/data", "xfs", "/", ["rw"], 2**40, {}, 0.01, 0.0,
    )  # fmt: skip
    monkeypatch.setattr(slurm_doctor, "probe_here", lambda runs: facts)


def doctor(*arguments: str) -> int:
    return submit.main(["doctor", *arguments])


def test_findings_come_with_fix_and_evidence(commands: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    install(commands, "h100")
    assert doctor("--slurm", "partition=old", "account=physics") == 1
    out, err = capsys.readouterr()
    assert out.startswith(
        "Slurm 24.11.5, cluster hyper: 7 nodes, 45 GPUs, partitions batch, mixed, old; site"
    )
    first = out.index("error     the partition of the site profile starts no jobs (old: State=DRAIN)")
    assert first < out.index("note      ")
    assert "          fix   name another partition" in out
    assert "          read  old: State=DRAIN" in out
    assert "not checked:" in out
    assert "or each as --slurm KEY=VALUE" in " ".join(out.split())
    assert "--job" in out
    assert err == "error: 1 finding of severity error\n"
    assert all(len(line) <= 110 for line in out.splitlines()[1:])


def test_a_cluster_without_errors_ends_with_0_and_one_document(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    install(commands, "h100")
    assert doctor("--json", "--slurm", "partition=batch", "account=physics") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["facts"]["cluster"]["version"] == "24.11.5"
    assert document["facts"]["cluster"]["partitions"][0]["gpu_types"] == ["h100"]
    assert document["facts"]["runs"] == {"path": "/data/runs", "file_system": "xfs on /"}
    assert "runs.not_shared" in {finding["key"] for finding in document["findings"]}
    severities = [finding["severity"] for finding in document["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert set(document["findings"][0]) == {"severity", "key", "problem", "fix", "evidence"}
    calls = commands.calls()
    assert "name=ada cluster=hyper" in calls
    assert "sbatch" not in calls
    assert "scancel" not in calls
    assert "update" not in calls


def test_an_option_of_the_profile_that_slurm_lacks_is_an_error(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    install(commands, "h100")
    commands.add("sbatch", "echo \"sbatch: unrecognized option '$1'\" >&2; exit 255")
    own = ("--slurm", "partition=batch", "account=physics")
    assert doctor(*own, "sbatch.licences=matlab:1") == 1
    out = " ".join(capsys.readouterr().out.split())
    refusal = "sbatch: unrecognized option '--licences=matlab:1'"
    assert f"error submit.py refuses sbatch.licences of the site profile: {refusal}" in out
    commands.add("sbatch", "echo slurm 24.11.5")
    assert doctor(*own, "sbatch.licenses=matlab:1") == 0


def test_facts_that_slurm_hides_are_not_judged(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    install(commands, "h100")
    commands.add("sinfo", "true")
    assert doctor("--slurm", "partition=batch", "account=physics") == 0
    out = capsys.readouterr().out
    assert "nodes unknown" in out
    assert "nodes and GPUs: `sinfo` shows this user none" in out
    commands.add("scontrol", "echo 'ClusterName = x'")
    assert doctor() == 0
    out = capsys.readouterr().out
    assert out.startswith("Slurm ?, cluster x: nodes unknown, partitions unknown;")


def test_a_file_is_no_runs_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert doctor("--runs", "file", "--cluster", "local") == 2
    assert capsys.readouterr().err.startswith("error: --runs='file' is a file; give a folder")


def test_a_command_that_fails_is_named(commands: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    install(commands, "h100")
    commands.add("sacct", "echo 'sacct: error: slurmdbd: Connection refused' >&2; exit 1")
    commands.add("sdiag", "exit 1")
    assert doctor("--slurm", "partition=batch", "account=physics") == 0
    out = capsys.readouterr().out
    assert "accounting does not answer" in out
    assert "Connection refused" in out
    assert "clock of the controller: `sdiag` gives no time" in out


def test_a_controller_that_is_silent(commands: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    install(commands, "h100")
    commands.add("scontrol", "echo 'scontrol: error: Unable to contact slurm controller' >&2; exit 1")
    assert doctor() == 1
    out = capsys.readouterr().out
    assert out.startswith("Slurm, whose controller does not answer")
    assert "Unable to contact slurm controller" in " ".join(out.split())


def test_without_slurm_this_machine_alone_is_examined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["subject"] == "this machine, for runs without Slurm"
    assert document["unchecked"][0]["check"] == "a cluster"
    assert document["facts"]["cluster"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "local", "--job"], "--job needs Slurm"),
        (["--cluster", "local", "--write-profile", "new.yaml"], "--write-profile needs Slurm"),
        (["--cluster", "local", "--profile", "generic"], "--profile is for Slurm"),
        (["--write-profile", "new.txt"], "must end in .yaml or .yml"),
        (["--write-profile", "nope/new.yaml"], "no folder"),
        (["--write-profile", "old.yaml"], "exists already, and is not overwritten"),
        (["--write-profile", "new.yaml", "--job"], "not allowed with"),
        (["--profile", "nope"], "no such profile"),
    ],
)
def test_bad_input_writes_nothing(
    arguments: list[str], message: str, folder: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    install(commands, "h100")
    Path("old.yaml").write_text("partition: mine\n")
    assert doctor(*arguments) == 2
    assert message in capsys.readouterr().err
    assert Path("old.yaml").read_text() == "partition: mine\n"
    assert {path.name for path in folder.iterdir()} == {"bin", "old.yaml"}


@pytest.mark.parametrize("site", ["h100", "gb200", "university"])
def test_a_drafted_profile_passes_a_dry_run(
    site: str, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    install(commands, site)
    Path("tiny.yaml").write_text(TINY)
    assert doctor("--write-profile", "mine.yaml") == 0
    assert "--profile ./mine.yaml" in capsys.readouterr().out
    arguments = ["run", "tiny.yaml", "--cluster", "slurm", "--profile", "./mine.yaml", "--dry-run"]
    assert submit.main(arguments) == 0
    partition = {"h100": "batch", "gb200": "nvl", "university": "gpu"}[site]
    assert f"#SBATCH --partition={partition}" in capsys.readouterr().out


def test_the_job_on_a_node_is_chosen_by_the_profile() -> None:
    own = Profile.model_validate(
        {"name": "mine", "partition": "batch", "gpu_type": "h100", "modules": ["cuda"],
         "srun": {"mpi": "none"},
         "python": "/env/bin/python"}
    )  # fmt: skip
    command = slurm_doctor.probe_command(own, ["-m", "x", "/runs"], has_gpus=True)
    assert {"--partition=batch", "--gpus-per-node=h100:1", "--mpi=none", "--mem=1G"} <= set(command)
    at = command.index("bash")
    assert "module load cuda" in command[at + 2]
    assert command[at + 4 :] == ["/env/bin/python", "-m", "x", "/runs"]
    none = Profile(name="none", partition="batch", gpus="none")
    assert not any("gpu" in word for word in slurm_doctor.probe_command(none, [], has_gpus=True))
    gres = Profile(name="gres", partition="gpu", gpus="gres")
    command = slurm_doctor.probe_command(gres, [], has_gpus=True)
    assert "--gres=gpu:1" in command
    assert sys.executable in command
    cpu = slurm_doctor.probe_command(Profile(name="cpu"), [], has_gpus=False)
    assert not any("gpu" in word for word in cpu)


def test_no_node_is_examined_where_the_probe_of_this_host_fails(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(runs: Path) -> HostFacts:
        raise error

    install(commands, "h100")
    monkeypatch.setattr(slurm_doctor, "probe_here", fail)
    monkeypatch.setattr("jobs.schedulers.local.doctor.probe_here", fail)
    options = ("--json", "--job", "--slurm", "partition=batch", "account=physics")
    error: ProbeError = ProbeError("exit code 3")
    assert doctor(*options) == 0
    document = json.loads(capsys.readouterr().out)
    assert "a node (--job)" in {each["check"] for each in document["unchecked"]}
    error = ProbeTimeout("no answer within 30 s")
    for arguments in (options, ("--json", "--cluster", "local")):
        assert doctor(*arguments) == 1
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert ("error", "runs.silent") in {(each["severity"], each["key"]) for each in findings}


def test_a_node_settles_whether_the_folder_is_shared(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    install(commands, "h100")
    commands.add("srun", 'while [ "$1" != bash ]; do shift; done; exec "$@"')
    assert doctor("--json", "--job", "--slurm", "partition=batch", "account=physics") == 0
    document = json.loads(capsys.readouterr().out)
    assert not [each for each in document["findings"] if each["key"].startswith("runs.not_shared")]
    assert not [
        each for each in document["unchecked"] if "--job" in each["reason"] or "--job" in each["check"]
    ]
    commands.add("srun", "echo 'srun: error: Unable to allocate resources' >&2; exit 1")
    assert doctor("--json", "--job", "--slurm", "partition=batch", "account=physics") == 0
    document = json.loads(capsys.readouterr().out)
    assert {"check": "a node (--job)", "reason": "srun: error: Unable to allocate resources"} in document[
        "unchecked"
    ]
