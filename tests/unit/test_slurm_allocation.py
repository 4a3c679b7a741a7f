"""The job of an agent and its task, against stand-ins for Slurm's commands."""

from __future__ import annotations

import itertools
import time

import pytest

from jobs.core import requeue_policy
from jobs.schedulers import task
from jobs.schedulers.slurm import allocation
from jobs.schedulers.slurm.allocation import SlurmAllocation
from tests.support.commands import Commands

DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
LOST = "Socket timed out on send/recv operation"


def job(variables: str = "") -> SlurmAllocation:
    """The job 7, with more variables: `A=1 B=2`."""
    words = f"SLURM_JOB_ID=7 {variables}".split()
    return SlurmAllocation(dict(word.split("=", 1) for word in words))


def started(commands: Commands, name: str) -> list[str]:
    """Arguments of each call of a command."""
    prefix = f"{commands.folder}/{name} "
    return [line.removeprefix(prefix) for line in commands.calls().splitlines() if line.startswith(prefix)]


@pytest.mark.parametrize(
    ("refusals", "restarts", "done", "tries"),
    [
        ([DOWN, DOWN], 0, True, 3),
        ([LOST], 1, True, 1),  # the answer was lost: the job has been started again
        (["Requested operation is presently disabled"], 0, False, 1),
        (["slurm_suspend error: Access/permission denied"], 0, False, 1),
        (["Invalid job id specified"], 0, False, 1),
        (["Operation not permitted"], 0, False, 1),
    ],
)
def test_a_requeue_is_repeated_until_it_is_done_or_finally_refused(
    commands,
    monkeypatch,
    refusals,
    restarts,
    done,
    tries,
):
    monkeypatch.setattr(allocation, "_FIRST_PAUSE_S", 0.001)
    for number, message in enumerate(refusals, 1):
        (commands.folder / f"refusal-{number}").write_text(message)
    commands.add(
        "scontrol",
        f"""cd '{commands.folder}'; echo x >> tries; refusal=refusal-$(wc -l < tries)
[ ! -e "$refusal" ] || {{ cat "$refusal" >&2; exit 1; }}""",
    )
    commands.add("squeue", f"[ -e '{commands.folder}/tries' ] && n={restarts} || n=0; echo RUNNING $n 0 None")
    assert job().requeue(time.time() + 60, lambda: True) is done
    assert len(started(commands, "scontrol")) == tries


def test_a_requeue_ends_with_the_time_of_the_job(commands):
    commands.add("scontrol", f"echo '{DOWN}' >&2; exit 1")
    commands.add("squeue", "echo RUNNING 0 0 None")
    assert not job().requeue(time.time() + 0.1, lambda: True)
    assert len(started(commands, "scontrol")) == 1


def test_a_start_that_was_replaced_does_not_requeue_the_new_one(commands):
    """A node that was cut off retries until its link is back, and Slurm has started the job elsewhere."""
    commands.add("scontrol", "exit 0")
    commands.add("squeue", "echo 'RUNNING 1 N/A None'")
    assert job().requeue(0, lambda: True), "the job was started again"
    assert not job().requeue(0, lambda: False)
    commands.add("squeue", "exit 1")
    assert not job().requeue(0, lambda: True), "without an answer, the state of the job is unknown"
    commands.add("squeue", "echo 'RUNNING 0 N/A None'")
    answers = iter([True, False])
    commands.add("scontrol", f"echo '{DOWN}' >&2; exit 1")
    assert not job().requeue(time.time() + 60, lambda: next(answers)), "replaced between two tries"
    assert len(started(commands, "scontrol")) == 1


def test_a_task_of_an_array_requeues_itself_alone(commands):
    commands.add("scontrol", "exit 0")
    commands.add("squeue", "echo 'RUNNING 0 N/A None'")
    assert job("SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=0").requeue(0, lambda: True)
    assert job().requeue(0, lambda: True)
    assert started(commands, "scontrol") == ["requeue 7_0", "requeue 7"], "7 is the whole array"


