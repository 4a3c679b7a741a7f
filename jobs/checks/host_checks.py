"""Rows about one host and the runs folder, and a node beside the submitting host. Pure."""

from __future__ import annotations

from pathlib import Path

from jobs import PROGRAM
from jobs.checks.finding import Check, Finding, examine
from jobs.checks.host_facts import HostFacts
from jobs.fabric.description import ENOUGH_LOCKED_BYTES

_MEMORY = {"tmpfs", "ramfs"}
_DISK = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "jfs", "reiserfs"}
_OTHER_RUNS = "choose another --runs"
_SHARED_RUNS = "choose a --runs on a file system that the nodes share, such as home or scratch"
_LOCKS = (
    "choose another --runs, or let the administrator mount with locks (Lustre: flock; NFS: a lock service)"
)
_NTP = "the administrator synchronizes both by NTP (chrony)"
_ENVIRONMENT = "put the environment on the shared file system, and name it in `python` of the site profile"


def _below(value: float | None, least: float) -> bool:
    return value is not None and value < least


def _missing(host: HostFacts, *names: str) -> str:
    return ", ".join(name for name in names if host.packages.get(name) is None)


PYTHON: tuple[Check[HostFacts], ...] = (
    Check(
        "python.version",
        "error",
        lambda host: (
            f"Python {host.python_version} ({host.python})"
            if tuple(map(int, host.python_version.split(".")[:2])) < (3, 11)
            else ""
        ),
        "{evidence} on {where} is too old: 3.11 or newer is needed",
        "make an environment with Python 3.11, and name it in `python` of the site profile",
    ),
    Check(
        "python.packages",
        "error",
        lambda host: _missing(host, "pydantic", "PyYAML"),
        "{evidence} missing on {where}",
        "install them into this interpreter (`make install`), or name another one in `python` of the site "
        "profile",
    ),
    Check(
        "python.ranks",
        "warning",
        lambda host: host.rank_python,
        "{where} cannot start ranks: {evidence}",
        f"name an environment with torch in job.python, and examine it by `{PROGRAM} doctor --python NAME`",
    ),
)
SUBMITIT: Check[HostFacts] = Check(
    "python.packages",
    "error",
    lambda host: _missing(host, "submitit"),
    "{evidence} missing on {where}: no job can be submitted",
    "install it into this interpreter (`make install`)",
)

HOST: tuple[Check[HostFacts], ...] = (
    Check(
        "host.shared_memory",
        "warning",  # the default of containers is 64 MiB
        lambda host: (
            f"/dev/shm: {(host.shared_memory or 0) / 2**20:.0f} MiB"
            if _below(host.shared_memory or 0, 2**30)
            else ""
        ),
        "/dev/shm on {where} is small: NCCL and loader processes exchange data through it and fail with "
        "`Bus error` or `No space left on device`",
        "enlarge it to 1 GiB or more (container: --shm-size=8g); meanwhile `--set data.workers=0`",
    ),
    Check(
        "host.remove_ipc",
        "warning",
        lambda host: "RemoveIPC=yes" if host.remove_ipc else "",
        "systemd-logind on {where} removes a user's files in /dev/shm when the last session of the user "
        "ends, and with them heartbeats and tensors of ranks that still run",
        "the administrator sets RemoveIPC=no in /etc/systemd/logind.conf",
    ),
    Check(
        "host.open_files",
        "warning",
        lambda host: f"ulimit -Hn: {host.open_files}" if _below(host.open_files, 4096) else "",
        "{where} limits open files: loader processes and gloo fail with `Too many open files`",
        "raise the hard limit (nofile in /etc/security/limits.conf, LimitNOFILE of the service)",
    ),
)


def _operation(name: str, consequence: str, remedy: str) -> Check[HostFacts]:
    return Check(
        f"runs.{name}",
        "error",
        lambda host: f"{host.problems[name]}, {host.runs}" if name in host.problems else "",
        f"{name} fails in the runs folder on {{where}} ({{evidence}}): {consequence}",
        remedy,
    )


FOLDER: tuple[Check[HostFacts], ...] = (
    _operation("write", "no run can be recorded", _OTHER_RUNS),
    _operation("lock", "disttrain refuses to submit", _LOCKS),
    _operation("exclusive", "two commands could submit the same sweep twice", _LOCKS),
    _operation("rename", "no record can be written", _OTHER_RUNS),
    _operation("link", "claims of attempts fail, which use hard links", _OTHER_RUNS),
    _operation("sync", "a checkpoint may be lost with its node", _OTHER_RUNS),
    Check(
        "runs.slow",
        "warning",
        lambda host: f"{host.sync_s:.1f} s, {host.runs}" if host.sync_s > 1 else "",
        "writing and flushing 4 KiB takes long on {where} ({evidence}): submissions and checkpoints are slow",
        "choose a faster --runs (scratch), or look for a load on the file server",
    ),
    Check(
        "runs.space",
        "warning",
        lambda host: f"{host.free / 2**30:.1f} GiB, {host.runs}" if host.free < 10 * 2**30 else "",
        "little space is free in the runs folder on {where} ({evidence}): checkpoints may fill it",
        f"free space (`{PROGRAM} clean --purge`), lower checkpoint.keep, or choose another --runs",
    ),
    Check(
        "runs.clock",
        "warning",
        lambda host: apart(host.clock_offset_s) if abs(host.clock_offset_s) > 5 else "",
        "the clock of the file server is {evidence} that of {where}: times of files and of records disagree",
        _NTP,
    ),
)

