"""A user who is not root: reaches nothing of the cluster but its Slurm, and runs sweeps on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json_or_none
from jobs.minicluster import discovery
from jobs.minicluster.config import SLURMCTLD_PORT, SLURMD_PORT
from tests.support.jobs import states, wait_until
from tests.support.minicluster import MiniCluster
from tests.support.ordinary_user import OrdinaryUser, ordinary_user
from tests.support.requeued import preempt

SLOW = """\
model: {kind: emulated, layers: 2, layer_mb: 1, forward_s: 0.05, backward_s: 0.1}
data: {kind: synthetic, shape: [8], classes: 2}
train: {steps: 60, local_batch_size: 4}
checkpoint: {every_steps: 10}
telemetry: {warmup_steps: 2}
job: {time_limit_min: 5}
"""


@pytest.fixture(scope="module")
def member(python_for_all: Path, accounted: MiniCluster) -> Iterator[OrdinaryUser]:
    with ordinary_user(python_for_all, accounted) as user:
        yield user


@pytest.fixture
def user(member: OrdinaryUser, slurm: MiniCluster) -> OrdinaryUser:
    return member


ACCESS = "import os, sys; [print(path) for path in sys.argv[2:] if os.access(path, int(sys.argv[1]))]"


def accessible(user: OrdinaryUser, mode: int, paths: list[Path]) -> set[Path]:
    return set(map(Path, user.ask(str(user.python), "-c", ACCESS, str(mode), *map(str, paths)).splitlines()))


def test_files_of_the_cluster_are_closed_except_those_that_its_users_read(user: OrdinaryUser) -> None:
    folder = user.cluster.cluster.folder
    paths = [folder.path, *folder.path.rglob("*")]
    assert {folder.munge_key, folder.slurmdbd_conf, folder.database_socket} < set(paths)
    private = (folder.munge_key, folder.slurmdbd_conf, folder.logs, folder.database, folder.controller_state)
    for path in accessible(user, os.R_OK, paths):
        assert not any(path.is_relative_to(each) for each in private), path
        assert path != folder.path, "who can read a folder can lock it, against `cluster down`"
    writable = accessible(user, os.W_OK, paths)
    # slurmstepd has sockets in its spool directory, and accepts there the owner of its job alone.
    assert {path for path in writable if not path.is_relative_to(folder.path / "spool")} == {
        folder.munge_socket
    }
    assert all(path.is_socket() for path in writable)
    assert folder.slurm_conf in accessible(user, os.R_OK, paths)


def test_the_database_runs_as_a_user_of_its_own_and_answers_root_alone(user: OrdinaryUser) -> None:
    socket = user.cluster.cluster.folder.database_socket
    query = ["mariadb", "--no-defaults", "--user=root", f"--socket={socket}", "-e", "select 1"]
    user.cluster.ask(*query)
    assert "Can't connect" in user.run(*query).stderr
    past_the_folder = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    as_user = ["setpriv", f"--reuid={user.name}", "--clear-groups", *past_the_folder, *query]
    done = subprocess.run(as_user, capture_output=True, text=True, check=False)
    assert "Access denied" in done.stderr
    (server,) = user.cluster.processes("head", only="mariadbd")
    assert Path(f"/proc/{server}").stat().st_uid != 0
    sockets = subprocess.run(
        [*discovery.nsenter_prefix(server), "ss", "-Hltn"], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(re.findall(r"\S+:(\d+) ", sockets)) == ["6817", "6819"], "slurmctld and slurmdbd"


@pytest.fixture
def own_munge(user: OrdinaryUser) -> Iterator[Path]:
    """Socket of a munged that the user runs with a key of his own."""
    socket, key = user.home / "munge" / "socket", user.home / "munge" / "key"
    user.ask("sh", "-c", "mkdir munge && chmod 711 . munge && head -c 1024 /dev/urandom > munge/key")
    files = [f"--{name}-file={socket.parent}/{name}" for name in ("log", "pid", "seed")]
    user.ask("munged", f"--socket={socket}", f"--key-file={key}", *files)
    yield socket
    user.ask("sh", "-c", f"munged --stop --socket={socket} && chmod 700 .")


def test_daemons_refuse_credentials_of_another_key(user: OrdinaryUser, own_munge: Path) -> None:
    """Also those of root, which a munged of the user would sign."""
    cluster, slurm = user.cluster.cluster, user.cluster
    to_slurmctld = cluster.folder.slurm_conf.read_text()
    assert cluster.subnet is not None
    to_slurmd = to_slurmctld.replace(f"({cluster.subnet.head})", f"({cluster.subnet.node(1)})")
    to_slurmd = to_slurmd.replace(f"SlurmctldPort={SLURMCTLD_PORT}", f"SlurmctldPort={SLURMD_PORT}")
    path = user.home / "slurm.conf"

    def answer(conf: str, socket: Path, *command: str) -> str:
        path.write_text(conf.replace(str(cluster.folder.munge_socket), str(socket)))
        done = subprocess.run(
            command, env=slurm.env | {"SLURM_CONF": str(path)}, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    for socket, understood in ((cluster.folder.munge_socket, True), (own_munge, False)):
        assert (answer(to_slurmctld, socket, "sinfo", "-h", "-o", "%R") == "gpu\nurgent\n") is understood
        # slurmd reads the request, which is none for it.
        assert ("Invalid argument" in answer(to_slurmd, socket, "sinfo")) is understood
        accounts = answer(to_slurmctld, socket, "sacctmgr", "-n", "show", "cluster")
        assert (slurm.name in accounts) is understood


def test_slurm_knows_the_user_as_himself(user: OrdinaryUser) -> None:
    assert user.ask("srun", "id", "-un").strip() == user.name
    for command in (
        ("sbatch", "--uid=root", "--wrap=true"),
        ("scontrol", "update", "partition=gpu", "state=down"),
        ("scontrol", "shutdown"),
        ("sacctmgr", "-i", "add", "account", "other"),
    ):
        assert user.run(*command).returncode != 0, command


@pytest.mark.slow
def test_a_sweep_is_preempted_cancelled_resumed_and_reported(user: OrdinaryUser) -> None:
    (user.home / "slow.yaml").write_text(SLOW)
    (user.home / "slow.yaml").chmod(0o644)
    user.submit("sweep", "slow.yaml", "--nodes", "1", "--cluster", "slurm", "--no-report")
    root = user.home / "runs"
    (state,) = states(root).values()

    wait_until(lambda: (read_json_or_none(state.run.progress) or {}).get("step", 0) > 0)
    preempt(user.cluster)
    wait_until(lambda: read_json_or_none(state.run.attempt(1).record))
    user.submit("cancel", "slow")
    (cancelled,) = json.loads(user.submit("status", "--json"))["runs"]
    assert cancelled["state"] == "cancelled"
    user.submit("resume", "slow", "--no-report")
    assert "1 done" in user.submit("watch", "slow")
    user.submit("report", "slow")
    assert (root / "slow" / "report" / "report.html").exists()
    records = [read_json_or_none(attempt.record) or {} for attempt in state.run.attempts()]
    assert [record["cause"] for record in records] == ["preempted", "cancelled", "finished"]
    assert {path.owner() for path in root.rglob("*")} == {user.name}