@pytest.mark.parametrize("known", [True, False], ids=["since 23.02", "before 23.02"])
@pytest.mark.parametrize(("off_s", "side"), [(0, ""), (-700, "behind"), (700, "ahead of")])
def test_the_end_of_the_job_is_converted_to_the_clock_of_the_node(commands, capsys, off_s, side, known):
    controller = int(time.time()) - off_s
    commands.add("sdiag", f"echo '****'; echo 'sdiag output at Sun Nov 22 08:40:00 2026 ({controller})'")
    commands.add("squeue", f"echo RUNNING 0 {controller + 600} None")
    this = job(f"SLURM_JOB_END_TIME={controller + 600}" if known else "")
    end, facts = this.end_time(), this.facts()
    assert end == pytest.approx(time.time() + 600, abs=60)
    assert facts is not None
    assert facts.end == end
    out = capsys.readouterr().out
    assert side in out if side else out == ""


def test_without_an_answer_of_the_controller_there_are_defaults(commands):
    for name in ("sdiag", "scontrol", "squeue", "sinfo"):
        commands.add(name, "exit 1")
    this = job("SLURM_JOB_END_TIME=123 SLURM_JOB_NODELIST=n1")
    assert (this.end_time(), job().end_time(), this.facts(), this.time_limit_min()) == (123, None, None, None)
    assert (this.kill_wait_s(), this.node_timeout_s(), this.nodes_down(), this.hosts()) == (30, 300, [], None)


def test_settings_and_nodes_of_the_controller(commands):
    commands.add("scontrol", "printf 'KillWait = 0 sec\\nSlurmdTimeout  = 0 sec\\nSlurmdPort = 1\\n'")
    commands.add("sinfo", "printf 'n1|down\\nn1|down\\nn2|idle\\nn3|mixed*\\n'")
    this = job("SLURM_JOB_NODELIST=n[1-3]")
    assert (this.kill_wait_s(), this.node_timeout_s()) == (0, 0), "0 is a setting"
    assert this.nodes_down() == ["n1", "n3"]
    assert not this.node_responds("127.0.0.1"), "no daemon listens on port 1"


@pytest.mark.parametrize(
    ("line", "running", "cause"),
    [
        ("RUNNING 0 N/A None", True, None),
        ("COMPLETING 0 N/A None", False, None),  # scancel
        ("COMPLETING 0 N/A TimeLimit", False, "timeout"),
        ("COMPLETING 0 N/A JobLaunchFailure", False, "lost"),
        ("COMPLETING 0 N/A RaisedSignal:9(Killed)", False, "lost"),
        ("COMPLETING 0 N/A NonZeroExitCode", False, "lost"),
    ],
)
def test_the_cause_of_an_end_is_that_of_slurm_s_reason(commands, line, running, cause):
    commands.add("squeue", f"echo '{line}'")
    facts = job().facts()
    assert facts is not None
    assert (facts.running, facts.end_cause) == (running, cause)


@pytest.mark.parametrize(
    ("variables", "device", "gpus", "lacks"),
    [
        ("SLURM_GPUS_PER_NODE=4 SLURM_GPUS_ON_NODE=4", "auto", None, None),
        ("SLURM_GPUS_PER_NODE=a100:4 SLURM_GPUS_ON_NODE=2", "auto", None, "2 of the 4"),
        ("SLURM_GPUS_PER_NODE=a100:1,v100:3 CUDA_VISIBLE_DEVICES=0,1,2,3", "auto", None, None),
        ("SLURM_GPUS_PER_NODE=4 CUDA_VISIBLE_DEVICES=NoDevFiles", "auto", None, "0 of the 4"),
        ("SLURM_GPUS_PER_NODE=0", "auto", None, None),
        ("SLURM_GPUS_PER_NODE=4", "cpu", None, None),
        ("", "auto", "gpus-per-node", None),  # by hand, without GPUs
        ("SLURM_GPUS_ON_NODE=2", "auto", "gpus", "2 of the 4"),
        ("ROCR_VISIBLE_DEVICES=0,1", "auto", "gres", "2 of the 4"),
        ("", "shared", "gres", None),
    ],
)
def test_a_start_without_the_gpus_that_the_job_requested(variables, device, gpus, lacks):
    config = {"resources": {"device": device, "gpus_per_node": 4}}
    message = job(variables).missing_gpus({"config": config, "profile": gpus and {"gpus": gpus}})
    assert (message is None) == (lacks is None)
    assert lacks is None or lacks in str(message)