REACH: tuple[Check[HostFacts], ...] = (
    Check(
        "runs.memory",
        "error",
        lambda host: host.runs if host.file_system in _MEMORY else "",
        "the runs folder is in this host's memory: nodes of a job do not have it",
        _SHARED_RUNS,
    ),
    Check(
        "runs.not_shared",
        "warning",
        lambda host: host.runs if host.file_system in _DISK else "",
        "the runs folder is on a disk of this host: nodes have it only if this host exports it",
        f"choose a --runs on the shared file system; `{PROGRAM} doctor --job` tests it from a node",
    ),
    Check(
        "runs.local_locks",
        "warning",
        lambda host: (
            f"{host.runs}, options {','.join(host.mount_options)}"
            if host.file_system.startswith(("nfs", "lustre"))
            and {"nolock", "local_lock=all", "local_lock=flock", "localflock"} & {*host.mount_options}
            else ""
        ),
        "a lock holds on one host alone, so commands on two login nodes could submit a sweep twice",
        "submit each sweep from one host, or mount with locks (Lustre: flock; NFS: without nolock)",
    ),
)
"""How far the folder of the submitting host reaches, where nodes of jobs are other hosts."""

SHARING: tuple[Check[HostFacts], ...] = (
    Check(
        "runs.not_shared",
        "error",
        lambda host: f"{host.folder} is on {host.mount} there" if host.shares_folder is False else "",
        "{where} does not have the runs folder of this host",
        _SHARED_RUNS,
    ),
    Check(
        "runs.local_locks",
        "warning",
        lambda host: "" if host.shares_locks else host.runs,
        "a lock of this host does not hold on {where}: commands on two hosts could submit a sweep twice",
        _LOCKS,
    ),
)

LOCKED_MEMORY: Check[HostFacts] = Check(
    "node.locked_memory",
    "warning",
    lambda host: (
        f"ulimit -l: {(host.locked_memory or 0) // 1024} KiB"
        if _below(host.locked_memory, ENOUGH_LOCKED_BYTES)
        else ""
    ),
    "{where} limits locked memory: InfiniBand, RoCE and EFA cannot register buffers, and NCCL fails or "
    "falls back to TCP",
    "the administrator sets LimitMEMLOCK=infinity for slurmd and PropagateResourceLimitsExcept=MEMLOCK; "
    "`setup: ulimit -l unlimited` helps where the hard limit allows it",
)


def node_findings(here: HostFacts, node: HostFacts, elapsed_s: float, *, gpus: bool) -> list[Finding]:
    """Findings on a node.

    `elapsed_s`: wall time of the probe's job on this host, with its time in the queue. `gpus`: jobs use GPUs.
    """
    rows = (*PYTHON, *HOST, *SHARING, *FOLDER, *((LOCKED_MEMORY,) if gpus else ()))
    findings = examine(rows, node, node.host)
    versions = [f"Python {host.python_version}, torch {host.packages['torch']}" for host in (here, node)]
    if versions[0] != versions[1]:
        problem = f"{node.host} runs another Python or torch than the submitting host"
        evidence = f"here {versions[0]}; there {versions[1]}"
        findings.append(Finding("warning", "python.other_version", problem, _ENVIRONMENT, evidence))
    # the node's time lies within the probe's job, if the clocks agree
    early, late = here.time - 1, here.time + elapsed_s + 1
    if not early <= node.time <= late:
        offset = apart(min(0.0, node.time - early) or node.time - late)
        problem = f"the clock of {node.host} is at least {offset} that of this host"
        evidence = f"{node.time:.0f} there, {here.time:.0f} to {late - 1:.0f} here"
        findings.append(Finding("warning", "node.clock", problem, _NTP, evidence))
    return findings


def apart(seconds: float) -> str:
    return f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'}"


def silent_folder(runs: Path, where: str, why: str) -> Finding:
    """The finding where the probe of the host and the folder exceeded its time limit."""
    return Finding(
        "error",
        "runs.silent",
        f"the probe of the runs folder on {where} hangs, as commands and jobs that use the folder would",
        "wait until the file system answers (`ls` of the folder ends), or choose another --runs",
        f"{runs}: {why}",
    )
