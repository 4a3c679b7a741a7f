"""Findings of a probe on a node, compared with the facts of the submitting host. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.fabric.description import ENOUGH_LOCKED_BYTES
from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.doctor.folder_checks import folder_findings
from jobs.schedulers.doctor.host_checks import host_findings, python_findings
from jobs.schedulers.doctor.probe import ProbeFacts


def node_findings(here: ProbeFacts, node: ProbeFacts, elapsed_s: float, *, gpus: bool) -> Iterator[Finding]:
    """Findings on the node.

    `elapsed_s`: wall time of the probe's job on this host, with its time in the queue. `gpus`: jobs use GPUs.
    """
    where = node.host.host
    yield from python_findings(node.host, where, needs_submitit=False)
    yield from host_findings(node.host, where)
    yield from _same_python(here, node)
    yield from _shared_folder(node, where)
    yield from folder_findings(node.folder, where, several_hosts=False)
    yield from _clock(here, node, elapsed_s)
    locked = node.host.locked_memory
    if gpus and locked is not None and locked < ENOUGH_LOCKED_BYTES:
        yield Finding(
            "warning",
            "node.locked_memory",
            f"{where} limits locked memory: InfiniBand, RoCE and EFA cannot register buffers, and NCCL fails "
            "or falls back to TCP",
            "the administrator sets LimitMEMLOCK=infinity for slurmd and PropagateResourceLimitsExcept="
            "MEMLOCK; `setup: ulimit -l unlimited` helps where the hard limit allows it",
            f"ulimit -l: {locked // 1024} KiB",
        )


def _same_python(here: ProbeFacts, node: ProbeFacts) -> Iterator[Finding]:
    own, other = here.host, node.host
    torch, other_torch = own.packages.get("torch"), other.packages.get("torch")
    if own.python_version == other.python_version and torch == other_torch:
        if own.python_identity != other.python_identity:
            yield Finding(
                "note",
                "python.other_file",
                f"{other.host} runs another file of the interpreter, of the same version",
                "keep both hosts' installations equal, or put the environment on the shared file system",
                f"{own.python} here, {other.python} there",
            )
        return
    yield Finding(
        "warning",
        "python.other_version",
        f"{other.host} runs another Python or torch than the submitting host",
        "put the environment on the shared file system, and name it in `python` of the site profile",
        f"here Python {own.python_version}, torch {torch}; "
        f"there Python {other.python_version}, torch {other_torch}",
    )


def _shared_folder(node: ProbeFacts, where: str) -> Iterator[Finding]:
    shared, folder = node.shared, node.folder
    if shared is None:
        return
    if not shared.seen:
        yield Finding(
            "error",
            "runs.not_shared",
            f"{where} does not have the runs folder of this host",
            "choose a --runs on a file system that the nodes share, such as home or scratch",
            f"{folder.path} is on {folder.mount or 'an unknown file system'} there",
        )
    elif shared.locked is False:
        yield Finding(
            "warning",
            "runs.local_locks",
            f"a lock of this host does not hold on {where}: commands on two hosts could submit a sweep twice",
            "submit each sweep from one host, or mount with locks (Lustre: flock; NFS: a lock service)",
            f"{folder.mount or folder.path}",
        )


def _clock(here: ProbeFacts, node: ProbeFacts, elapsed_s: float) -> Iterator[Finding]:
    """The node's time lies within the probe's job, if the clocks agree."""
    early, late = here.host.time, here.host.time + elapsed_s
    offset_s = min(0.0, node.host.time - early + 1) or max(0.0, node.host.time - late - 1)
    if offset_s:
        side = "ahead of" if offset_s > 0 else "behind"
        yield Finding(
            "warning",
            "node.clock",
            f"the clock of {node.host.host} is at least {abs(offset_s):.0f} s {side} that of this host",
            "the administrator synchronizes both by NTP (chrony)",
            f"{node.host.time:.0f} there, {early:.0f} to {late:.0f} here",
        )