@pytest.mark.parametrize(
    ("hosts", "formerly", "excluded", "nodes"),
    [
        (["n2"], ["n2"], "n7", "n2,n7"),
        (["n2"], ["n1", "n2"], "n7,n1", "n2,n7"),
        ([], ["n1"], "n7,n1", "n7"),
        ([], ["n1"], "n1", ""),
        (["n2"], ["n2"], "(null)", "n2"),
    ],
    ids=["first failure", "another node before", "a checkpoint since", "none is left", "none before"],
)
def test_failed_nodes_are_excluded_beside_those_that_the_user_excludes(
    commands, tmp_path, hosts, formerly, excluded, nodes
):
    script = tmp_path / "submit.sbatch"
    commands.add(
        "scontrol",
        f"case $* in *hostnames*) echo '{excluded}' | tr , '\\n';; *) echo 'ExcNodeList={excluded}';; esac",
    )
    commands.add("sbatch", "exit 0")
    job().exclude(hosts, formerly, script)
    assert "update" not in commands.calls(), "the options of a job by hand are in no file"
    script.touch()
    job().exclude(hosts, formerly, script)
    assert f"update JobId=7 ExcNodeList={nodes}" in started(commands, "scontrol")
    tests = [line for line in commands.calls().splitlines() if "--test-only" in line]
    assert tests == [f"{commands.folder}/sbatch --test-only --exclude={nodes} {script}"] * bool(nodes)


def test_no_node_is_excluded_that_the_job_cannot_do_without(commands, tmp_path, capsys):
    commands.add("scontrol", "echo 'ExcNodeList=(null)'")
    commands.add("sbatch", "echo 'Requested node configuration is not available' >&2; exit 1")
    script = tmp_path / "submit.sbatch"
    script.touch()
    job().exclude(["n2"], ["n2"], script)
    assert "update" not in commands.calls()
    assert "not excluded: Requested node configuration" in capsys.readouterr().out


def hosts_of(commands: Commands, step: list[str], node: int, variables: str = "") -> list[str]:
    """Hosts in rank order on one node of a step, whose nodes are in another order than those of the job."""
    commands.add("scontrol", """for last; do :; done; echo "$last" | tr , '\\n'""")
    nodes, count = ",".join(step), len(step)
    of_job = f"SLURM_JOB_NODELIST={','.join(sorted(step))} SLURM_JOB_NUM_NODES={count}"
    of_step = f"SLURM_STEP_NODELIST={nodes} SLURM_STEP_NUM_NODES={count}"
    own = f"SLURM_NODEID={node} SLURMD_NODENAME={step[node]}"
    return job(f"{of_job} {of_step} {own} {variables}").hosts() or []


@pytest.mark.parametrize("step", [*itertools.permutations(["n1", "n2", "n3"])], ids="-".join)
def test_hosts_are_in_the_order_of_the_step(commands, step):
    """Since Slurm 26.05 the nodes of a step are in the order of the topology."""
    for node in range(3):
        assert hosts_of(commands, list(step), node) == list(step)
        sorted_list = hosts_of(commands, list(step), node, "SLURM_STEP_NODELIST=n1,n2,n3")
        assert sorted_list[node] == step[node], "each node is at its own rank in any order of the list"
        assert sorted(sorted_list) == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("variables", "hosts"),
    [
        ("SLURM_STEP_NODELIST=n3 SLURM_STEP_NUM_NODES=1", ["n1", "n2", "n3"]),
        ("SLURMD_NODENAME=n3.site", ["n3", "n1", "n2"]),
    ],
    ids=["a step of one node has the list of the job", "an unlisted name"],
)
def test_hosts_where_the_step_does_not_tell(commands, variables, hosts):
    assert hosts_of(commands, ["n3", "n1", "n2"], 0, variables) == hosts


@pytest.mark.parametrize(
    ("scontrol", "message"),
    [
        (None, "scontrol is not installed on"),
        ("exit 1", "scontrol does not list the nodes"),
        ("echo n1; echo n2", "node 0 of 3, and scontrol lists 2 nodes"),
    ],
)
def test_a_task_without_the_hosts_of_all_nodes_starts_nothing(
    commands,
    tmp_path,
    monkeypatch,
    capsys,
    scontrol,
    message,
):
    if scontrol is None:
        monkeypatch.setenv("PATH", str(commands.folder))  # Slurm may be installed here
    else:
        commands.add("scontrol", scontrol)
    for name, value in {"JOB_ID": "7", "NODEID": "0", "JOB_NUM_NODES": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert task.main([str(tmp_path / "run"), "--submission", "0"]) == requeue_policy.EXIT_LAUNCH_FAILED
    err = capsys.readouterr().err
    assert err.startswith(f"cannot start: {message}")
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"bin"}
