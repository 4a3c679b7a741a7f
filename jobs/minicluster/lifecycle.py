"""Bring a cluster up, take it down, and describe its state."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from disttrain.errors import ConfigError
from jobs.minicluster import config, discovery, network, packages
from jobs.minicluster.config import ClusterFolder, ClusterSpec, Subnet
from jobs.minicluster.init_protocol import (
    DETACH,
    READY,
    UP,
    ServiceError,
    expect_from_init,
    send_to_init,
)

_KILL_LIMIT_S = 30.0
_SINFO_LIMIT_S = 10.0
State = Literal["up", "coming up", "left over"]


@dataclass(frozen=True)
class Cluster:
    """A cluster that has a folder on this machine."""

    name: str
    state: State
    folder: ClusterFolder
    spec: ClusterSpec | None
    """None where `up` ended before it wrote the file."""
    subnet: Subnet | None


def up(spec: ClusterSpec) -> Cluster:
    """Bring a cluster up and return when all its nodes are idle. On failure, remove the cluster.

    Raises `ConfigError` for a bad spec, missing packages or a cluster that is up already, and
    `ServiceError` or `NetworkError` when a service or a link does not start.
    """
    config.checked(spec)
    reason = packages.unavailable_reason(accounting=spec.accounting)
    if reason:
        raise ConfigError(reason)
    folder = discovery.folder_of(spec.name)
    with discovery.locked(folder, create=True):
        if find_cluster(spec.name).state == "up":
            raise ConfigError(f"cluster {spec.name!r} is up; `cluster down --name {spec.name}` takes it down")
        try:
            _clear(folder)
            with _umask(0o022):  # users read slurm.conf, and only root writes it
                _bring_up(spec, folder)
        except BaseException:
            _take_down(folder)
            raise
    return find_cluster(spec.name)


def down(name: str) -> None:
    """End all processes of a cluster and remove its folder, in any state."""
    folder = discovery.folder_of(name)
    with discovery.locked(folder):
        _take_down(folder)


def find_cluster(name: str) -> Cluster:
    """State of a cluster that has a folder."""
    folder = discovery.folder_of(name)
    spec = subnet = None
    with contextlib.suppress(OSError, ValueError, TypeError):
        spec = ClusterSpec(**json.loads(folder.spec.read_text()))
    with contextlib.suppress(OSError, ValueError):
        subnet = Subnet(int(folder.subnet.read_text()))
    state: State = "left over"
    if discovery.init_pid(folder, discovery.HEAD) is not None:
        state = "up" if folder.is_up.exists() else "coming up"
    return Cluster(name, state, folder, spec, subnet)


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    previous = os.umask(mask)
    try:
        yield
    finally:
        os.umask(previous)


def _bring_up(spec: ClusterSpec, folder: ClusterFolder) -> None:
    folder.path.chmod(discovery.FOLDER_MODE)
    folder.logs.mkdir(mode=0o700)
    with open(discovery.init_log(folder, discovery.HEAD), "ab") as log:
        init = subprocess.Popen(
            discovery.init_command(folder, discovery.HEAD),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd="/",
            env=discovery.init_environment(packages.PATH), start_new_session=True,
        )  # fmt: skip
    try:
        with init:
            expect_from_init(init, READY, spec.head)
            subnet = network.link_to_machine(init.pid)
            folder.subnet.write_text(f"{subnet.number}\n")
            _write_files(spec, subnet, folder)
            send_to_init(init, str(subnet.number))
            expect_from_init(init, UP, spec.head)
            folder.is_up.touch()
            send_to_init(init, DETACH)
            init.returncode = 0  # the init outlives this process, so Popen must not wait for it
    except BrokenPipeError:
        raise ServiceError(
            f"{spec.head}: its namespace init ended without a reason; see {folder.logs}"
        ) from None


def _write_files(spec: ClusterSpec, subnet: Subnet, folder: ClusterFolder) -> None:
    version = _slurm_version()
    conf = config.slurm_conf(
        spec, subnet, folder, version=version, first_job=_first_job(), memory_mb=_memory_mb() // spec.nodes
    )
    files = {
        folder.spec: spec.to_json(),
        folder.hosts: config.hosts(spec, subnet),
        folder.slurm_conf: conf,
        folder.path / "gres.conf": config.gres_conf(spec, folder),
        folder.path / "cgroup.conf": config.cgroup_conf(version),
        folder.mail_program: config.mail_program(folder),
    }
    for path, text in files.items():
        path.write_text(text)
    folder.mail_program.chmod(0o755)
    for path, content in {
        folder.slurmdbd_conf: config.slurmdbd_conf(spec, folder).encode(),  # slurmdbd requires mode 0600
        folder.munge_key: secrets.token_bytes(1024),
    }.items():
        path.touch(mode=0o600)
        path.write_bytes(content)
    for directory in (folder.run, folder.devices):
        directory.mkdir()
    for directory in (folder.database, folder.controller_state):
        directory.mkdir(mode=0o700)
    for node in spec.node_names:
        folder.spool(node).mkdir(parents=True)
    for number in range(spec.gpus_per_node):  # devices like /dev/null
        os.mknod(folder.devices / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _slurm_version() -> tuple[int, int]:
    done = subprocess.run(
        ["slurmctld", "-V"], capture_output=True, text=True, check=False, env={"PATH": packages.PATH}
    )
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    if not found:
        raise ServiceError(f"slurmctld -V printed {done.stdout.strip()!r}, which is no version")
    return int(found[1]), int(found[2])


def _first_job() -> int:
    """First job id: a different one each second for 1.5 years."""
    return 1000 + int(time.time()) % 50_000_000


def _memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def _take_down(folder: ClusterFolder) -> None:
    _clear(folder)
    folder.path.rmdir()


def _clear(folder: ClusterFolder) -> None:
    """End the cluster's processes and empty its folder."""
    _kill([process.pid for process in discovery.namespace_processes(folder)])
    with contextlib.suppress(OSError, ValueError):
        network.unlink_from_machine(Subnet(int(folder.subnet.read_text())))
    for entry in folder.path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _kill(pids: list[int]) -> None:
    """Send SIGKILL and wait. The kernel ends every process of a PID namespace with its init."""
    handles = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    try:
        for handle in handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_LIMIT_S
        for handle in handles:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([handle], [], [], left_s)[0]:
                raise ServiceError(f"processes of the cluster still run {_KILL_LIMIT_S:g} s after SIGKILL")
    finally:
        for handle in handles:
            os.close(handle)


