"""The job of an agent, against stand-ins for Slurm's commands."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import pytest

from jobs.schedulers.slurm import allocation
from jobs.schedulers.slurm.allocation import SlurmAllocation
from tests.support.commands import Commands


def requeue(
    commands: Commands, *refusals: str, restarts: int = 0, within_s: float = 60.0
) -> tuple[bool, int]:
    """Whether a requeue succeeds that Slurm refuses so often, and the number of tries."""
    for number, message in enumerate(refusals):
        (commands.folder / f"refusal-{number + 1}").write_text(message)
    commands.add(
        "scontrol",
        f"""cd '{commands.folder}'; echo x >> tries; refusal=refusal-$(wc -l < tries)
[ ! -e "$refusal" ] || {{ cat "$refusal" >&2; exit 1; }}""",
    )
    commands.add("squeue", f"[ -e '{commands.folder}/tries' ] && n={restarts} || n=0; echo RUNNING $n 0 None")
    done = SlurmAllocation({"SLURM_JOB_ID": "7"}).requeue(time.time() + within_s, lambda: True)
    return done, len((commands.folder / "tries").read_text().split())


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_FIRST_PAUSE_S", 0.001)


DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def test_a_requeue_is_repeated_until_the_controller_answers(commands: Commands, no_pauses: None) -> None:
    assert requeue(commands, DOWN, DOWN) == (True, 3)


def test_a_requeue_whose_answer_is_lost_is_not_repeated(commands: Commands, no_pauses: None) -> None:
    assert requeue(commands, "Socket timed out on send/recv operation", restarts=1) == (True, 1)


@pytest.mark.parametrize(
    "message",
    [
        "Requested operation is presently disabled",
        "Access/permission denied",
        "Invalid job id specified",
        "Operation not permitted",
    ],
)
def test_a_requeue_that_is_finally_refused_is_not_repeated(
    commands: Commands, no_pauses: None, message: str
) -> None:
    assert requeue(commands, f"slurm_suspend error: {message}") == (False, 1)


def test_a_requeue_ends_with_the_time_of_the_job(commands: Commands) -> None:
    assert requeue(commands, DOWN, DOWN, within_s=0.1) == (False, 1)


@pytest.mark.parametrize("off_s", [0, -700, 700])
def test_the_end_of_the_job_is_converted_to_the_clock_of_the_node(
    commands: Commands, capsys: pytest.CaptureFixture[str], off_s: int
) -> None:
    controller = int(time.time()) - off_s
    commands.add("sdiag", f"echo '****'; echo 'sdiag output at Sun Nov 22 08:40:00 2026 ({controller})'")
    commands.add("squeue", f"echo RUNNING 0 {controller + 600} None")
    allocation = SlurmAllocation({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(controller + 600)})
    end, facts = allocation.end_time(), allocation.facts()
    assert end is not None
    assert abs(end - (time.time() + 600)) < 60
    assert facts is not None
    assert facts.end == end
    side = {0: "^$", 700: "7.. s ahead of", -700: "(6|7).. s behind"}[off_s]
    assert re.search(side, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("None", None),  # scancel
        ("TimeLimit", "timeout"),
        ("JobLaunchFailure", "lost"),
        ("RaisedSignal:9(Killed)", "lost"),
        ("NonZeroExitCode", "lost"),
    ],
)
def test_the_cause_of_an_end_is_that_of_slurm_s_reason(
    commands: Commands, reason: str, cause: str | None
) -> None:
    commands.add("squeue", f"echo 'COMPLETING 0 N/A {reason}'")
    facts = SlurmAllocation({"SLURM_JOB_ID": "7"}).facts()
    assert facts is not None
    assert (facts.running, facts.end_cause) == (False, cause)


def test_a_controller_without_sdiag_leaves_the_end_as_it_is(commands: Commands) -> None:
    commands.add("sdiag", "exit 1")
    assert SlurmAllocation({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "123"}).end_time() == 123


def test_a_job_requeues_itself_by_an_id_that_means_no_other(commands: Commands) -> None:
    commands.add("scontrol", "exit 0")
    commands.add("squeue", "echo 'RUNNING 0 N/A None'")
    task = {"SLURM_JOB_ID": "70", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "0"}
    assert SlurmAllocation(task).requeue(0, lambda: True)
    assert SlurmAllocation({"SLURM_JOB_ID": "71"}).requeue(0, lambda: True)
    requests = [line for line in commands.calls().splitlines() if "scontrol" in line]
    assert [line.split()[-1] for line in requests] == ["70_0", "71"], "70 is the whole array"


@pytest.mark.parametrize(
    ("environ", "lacks"),
    [
        ({"SLURM_GPUS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "4"}, None),
        ({"SLURM_GPUS_PER_NODE": "a100:4", "SLURM_GPUS_ON_NODE": "2"}, "2 of the 4"),
        ({"SLURM_GPUS_PER_NODE": "a100:1,v100:3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, None),
        ({"SLURM_GPUS_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "0 of the 4"),
        ({"SLURM_GPUS_PER_NODE": "4"}, "0 of the 4"),
        ({"SLURM_GPUS_PER_NODE": "0"}, None),
        ({}, None),  # by hand, without GPUs
        ({"gpus": "gres", "SLURM_GPUS_ON_NODE": "4"}, None),
        ({"gpus": "gpus", "SLURM_GPUS_ON_NODE": "2"}, "2 of the 4"),
        ({"SLURM_GPUS_PER_NODE": "nvidia_h100_80gb_hbm3:4", "SLURM_GPUS_ON_NODE": "4"}, None),
        ({"gpus": "gres", "ROCR_VISIBLE_DEVICES": "0,1"}, "2 of the 4"),
        ({"gpus": "gres", "device": "shared"}, None),
        ({"SLURM_GPUS_PER_NODE": "4", "device": "cpu"}, None),
    ],
)
def test_a_start_without_the_gpus_it_asked_for(environ: dict[str, str], lacks: str | None) -> None:
    environ = {"SLURM_JOB_ID": "7", **environ}
    resources = {"device": environ.pop("device", "auto"), "gpus_per_node": 4}
    record = {"config": {"resources": resources}, "profile": {"gpus": environ.pop("gpus", "gpus-per-node")}}
    said = SlurmAllocation(environ).missing_gpus(record)
    assert said == (lacks and f"this node has {lacks} GPUs that the job requested")


def test_a_start_that_was_replaced_does_not_requeue_the_new_one(commands: Commands) -> None:
    """A node that was cut off retries until its link is back, and Slurm has started the job elsewhere."""
    commands.add("scontrol", "exit 0")
    commands.add("squeue", "echo 'RUNNING 1 N/A None'")
    old = SlurmAllocation({"SLURM_JOB_ID": "71"})
    assert old.requeue(0, lambda: True), "the job was started again"
    assert not old.requeue(0, lambda: False)
    commands.add("squeue", "exit 1")
    assert not old.requeue(0, lambda: True), "without an answer, the state of the job is unknown"
    commands.add("squeue", "echo 'RUNNING 0 N/A None'")
    answers = iter([True, False])
    commands.add("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert not old.requeue(time.time() + 60, lambda: next(answers)), "replaced between two tries"
    assert commands.calls().count("scontrol requeue") == 1


@pytest.mark.parametrize(
    ("hosts", "formerly", "nodes"),
    [
        (["n2"], ["n2"], "n2,n7"),
        (["n2"], ["n1", "n2"], "n2,n7"),
        ([], ["n1"], "n7"),
    ],
    ids=["first failure", "another node failed before", "a checkpoint since"],
)
def test_failed_nodes_are_excluded_beside_those_that_the_user_excludes(
    commands: Commands, tmp_path: Path, hosts: list[str], formerly: list[str], nodes: str
) -> None:
    script = tmp_path / "submit.sbatch"
    script.write_text("#!/bin/sh\n")
    listed = ",".join(["n7", *(host for host in formerly if host == "n1")])
    commands.add(
        "scontrol",
        f"case $* in *hostnames*) echo {listed} | tr , '\\n';; *) echo ExcNodeList={listed};; esac",
    )
    commands.add("sbatch", "exit 0")
    SlurmAllocation({"SLURM_JOB_ID": "71"}).exclude(hosts, formerly, script)
    calls = commands.calls()
    assert f"sbatch --test-only --exclude={nodes} {script}" in calls
    assert f"scontrol update JobId=71 ExcNodeList={nodes}\n" in calls


def test_no_node_is_excluded_that_the_job_cannot_do_without(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "submit.sbatch"
    script.write_text("#!/bin/sh\n")
    commands.add("scontrol", "echo 'ExcNodeList=(null)'")
    commands.add("sbatch", "echo 'Requested node configuration is not available' >&2; exit 1")
    SlurmAllocation({"SLURM_JOB_ID": "71"}).exclude(["n2"], ["n2"], script)
    assert "update" not in commands.calls()
    assert "failed nodes: n2; not excluded: Requested node configuration" in capsys.readouterr().out


def nodes_of(commands: Commands, step: list[str], node: int, **environ: str) -> list[str] | None:
    """Hosts in rank order on one node of a step, whose nodes are in another order than those of the job."""
    commands.add("scontrol", """for last; do :; done; echo "$last" | tr , '\\n'""")
    return SlurmAllocation(
        {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": ",".join(sorted(step)),
            "SLURM_JOB_NUM_NODES": str(len(step)),
            "SLURM_STEP_NODELIST": ",".join(step),
            "SLURM_STEP_NUM_NODES": str(len(step)),
            "SLURM_NODEID": str(node),
            "SLURMD_NODENAME": step[node],
            **environ,
        }
    ).hosts()


@pytest.mark.parametrize("step", [*itertools.permutations(["n1", "n2", "n3"])], ids="-".join)
def test_hosts_are_in_the_order_of_the_step(commands: Commands, step: tuple[str, ...]) -> None:
    """Since Slurm 26.05 the nodes of a step are in the order of the topology."""
    for node in range(3):
        assert nodes_of(commands, list(step), node) == list(step)


@pytest.mark.parametrize("node", [0, 1, 2])
def test_each_node_is_at_its_own_rank_in_any_order_of_the_list(commands: Commands, node: int) -> None:
    step = ["n3", "n1", "n2"]
    hosts = nodes_of(commands, step, node, SLURM_STEP_NODELIST="n1,n2,n3")
    assert hosts is not None
    assert hosts[node] == step[node]
    assert sorted(hosts) == ["n1", "n2", "n3"]


def test_a_step_of_one_node_has_all_hosts_of_the_job(commands: Commands) -> None:
    one = {"SLURM_STEP_NODELIST": "n3", "SLURM_STEP_NUM_NODES": "1"}
    assert nodes_of(commands, ["n3", "n1", "n2"], 0, **one) == ["n1", "n2", "n3"]


def test_a_node_whose_name_is_not_listed_changes_nothing(commands: Commands) -> None:
    assert nodes_of(commands, ["n3", "n1"], 0, SLURMD_NODENAME="n3.site") == ["n3", "n1"]
