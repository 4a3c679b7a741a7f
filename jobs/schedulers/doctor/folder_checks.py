"""Findings on the runs folder. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.doctor.mounts import Mount
from jobs.schedulers.doctor.probe import FolderFacts

_SLOW_SYNC_S = 1.0
_CLOCK_S = 5.0
_FREE = 10 * 2**30
_FIX_LOCK = (
    "choose another --runs, or let the administrator mount with locks (Lustre: flock; NFS: a lock service)"
)


def folder_findings(folder: FolderFacts, where: str, *, several_hosts: bool) -> Iterator[Finding]:
    """Findings on the folder as the host `where` has it. `several_hosts`: nodes of jobs are other hosts."""
    evidence = f"{folder.tested} ({folder.mount or 'unknown file system'})"
    for operation, consequence, fix in (
        ("write", "no run can be recorded", "choose another --runs"),
        ("lock", "`submit.py` refuses to submit", _FIX_LOCK),
        ("exclusive", "two commands could submit the same sweep twice", _FIX_LOCK),
        ("rename", "no record can be written", "choose a --runs on another file system"),
        ("link", "claims of attempts fail, which use hard links", "choose a --runs on another file system"),
        ("sync", "a checkpoint may be lost with its node", "choose a --runs on another file system"),
    ):
        if operation in folder.problems:
            error = folder.problems[operation]
            problem = f"{operation} fails in the runs folder on {where} ({error}): {consequence}"
            yield Finding("error", f"runs.{operation}", problem, fix, evidence)
    if several_hosts and folder.mount is not None:
        yield from _reach(folder.mount, evidence)
    yield from _rest(folder, where, evidence)


def silent_folder(runs: Path, where: str, why: str) -> Finding:
    """The finding where the probe of the host and the folder exceeded its time limit."""
    return Finding(
        "error",
        "runs.silent",
        f"the probe of the runs folder on {where} hangs, as commands and jobs that use the folder would",
        "wait until the file system answers (`ls` of the folder ends), or choose another --runs",
        f"{runs}: {why}",
    )


def _reach(mount: Mount, evidence: str) -> Iterator[Finding]:
    if mount.reach == "memory":
        yield Finding(
            "error",
            "runs.memory",
            "the runs folder is in this host's memory: nodes of a job do not have it",
            "choose a --runs on a file system that the nodes share, such as home or scratch",
            evidence,
        )
    elif mount.reach == "disk":
        yield Finding(
            "warning",
            "runs.not_shared",
            "the runs folder is on a disk of this host: nodes have it only if this host exports it",
            "choose a --runs on the shared file system; `submit.py doctor --job` tests it from a node",
            evidence,
        )
    if mount.type.startswith("nfs") and {"nolock", "local_lock=all", "local_lock=flock"} & {
        *mount.options.split(",")
    }:
        yield _locks_end_at_host("NFS without its lock service", evidence, mount)
    if mount.type == "lustre" and "localflock" in mount.options.split(","):
        yield _locks_end_at_host("Lustre with localflock", evidence, mount)


def _locks_end_at_host(kind: str, evidence: str, mount: Mount) -> Finding:
    return Finding(
        "warning",
        "runs.local_locks",
        f"{kind}: a lock holds on one host alone, so commands on two login nodes could submit a sweep twice",
        "submit each sweep from one host, or mount with locks (Lustre: flock; NFS: without nolock)",
        f"{evidence}, options {mount.options}",
    )


def _rest(folder: FolderFacts, where: str, evidence: str) -> Iterator[Finding]:
    if folder.sync_s is not None and folder.sync_s > _SLOW_SYNC_S:
        yield Finding(
            "warning",
            "runs.slow",
            f"the file system took {folder.sync_s:.1f} s on {where} to write and flush 4 KiB: submissions "
            "and checkpoints are slow",
            "choose a faster --runs (scratch), or look for a load on the file server",
            evidence,
        )
    if folder.free is not None and folder.free < _FREE:
        yield Finding(
            "warning",
            "runs.space",
            f"{folder.free / 2**30:.1f} GiB are free in the runs folder on {where}: checkpoints may fill it",
            "free space (`submit.py clean --purge`), lower checkpoint.keep, or choose another --runs",
            evidence,
        )
    if folder.clock_offset_s is not None and abs(folder.clock_offset_s) > _CLOCK_S:
        side = "ahead of" if folder.clock_offset_s > 0 else "behind"
        yield Finding(
            "warning",
            "runs.clock",
            f"the clock of the file server is {abs(folder.clock_offset_s):.0f} s {side} that of {where}: "
            "times of files and of records disagree",
            "the administrator synchronizes both by NTP (chrony)",
            evidence,
        )
