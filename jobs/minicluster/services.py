"""The services of the head and the nodes: start each, and wait until it accepts connections.

Standard library only: a namespace init imports nothing else, so that a cluster is up within seconds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jobs.minicluster import config, init_protocol
from jobs.minicluster.config import ClusterFolder, Subnet
from jobs.minicluster.init_protocol import ServiceError

_START_LIMIT_S = 60.0
"""Time limit for the start of one service. A start takes about 1 s on an idle machine."""
_POLL_INTERVAL_S = 0.01
_DATABASE_USER = "mysql"
"""User of the Debian package. The SQL of a server that runs as root could write files as root."""
_NOT_DURABLE = (
    "--innodb-flush-method=nosync",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--innodb-use-native-aio=0",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=32M",
)
"""MariaDB options without durability: they save 1 s of startup, and the database ends with its cluster."""


def start(
    service: str,
    command: Sequence[str],
    folder: ClusterFolder,
    *,
    host: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a daemon. `host` distinguishes the log files of a service that runs on several hosts."""
    with open(output_file(folder, service, host), "ab") as output:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def start_munged(host: str, folder: ClusterFolder) -> subprocess.Popen[bytes]:
    command = [
        "munged", "--foreground", f"--socket={folder.munge_socket}", f"--key-file={folder.munge_key}",
        f"--pid-file={folder.run}/munged.pid", f"--seed-file={folder.run}/munged.seed",
        f"--log-file={folder.logs}/munged-{host}.log",
    ]  # fmt: skip
    return start("munged", command, folder, host=host)


def wait_for_munged(munged: subprocess.Popen[bytes], folder: ClusterFolder, host: str) -> None:
    wait_for("munged", munged, lambda: accepts_connections(folder.munge_socket), folder, host=host)


def start_database_install(folder: ClusterFolder) -> subprocess.Popen[bytes]:
    command = [
        "mariadb-install-db", "--no-defaults", f"--user={_DATABASE_USER}", f"--datadir={folder.database}",
        "--skip-test-db", "--auth-root-authentication-method=socket", "--skip-name-resolve", *_NOT_DURABLE,
    ]  # fmt: skip
    return start("mariadb-install-db", command, folder)


def run_accounting(installing: subprocess.Popen[bytes], folder: ClusterFolder) -> None:
    """Start MariaDB and slurmdbd once the database is installed."""
    wait_for("mariadb-install-db", installing, lambda: installing.poll() == 0, folder)
    mariadbd = start("mariadbd", _mariadbd_command(folder), folder)
    wait_for("mariadbd", mariadbd, lambda: accepts_connections(folder.database_socket), folder)
    env = os.environ | {"MYSQL_UNIX_PORT": str(folder.database_socket)}
    slurmdbd = start("slurmdbd", ["slurmdbd", "-D"], folder, env=env)
    wait_for("slurmdbd", slurmdbd, lambda: accepts_connections(("127.0.0.1", config.SLURMDBD_PORT)), folder)


def _mariadbd_command(folder: ClusterFolder) -> list[str]:
    return [
        "mariadbd", "--no-defaults", f"--user={_DATABASE_USER}", f"--datadir={folder.database}",
        f"--socket={folder.database_socket}", f"--pid-file={folder.database}/mariadbd.pid",
        "--skip-networking", "--skip-name-resolve", "--innodb-lock-wait-timeout=900", *_NOT_DURABLE,
    ]  # fmt: skip


def run_slurmctld(subnet: Subnet, folder: ClusterFolder) -> subprocess.Popen[bytes]:
    """Start slurmctld and wait until it listens."""
    controller = start("slurmctld", ["slurmctld", "-D"], folder)
    address = (subnet.head, config.SLURMCTLD_PORT)
    wait_for("slurmctld", controller, lambda: accepts_connections(address), folder)
    return controller


def run_slurmd(host: str, address: str, folder: ClusterFolder) -> None:
    """Start slurmd and wait until it listens."""
    slurmd = start("slurmd", ["slurmd", "-D"], folder, host=host)
    listens = (address, config.SLURMD_PORT)
    wait_for("slurmd", slurmd, lambda: accepts_connections(listens), folder, host=host)


def wait_for_idle_nodes(controller: subprocess.Popen[bytes], nodes: int, folder: ClusterFolder) -> None:
    """Wait until sinfo lists all nodes as idle."""
    wait_for("slurmctld", controller, lambda: _all_idle(nodes), folder)


def _all_idle(nodes: int) -> bool:
    listing = subprocess.run(
        ["sinfo", "--noheader", "--partition=gpu", "-o", "%t|%D"], capture_output=True, text=True, check=False
    )
    return listing.stdout.split() == [f"idle|{nodes}"]


def wait_for(
    service: str,
    process: subprocess.Popen[bytes],
    is_ready: Callable[[], bool],
    folder: ClusterFolder,
    *,
    host: str = "",
) -> None:
    """Wait until `is_ready`.

    Raises `ServiceError` when the process ends first or `_START_LIMIT_S` passes, and `EOFError` when the
    parent of this namespace init has ended.
    """
    deadline = time.monotonic() + _START_LIMIT_S
    while not is_ready():
        if process.poll() is not None:
            if is_ready():  # by its end, as the installation of the database
                return
            reason = last_output_line(folder, service, host)
            raise ServiceError(f"{service} exited with {process.returncode}: {reason}")
        if init_protocol.parent_has_ended():
            raise EOFError("the process that started this cluster has ended")
        if time.monotonic() > deadline:
            raise ServiceError(f"{service} did not start within {_START_LIMIT_S:g} s; see {folder.logs}")
        time.sleep(_POLL_INTERVAL_S)


def accepts_connections(address: Path | tuple[str, int]) -> bool:
    """Whether a process listens on a Unix socket (path) or on a TCP address (host, port)."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(address) if isinstance(address, Path) else address)
        except OSError:
            return False
        return True


def output_file(folder: ClusterFolder, service: str, host: str = "") -> Path:
    """File of a service's stdout and stderr, which precede its own log."""
    return folder.logs / f"{service}{'-' if host else ''}{host}.out"


def last_output_line(folder: ClusterFolder, service: str, host: str = "") -> str:
    lines = output_file(folder, service, host).read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "no output")
