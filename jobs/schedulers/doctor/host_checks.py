"""Findings on one host: Python and its packages, `/dev/shm`, limits. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.doctor.probe import HostFacts

OLDEST_PYTHON = (3, 11)
_SHARED_MEMORY = 2**30
"""NCCL and loader processes exchange data through `/dev/shm`; a container's default is 64 MiB."""
_OPEN_FILES = 4096
"""gloo and the loader processes open a file for each connection and for each tensor in transit."""
_NEEDED = ("torch", "pydantic", "PyYAML")


def python_findings(host: HostFacts, where: str, *, needs_submitit: bool) -> Iterator[Finding]:
    """Findings on the interpreter. `where`: `this host`, or the name of a node."""
    version = tuple(int(part) for part in host.python_version.split(".")[:2])
    if version < OLDEST_PYTHON:
        yield Finding(
            "error",
            "python.version",
            f"Python {host.python_version} on {where} is too old: 3.11 or newer is needed",
            "make an environment with Python 3.11, and name it in `python` of the site profile",
            host.python,
        )
    wanted = [*_NEEDED, *(["submitit"] if needs_submitit else [])]
    absent = [name for name in wanted if host.packages.get(name) is None]
    if absent:
        yield Finding(
            "error",
            "python.packages",
            f"{', '.join(absent)} missing on {where}",
            "install them into this interpreter (`make install`), or name another one in `python` of the "
            "site profile",
            host.python,
        )


def host_findings(host: HostFacts, where: str) -> Iterator[Finding]:
    """Findings on a host that runs ranks."""
    if host.shared_memory is None or host.shared_memory < _SHARED_MEMORY:
        size = "missing" if host.shared_memory is None else f"{host.shared_memory / 2**20:.0f} MiB"
        yield Finding(
            "warning",
            "host.shared_memory",
            f"/dev/shm on {where} is small: NCCL and loader processes exchange data through it and fail with "
            "`Bus error` or `No space left on device`",
            "enlarge it to 1 GiB or more (container: --shm-size=8g); meanwhile `--set data.workers=0`",
            f"/dev/shm: {size}",
        )
    if host.remove_ipc:
        yield Finding(
            "warning",
            "host.remove_ipc",
            f"systemd-logind on {where} removes a user's files in /dev/shm when the last session of the user "
            "ends, and with them heartbeats and tensors of ranks that still run",
            "the administrator sets RemoveIPC=no in /etc/systemd/logind.conf",
            "RemoveIPC=yes",
        )
    if host.open_files is not None and host.open_files < _OPEN_FILES:
        yield Finding(
            "warning",
            "host.open_files",
            f"{where} limits open files: loader processes and gloo fail with `Too many open files`",
            "raise the hard limit (nofile in /etc/security/limits.conf, LimitNOFILE of the service)",
            f"ulimit -Hn: {host.open_files}",
        )
