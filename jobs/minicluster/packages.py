"""Packages that the mini-cluster needs: `python -m jobs.minicluster.packages` installs them.

Only `make demo` and `make test` install packages, `make test` also those of the tests (`--tests`).
`cluster up` names missing packages and stops. `--check` installs nothing; it prints the reason and exits
with 1 where no cluster can run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path for daemons: a user's PATH may lack sbin."""

_SLURM_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "iproute2")
_ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
_TEST_PACKAGES = ("libfaketime", "zsh")
_COMMANDS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "tc", "unshare", "nsenter", "mount")
_ACCOUNTING_COMMANDS = ("slurmdbd", "mariadbd", "mariadb-install-db")
_SERVICES = ("slurmctld", "slurmd", "slurmdbd", "munge", "mariadb")
_POLICY = Path("/usr/sbin/policy-rc.d")
_PLUGINS = ("lib/*/slurm*", "lib/slurm*", "lib64/slurm*")
"""Glob patterns below /usr of Slurm's plugin folders."""
_FAKETIME = "lib/*/faketime/libfaketimeMT.so.1"


def unavailable_reason(*, accounting: bool = True) -> str | None:
    """One line on why no cluster can run on this machine; None if one can."""
    if not sys.platform.startswith("linux"):
        return f"the mini-cluster needs Linux network namespaces (this is {sys.platform})"
    if os.geteuid() != 0:
        return "the mini-cluster needs root to create network namespaces (sudo)"
    absent = missing_commands(accounting=accounting)
    if absent:
        return f"{', '.join(absent)} not found; {_install_hint(accounting)}"
    error = _namespace_error()
    return f"this machine cannot run a mini-cluster: {error}" if error else None


def _namespace_error() -> str | None:
    """Error of the kernel or container when namespaces and links are created; None if there is none."""
    links = (
        "ip link add one type veth peer name two && ip link add three type bridge"
        " && tc qdisc add dev one root tbf rate 1mbit burst 16kb latency 50ms"
    )
    command = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", links]
    done = subprocess.run(command, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return " ".join(done.stderr.split()) or f"{command[0]} exited with {done.returncode}"


def missing_commands(*, accounting: bool = True) -> list[str]:
    """Names of the required commands and plugins that are not installed."""
    wanted = [*_COMMANDS, *(_ACCOUNTING_COMMANDS if accounting else ())]
    absent = [command for command in wanted if shutil.which(command, path=PATH) is None]
    folders = (folder for pattern in _PLUGINS for folder in Path("/usr").glob(pattern))
    if accounting and not any((folder / "accounting_storage_mysql.so").exists() for folder in folders):
        absent.append("Slurm's MySQL plugin")
    return absent


def _install_hint(accounting: bool) -> str:
    if not _is_debian():
        return "the mini-cluster needs Debian or Ubuntu packages, and this machine runs neither"
    command = ["apt-get", "install", "--no-install-recommends", *_debian_packages(accounting)]
    return f"install with: {' '.join(command)}"


def _debian_packages(accounting: bool) -> list[str]:
    return [*_SLURM_PACKAGES, *(_ACCOUNTING_PACKAGES if accounting else ())]


def faketime() -> Path | None:
    """Path of libfaketime, which shifts a program's clock; None if it is not installed."""
    return next(Path("/usr").glob(_FAKETIME), None)


def install(*, tests: bool = False) -> int:
    """Install missing packages as root on Debian or Ubuntu; elsewhere print why nothing is installed.

    Returns 0 always: steps that need the packages are skipped without them.
    """
    absent = missing_commands() if sys.platform.startswith("linux") else ["Linux"]
    if tests:
        present = {"libfaketime": faketime(), "zsh": shutil.which("zsh")}
        absent += [name for name in _TEST_PACKAGES if present[name] is None]
    if not absent:
        return 0
    if not sys.platform.startswith("linux") or not _is_debian() or os.geteuid() != 0:
        print(
            "Slurm is not installed, and only root on Debian or Ubuntu can install it from here: "
            "the parts that need a real Slurm are skipped"
        )
        return 0
    print(f"{', '.join(absent)} not found: installing Debian packages", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "PATH": PATH}
    commands = [
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *_debian_packages(accounting=True)],
    ]
    if tests:
        commands[1] += _TEST_PACKAGES
    installed_before = {name for name in _SERVICES if _has_unit(name)}
    with _no_service_start():
        for command in commands:
            print(f"+ {' '.join(command)}", flush=True)
            # apt-get's output is shown only after a failure.
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                print("\n".join(done.stdout.splitlines()[-5:]))
                print(f"{command[1]} failed: the parts that need a real Slurm are skipped")
                return 0
    _disable([name for name in _SERVICES if name not in installed_before])
    return 0


def _is_debian() -> bool:
    return Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


@contextlib.contextmanager
def _no_service_start() -> Iterator[None]:
    """Packages installed inside do not start their services: Debian runs `policy-rc.d` first."""
    if _POLICY.exists():
        yield  # a container image's own file forbids it already
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _has_unit(service: str) -> bool:
    return any(
        Path(root, f"{service}.service").exists() for root in ("/lib/systemd/system", "/etc/systemd/system")
    )


def _disable(services: list[str]) -> None:
    """Disable the start of newly installed services at the next boot."""
    if services and shutil.which("systemctl"):
        units = [service for service in services if _has_unit(service)]
        subprocess.run(["systemctl", "disable", "--quiet", *units], capture_output=True, check=False)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(unavailable_reason())
    sys.exit(install(tests="--tests" in sys.argv))
