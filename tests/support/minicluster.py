"""Mini-clusters for tests: commands on them, injected faults, and traces of a cluster on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import submit
from jobs.minicluster import discovery, network, packages
from jobs.minicluster.lifecycle import Cluster, find_cluster, shell_environment
from tests.support.jobs import WITHIN_S, wait_until

SUBMIT = Path(submit.__file__)
_CLOCK = "/dev/shm/clock"
"""Each node has a /dev/shm of its own."""
_CLOCK_PROLOG = f"""\
#!/bin/sh
[ -n "$SLURM_STEP_ID" ] && [ "$SLURM_STEP_ID" -lt 1000000 ] && [ -e {_CLOCK} ] || exit 0
echo export LD_PRELOAD={{library}}
echo export FAKETIME_TIMESTAMP_FILE={_CLOCK}
"""
"""TaskProlog that prints the environment of a task. It skips the batch shell: libfaketime passes the name of
shared memory to its children, and that memory does not exist on another node."""


def need(why_not: str | None) -> None:
    """Skip the test if no cluster can run; under `CI=true`, `tests.support.skips` makes that a failure."""
    if why_not is not None:
        pytest.skip(why_not)


def cluster_verb(
    *arguments: str, check: bool = True, ahead: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run `python submit.py cluster ...`, with the command prefix `ahead`."""
    command = [*ahead, sys.executable, str(SUBMIT), "cluster", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@dataclass(frozen=True)
class MiniCluster:
    """A cluster that is up."""

    cluster: Cluster

    @classmethod
    def up(cls, name: str, *flags: str, ahead: Sequence[str] = ()) -> MiniCluster:
        cluster_verb("up", "--name", name, *flags, ahead=ahead)
        return cls(find_cluster(name))

    @property
    def name(self) -> str:
        return self.cluster.name

    @property
    def env(self) -> dict[str, str]:
        """Environment in which Slurm's commands use this cluster."""
        return shell_environment(self.cluster, dict(os.environ))

    def ask(self, *command: str, cwd: Path | None = None, must_succeed: bool = True) -> str:
        """Output of a command."""
        done = subprocess.run(
            command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        assert not must_succeed or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def on_node(self, number: int, *command: str) -> str:
        """Output of a command on a node."""
        return self.ask(*node_prefix(self.name, number), *command)

    def submit(self, *arguments: str, cwd: Path) -> str:
        """`python submit.py ...` on this cluster."""
        return self.ask(sys.executable, str(SUBMIT), *arguments, cwd=cwd)

    def empty(self) -> None:
        """Cancel all jobs and wait until the queue is empty."""

        def queue() -> list[str]:
            jobs = self.ask("squeue", "--noheader", "-o", "%A %t").splitlines()
            alive = [job for job, state in map(str.split, jobs) if state != "CG"]
            if alive:
                self.ask("scancel", *alive, must_succeed=False)  # they end by themselves, too
            return jobs

        wait_until(lambda: not queue())

    # ---- faults; `mend` makes good whatever was done

    def kill_controller(self) -> None:
        """Kill slurmctld after it has saved its state.

        It saves with a delay of up to 5 s, and would otherwise restart with a running job as pending.
        """
        mark = f"mark-{time.monotonic_ns()}"
        self.ask("sbatch", "--hold", f"--job-name={mark}", "--wrap", "true", cwd=Path("/"))
        saved = self.cluster.folder.controller_state / "job_state"
        wait_until(lambda: saved.exists() and mark.encode() in saved.read_bytes())
        self._signal("head", signal.SIGKILL, only="slurmctld")
        wait_until(lambda: not self.processes("head", only="slurmctld"))

    def start_controller(self) -> None:
        """Start slurmctld with its saved state, at the same address."""
        self._start("head", "slurmctld")
        wait_until(lambda: " is UP" in self.ask("scontrol", "ping", must_succeed=False))
        marks = self.ask("squeue", "--noheader", "--states=PENDING", "-o", "%i %j").splitlines()
        for job, _, name in (line.partition(" ") for line in marks):
            if name.startswith("mark-"):
                self.ask("scancel", job)

    def freeze(self, number: int, only: str | None = None) -> None:
        """Send SIGSTOP to a node's processes, or only to those of one name.

        With `only="slurmd"` Slurm marks the node down while its job runs.
        """
        self._signal(number, signal.SIGSTOP, only=only)

    def thaw(self, number: int) -> None:
        """Send SIGCONT to all processes of a node."""
        self._signal(number, signal.SIGCONT)

    def kill_node(self, number: int, *, link_up: bool = False) -> None:
        """Kill all processes of a node at once, with its link down, as in a power failure.

        With `link_up` the node's kernel resets its TCP connections, as after a quick reboot.
        """
        self.link(number, up=link_up)
        self._signal(number, signal.SIGKILL)
        wait_until(lambda: not self.processes(number))

    def start_node(self, number: int) -> None:
        """Start a killed node again, without jobs; return when Slurm lists the node as idle."""
        self.link(number, up=True)
        self._start(number, "slurmd")
        self._wait_until_idle(number)

    def link(self, number: int, *, up: bool) -> None:
        """Set the node's link up or down."""
        command = ["ip", "link", "set", network.bridge_port(number), "up" if up else "down"]
        self.ask(*discovery.nsenter_prefix(self._init_pid("head")), *command)

    def shape(self, number: int, bits_per_s: int) -> None:
        """Limit the node's link to another rate, in both directions."""
        for host, interface in (("head", network.bridge_port(number)), (number, network.NODE_INTERFACE)):
            for command in network.shaping_commands(interface, bits_per_s):
                words = command.replace("qdisc add", "qdisc replace").split()
                self.ask(*discovery.nsenter_prefix(self._init_pid(host)), "tc", *words)

    def resume_drained(self) -> None:
        """Return nodes to service that Slurm drained, because tasks took long to end (`Kill task failed`)."""
        for number in range(1, self.nodes + 1):
            if self.node_state(number) in ("drained", "draining"):
                node = f"nodename={self.name}-{number}"
                self.ask("scontrol", "update", node, "state=resume", must_succeed=False)

    def node_state(self, number: int) -> str:
        """As sinfo lists it (`%T` without its suffix)."""
        # All nodes are listed: for one node, the controller of 22.05 may return an old job count.
        command = ("sinfo", "--noheader", "--Node", "--partition=gpu", "-o", "%N %T")
        states = dict(map(str.split, self.ask(*command, must_succeed=False).splitlines()))
        return states.get(f"{self.name}-{number}", "").rstrip("*~#!%$@^-")

    def set_clock(self, number: int, offset_s: int) -> None:
        """Offset the wall clock of programs that `srun` starts on a node from now on, in seconds."""
        library = packages.faketime()
        need(None if library else "libfaketime is not installed; install with: apt-get install libfaketime")
        prolog = self.cluster.folder.path / "clock.sh"
        if not prolog.exists():
            prolog.write_text(_CLOCK_PROLOG.format(library=library))
            prolog.chmod(0o755)
            with open(self.cluster.folder.slurm_conf, "a") as conf:
                conf.write(f"TaskProlog={prolog}\n")
            self.ask("scontrol", "reconfigure")
        self.on_node(number, "sh", "-c", f"echo {offset_s:+d} > {_CLOCK}")

    def mend(self) -> None:
        """Undo all faults: all links and daemons are up, there is no job, and all nodes are idle."""
        for number in range(1, self.nodes + 1):
            self.link(number, up=True)
            self.thaw(number)
        if not self.processes("head", only="slurmctld"):
            self.start_controller()
        self.ask("scancel", "--user=root")
        for number in range(1, self.nodes + 1):
            if not self.processes(number, only="slurmd"):
                self._start(number, "slurmd")
        self.resume_drained()
        for number in range(1, self.nodes + 1):
            self._wait_until_idle(number)

    def _wait_until_idle(self, number: int) -> None:
        wait_until(lambda: self.node_state(number) == "idle")

    @property
    def nodes(self) -> int:
        assert self.cluster.spec is not None
        return self.cluster.spec.nodes

    def processes(self, host: int | str, only: str | None = None) -> list[int]:
        """Pids in the namespace of the `head` or of a node, except its namespace init and munged."""
        first = self._init_pid(host)
        home = os.readlink(f"/proc/{first}/ns/pid")
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or os.readlink(entry / "ns" / "pid") != home:
                    continue
                name = (entry / "comm").read_text().strip()
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not dead and int(entry.name) != first and name != "munged" and only in (None, name):
                    found.append(int(entry.name))
        return found

    def _signal(self, host: int | str, number: signal.Signals, only: str | None = None) -> None:
        for pid in self.processes(host, only):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _start(self, host: int | str, daemon: str) -> None:
        """Start a daemon, which moves to the background as a child of the namespace init."""
        env = discovery.init_environment(packages.PATH) | {"SLURM_CONF": str(self.cluster.folder.slurm_conf)}
        subprocess.run(
            [*discovery.nsenter_prefix(self._init_pid(host)), daemon],
            env=env,
            check=True,
            timeout=WITHIN_S,
        )

    def _init_pid(self, host: int | str) -> int:
        first = discovery.init_pid(self.cluster.folder, str(host))
        assert first is not None, f"{host} of {self.name} is gone"
        return first


def node_prefix(name: str, number: int) -> list[str]:
    return [sys.executable, str(SUBMIT), "cluster", "shell", "--name", name, "--node", str(number), "--"]


def traces(name: str) -> list[str]:
    """Traces of a cluster on this machine: processes, mounts, folder, address."""
    path = str(discovery.folder_of(name).path)
    found = [f"process {pid}" for pid in _processes(path)]
    found += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if path in line]
    if Path(path).exists():
        found.append(f"folder {path}")
    if name in Path("/etc/hosts").read_text():
        found.append("hosts")
    return found


def _processes(path: str) -> list[int]:
    """Processes whose command line or environment contains the cluster's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            if path.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def links() -> set[str]:
    """Links and named namespaces of this machine, except those of other clusters."""
    named = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    others = {
        network.interface_on_machine(cluster.subnet)
        for cluster in map(find_cluster, discovery.cluster_names())
        if cluster.subnet and cluster.state == "up"
    }
    return ({entry.name for entry in Path("/sys/class/net").iterdir()} | set(named)) - others
