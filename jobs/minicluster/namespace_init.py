"""The first process of a cluster's head, and of each node: `python -m jobs.minicluster.namespace_init FOLDER WHO`.

As process 1 of its namespaces it adopts and buries every orphan in them, and when it ends, by whatever
signal, the kernel ends all of them: nothing of a cluster outlives it. Whoever started it talks with it
through a pipe, and until it was told to stay it ends when that pipe does.

Words from it: `ready` (the namespaces are there), `up`, `failed REASON`. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from jobs.minicluster import config, discovery, network
from jobs.minicluster.config import Folder, Spec, Subnet

WITHIN_S = 60.0
"""How long one service may take to come up on a busy machine. It is a second or so."""
_POLL_S = 0.01
_DATABASE_PORT = 3306


class ServiceError(RuntimeError):
    """A service did not come up; the message is one line."""


def main(argv: list[str]) -> int:
    folder, who = Folder(Path(argv[0])), argv[1]
    say("ready")
    try:
        subnet = Subnet(int(hear()))
        spec = Spec(**_read_spec(folder))
        os.environ["SLURM_CONF"] = str(folder.slurm_conf)
        if who == discovery.HEAD:
            bring_up_head(spec, subnet, folder)
        else:
            bring_up_node(spec, subnet, folder, int(who))
        say("up")
        hear()
    except (ServiceError, network.NetworkError, OSError, subprocess.SubprocessError, EOFError) as error:
        with contextlib.suppress(OSError):
            say(f"failed {' '.join(str(error).split()) or type(error).__name__}")
        return 1
    stay(folder, who)


def _read_spec(folder: Folder) -> dict:
    import json

    return dict(json.loads(folder.spec.read_text()))


def say(line: str) -> None:
    print(line, flush=True)


def hear() -> str:
    """The next line of whoever started this process. Raises `EOFError` when there is nobody any more."""
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        raise EOFError("nobody waits for this cluster any more")
    return line.strip()


def stay(folder: Folder, who: str) -> NoReturn:
    """Let go of the pipe and bury the dead until the end."""
    with open(folder.logs / f"keeper-{who}.log", "ab") as log:
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log.fileno()), (2, log.fileno())):
            os.dup2(source, target)
    while True:
        try:
            pid, status = os.wait()
            print(f"{time.strftime('%FT%TZ', time.gmtime())} {pid} ended: {status}", flush=True)
        except ChildProcessError:
            signal.sigtimedwait([signal.SIGCHLD], 1)


# ---- the head


def bring_up_head(spec: Spec, subnet: Subnet, folder: Folder) -> None:
    """Everything but slurmd; then the nodes, and wait until all of them are idle."""
    become(spec.head, folder)
    network.run("ip", network.head_commands(subnet))
    nodes = [start_node(folder, number) for number in range(1, spec.nodes + 1)]
    munged = start_munge(spec.head, folder)
    database = None
    if spec.accounting:
        database = start("mariadb-install-db", _install_database(folder), folder)
    for number, node in enumerate(nodes, 1):
        answer(node, "ready", spec.node_names[number - 1])
        network.run("ip", network.port_commands(number, node.pid))
        network.run("tc", network.shaping(network.port(number), spec.link_bits_per_s) or ["# unshaped"])
        tell(node, str(subnet.number))
    wait_for("munged", munged, lambda: connects(folder.munge_socket), folder)
    if database is not None:
        start_accounting(database, folder)
    controller = start("slurmctld", ["slurmctld", "-D"], folder)
    wait_for("slurmctld", controller, lambda: connects((subnet.head, config.SLURMCTLD_PORT)), folder)
    for number, node in enumerate(nodes, 1):
        tell(node, "the controller listens")
        answer(node, "up", spec.node_names[number - 1])
        tell(node, "stay")
    wait_for("slurmctld", controller, lambda: _all_idle(spec.nodes), folder)


def start_node(folder: Folder, number: int) -> subprocess.Popen[str]:
    with open(folder.logs / f"keeper-{number}.log", "ab") as log:
        return subprocess.Popen(
            discovery.keeper_command(folder, str(number)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip


def tell(keeper: subprocess.Popen[str], line: str) -> None:
    assert keeper.stdin is not None
    keeper.stdin.write(line + "\n")
    keeper.stdin.flush()


def answer(keeper: subprocess.Popen[str], wanted: str, whose: str) -> None:
    """Wait for a word of a keeper. Raises `ServiceError` when it says another, or ends."""
    assert keeper.stdout is not None
    line = keeper.stdout.readline().strip()
    if line != wanted:
        raise ServiceError(f"{whose}: {line.removeprefix('failed ') or 'ended without a word'}")


def start_accounting(installing: subprocess.Popen[bytes], folder: Folder) -> None:
    wait_for("mariadb-install-db", installing, lambda: installing.poll() == 0, folder)
    mariadb = start("mariadbd", _database(folder), folder)
    wait_for("mariadbd", mariadb, lambda: connects(("127.0.0.1", _DATABASE_PORT)), folder)
    slurmdbd = start("slurmdbd", ["slurmdbd", "-D"], folder)
    wait_for("slurmdbd", slurmdbd, lambda: connects(("127.0.0.1", config.SLURMDBD_PORT)), folder)


def _install_database(folder: Folder) -> list[str]:
    return [
        "mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={folder.database}",
        "--skip-test-db", "--auth-root-authentication-method=normal", "--skip-name-resolve", *_CARELESS,
    ]  # fmt: skip


def _database(folder: Folder) -> list[str]:
    return [
        "mariadbd", "--no-defaults", "--user=root", f"--datadir={folder.database}",
        f"--socket={folder.database_socket}", f"--pid-file={folder.run}/mariadbd.pid", "--skip-name-resolve",
        "--bind-address=127.0.0.1", f"--port={_DATABASE_PORT}", "--innodb-lock-wait-timeout=900", *_CARELESS,
    ]  # fmt: skip


_CARELESS = (
    "--innodb-flush-method=nosync",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--innodb-use-native-aio=0",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=32M",
)
"""A database that need not outlive its machine takes a second less to come up."""


def _all_idle(nodes: int) -> bool:
    listing = subprocess.run(
        ["sinfo", "--noheader", "--partition=gpu", "-o", "%t|%D"], capture_output=True, text=True, check=False
    )
    return listing.stdout.split() == [f"idle|{nodes}"]


# ---- a node


def bring_up_node(spec: Spec, subnet: Subnet, folder: Folder, number: int) -> None:
    """The node's name and link, a munged of its own (one would take another's credentials for replays),
    and slurmd once the controller listens."""
    name = spec.node_names[number - 1]
    become(name, folder)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder.run))
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")  # process ids are the node's own now
    network.run("ip", network.node_commands(subnet.node(number)))
    network.run("tc", network.shaping(network.NODE_INTERFACE, spec.link_bits_per_s) or ["# unshaped"])
    munged = start_munge(name, folder)
    wait_for("munged", munged, lambda: connects(folder.munge_socket), folder)
    hear()
    slurmd = start("slurmd", ["slurmd", "-D"], folder, log=name)
    wait_for("slurmd", slurmd, lambda: connects((subnet.node(number), config.SLURMD_PORT)), folder, log=name)


# ---- both


def become(name: str, folder: Folder) -> None:
    """Take a host name, and see every other one."""
    socket.sethostname(name)
    mount("--bind", str(folder.hosts), "/etc/hosts")


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


def start_munge(host: str, folder: Folder) -> subprocess.Popen[bytes]:
    command = [
        "munged", "--foreground", f"--socket={folder.munge_socket}", f"--key-file={folder.munge_key}",
        f"--pid-file={folder.run}/munged.pid", f"--seed-file={folder.run}/munged.seed",
        f"--log-file={folder.logs}/munged-{host}.log",
    ]  # fmt: skip
    return start("munged", command, folder, log=host)


def start(service: str, command: Sequence[str], folder: Folder, *, log: str = "") -> subprocess.Popen[bytes]:
    with open(log_of(folder, service, log), "ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def log_of(folder: Folder, service: str, host: str = "") -> Path:
    """What a service says before, or instead of, writing a log of its own."""
    return folder.logs / f"{service}{'-' if host else ''}{host}.out"


def last_line(folder: Folder, service: str, host: str = "") -> str:
    lines = log_of(folder, service, host).read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "no output")


def wait_for(
    service: str,
    process: subprocess.Popen[bytes],
    there: Callable[[], bool],
    folder: Folder,
    *,
    log: str = "",
) -> None:
    """Wait until `there`. Raises `ServiceError` when the process ends first, or takes too long, and
    `EOFError` when nobody waits for the cluster any more."""
    deadline = time.monotonic() + WITHIN_S
    while not there():
        if process.poll() is not None:
            words = last_line(folder, service, log)
            raise ServiceError(f"{service} exited with {process.returncode}: {words}")
        if _is_abandoned():
            raise EOFError("nobody waits for this cluster any more")
        if time.monotonic() > deadline:
            raise ServiceError(f"{service} did not come up within {WITHIN_S:g} s; see {folder.logs}")
        time.sleep(_POLL_S)


def _is_abandoned() -> bool:
    """Whether the pipe to whoever started this process has lost its other end."""
    pipe = select.poll()
    pipe.register(0, 0)  # no events but the ones that are always told: its end is one
    return bool(pipe.poll(0))


def connects(address: Path | tuple[str, int]) -> bool:
    """Whether somebody listens there."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(address) if isinstance(address, Path) else address)
        except OSError:
            return False
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