def shell_environment(cluster: Cluster, inherited: dict[str, str]) -> dict[str, str]:
    """Environment in which Slurm's commands and `disttrain` use this cluster."""
    of_other_cluster = re.compile(r"(SLURM|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SACCT|SCANCEL)_.*")
    kept = {name: value for name, value in inherited.items() if not of_other_cluster.fullmatch(name)}
    path = [str(Path(sys.executable).parent), kept.get("PATH", ""), packages.PATH]
    return kept | {"SLURM_CONF": str(cluster.folder.slurm_conf), "PATH": ":".join(filter(None, path))}


def shell_line(cluster: Cluster) -> str:
    """Line of shell after which Slurm's commands use this cluster."""
    return f"export SLURM_CONF={cluster.folder.slurm_conf}"


def node_command_prefix(cluster: Cluster, number: int) -> list[str]:
    """Command prefix that runs a command on a node. Raises `ConfigError` for a node that does not run."""
    pid = discovery.init_pid(cluster.folder, str(number))
    if pid is None:
        raise ConfigError(f"--node={number} is no running node of cluster {cluster.name!r}")
    return discovery.nsenter_prefix(pid)


def status_fields(cluster: Cluster) -> dict[str, Any]:
    """The fields of `cluster status`; nodes and partitions are None when the controller does not answer."""
    fields: dict[str, Any] = {
        "name": cluster.name,
        "state": cluster.state,
        "slurm_conf": str(cluster.folder.slurm_conf),
        "spec": asdict(cluster.spec) if cluster.spec else None,
        "link_bits_per_s": cluster.spec.link_bits_per_s if cluster.spec else None,
        "subnet": cluster.subnet.cidr if cluster.subnet else None,
        "nodes": None,
        "partitions": None,
    }
    if cluster.state == "up":
        fields["nodes"] = _sinfo(cluster, _NODE_FIELDS, "--Node", "--partition=gpu")
        fields["partitions"] = _sinfo(cluster, _PARTITION_FIELDS)
    return fields


_NODE_FIELDS = {"node": "%N", "state": "%T", "cpus": "%c", "gres": "%G", "address": "%o"}
_PARTITION_FIELDS = {"partition": "%R", "available": "%a", "tier": "%p", "preempt_mode": "%M"}


def _sinfo(cluster: Cluster, fields: dict[str, str], *flags: str) -> list[dict[str, str]] | None:
    """Rows of `sinfo`; None when the controller does not answer."""
    form = "|".join(fields.values())
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            ["sinfo", "--noheader", *flags, "-o", form], env=shell_environment(cluster, dict(os.environ)),
            capture_output=True, text=True, timeout=_SINFO_LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            rows = [line.split("|") for line in done.stdout.splitlines() if line.strip()]
            return [dict(zip(fields, map(str.strip, row), strict=True)) for row in rows]
    return None
