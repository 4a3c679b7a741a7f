"""Process 1 of the head and of each node: `python -m jobs.minicluster.namespace_init FOLDER HOST`.

HOST is `head` or a node's number. Process 1 of a PID namespace reaps every orphan in the namespace. When
process 1 ends, by any signal, the kernel kills every process of the namespace, so no process of a
cluster outlives its namespace init. Until the parent process sends `detach`, the init ends with its parent.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from jobs.minicluster import discovery, init_protocol, network, services
from jobs.minicluster.config import ClusterFolder, ClusterSpec, Subnet
from jobs.minicluster.init_protocol import ServiceError


def main(argv: list[str]) -> int:
    folder, host = ClusterFolder(Path(argv[0])), argv[1]
    init_protocol.send_to_parent(init_protocol.READY)
    try:
        subnet = Subnet(int(init_protocol.receive_from_parent()))
        spec = ClusterSpec(**json.loads(folder.spec.read_text()))
        os.environ["SLURM_CONF"] = str(folder.slurm_conf)
        if host == discovery.HEAD:
            bring_up_head(spec, subnet, folder)
        else:
            bring_up_node(spec, subnet, folder, int(host))
        init_protocol.send_to_parent(init_protocol.UP)
        init_protocol.receive_from_parent()
    except (ServiceError, network.NetworkError, OSError, subprocess.SubprocessError, EOFError) as error:
        with contextlib.suppress(OSError):
            reason = " ".join(str(error).split()) or type(error).__name__
            init_protocol.send_to_parent(f"{init_protocol.FAILED}{reason}")
        return 1
    reap_orphans(folder, host)


def reap_orphans(folder: ClusterFolder, host: str) -> NoReturn:
    """Close the pipe to the parent process, then wait for ended children until a signal ends this process."""
    with open(discovery.init_log(folder, host), "ab") as log:
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log.fileno()), (2, log.fileno())):
            os.dup2(source, target)
    while True:
        try:
            pid, status = os.wait()
            print(f"{time.strftime('%FT%TZ', time.gmtime())} {pid} ended: {status}", flush=True)
        except ChildProcessError:
            signal.sigtimedwait([signal.SIGCHLD], 1)


def bring_up_head(spec: ClusterSpec, subnet: Subnet, folder: ClusterFolder) -> None:
    """Start the nodes and every service of the head; return when all nodes are idle."""
    set_host_name(spec.head, folder)
    network.run_batch("ip", network.head_commands(subnet))
    nodes = [start_node(folder, number) for number in range(1, spec.nodes + 1)]
    munged = services.start_munged(spec.head, folder)
    installing = services.start_database_install(folder) if spec.accounting else None
    for number, node in enumerate(nodes, 1):
        init_protocol.expect_from_init(node, init_protocol.READY, spec.node_names[number - 1])
        network.run_batch("ip", network.bridge_port_commands(number, node.pid))
        network.limit_rate(network.bridge_port(number), spec.link_bits_per_s)
        init_protocol.send_to_init(node, str(subnet.number))
    services.wait_for_munged(munged, folder, spec.head)
    if installing is not None:
        services.run_accounting(installing, folder)
    controller = services.run_slurmctld(subnet, folder)
    for name, node in zip(spec.node_names, nodes, strict=True):
        init_protocol.send_to_init(node, init_protocol.CONTROLLER_READY)
        init_protocol.expect_from_init(node, init_protocol.UP, name)
        init_protocol.send_to_init(node, init_protocol.DETACH)
    services.wait_for_idle_nodes(controller, spec.nodes, folder)


def start_node(folder: ClusterFolder, number: int) -> subprocess.Popen[str]:
    """Start the namespace init of a node."""
    with open(discovery.init_log(folder, str(number)), "ab") as log:
        return subprocess.Popen(
            discovery.init_command(folder, str(number)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip


def bring_up_node(spec: ClusterSpec, subnet: Subnet, folder: ClusterFolder, number: int) -> None:
    """Set up one node: host name, link, munged, and slurmd once the controller listens.

    Each node runs its own munged: a shared one would reject another node's credentials as replays.
    """
    name = spec.node_names[number - 1]
    set_host_name(name, folder)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder.run))
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")  # names there contain pids of this namespace
    network.run_batch("ip", network.node_commands(subnet.node(number)))
    network.limit_rate(network.NODE_INTERFACE, spec.link_bits_per_s)
    services.wait_for_munged(services.start_munged(name, folder), folder, name)
    init_protocol.receive_from_parent()
    services.run_slurmd(name, subnet.node(number), folder)


def set_host_name(name: str, folder: ClusterFolder) -> None:
    """Set this namespace's host name, and mount the cluster's `/etc/hosts`."""
    socket.sethostname(name)
    mount("--bind", str(folder.hosts), "/etc/hosts")


def mount(*arguments: str) -> None:
    """Run mount. Raises `ServiceError` when it fails."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
