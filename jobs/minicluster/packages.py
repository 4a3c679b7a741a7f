"""What the mini-cluster needs from the machine; `python -m jobs.minicluster.packages` installs it.

Only `make demo` and `make test` do that, the latter with what the tests alone need (`--tests`); a cluster
says what is missing and stops. With `--check` it installs nothing and tells, in words and exit code,
whether there can be a cluster here.
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
"""Where daemons are looked for: a user's PATH need not have sbin."""

_SLURM = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "iproute2")
_ACCOUNTING = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
_TESTS = ("libfaketime",)
_COMMANDS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "tc", "unshare", "nsenter", "mount")
_ACCOUNTING_COMMANDS = ("slurmdbd", "mariadbd", "mariadb-install-db")
_SERVICES = ("slurmctld", "slurmd", "slurmdbd", "munge", "mariadb")
_POLICY = Path("/usr/sbin/policy-rc.d")
_PLUGINS = ("lib/*/slurm*", "lib/slurm*", "lib64/slurm*")
"""Where below /usr Slurm's plugins may lie."""
_FAKETIME = "lib/*/faketime/libfaketimeMT.so.1"


def why_not(*, accounting: bool = True) -> str | None:
    """Why no cluster can be brought up here, in one line; None if it can."""
    if not sys.platform.startswith("linux"):
        return f"the mini-cluster needs Linux's network namespaces (this is {sys.platform})"
    if os.geteuid() != 0:
        return "the mini-cluster makes network namespaces, and needs root for it (sudo)"
    absent = missing(accounting=accounting)
    if absent:
        return f"{', '.join(absent)} not found; {_remedy(accounting)}"
    refusal = _refusal()
    return f"no mini-cluster here: {refusal}" if refusal else None


def _refusal() -> str | None:
    """What the kernel or a container says against a cluster's namespaces and links; None if nothing."""
    links = (
        "ip link add one type veth peer name two && ip link add three type bridge"
        " && tc qdisc add dev one root tbf rate 1mbit burst 16kb latency 50ms"
    )
    command = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", links]
    done = subprocess.run(command, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return " ".join(done.stderr.split()) or f"{command[0]} exited with {done.returncode}"


def missing(*, accounting: bool = True) -> list[str]:
    """The commands and plugins that are not there."""
    wanted = [*_COMMANDS, *(_ACCOUNTING_COMMANDS if accounting else ())]
    absent = [command for command in wanted if shutil.which(command, path=PATH) is None]
    folders = (folder for pattern in _PLUGINS for folder in Path("/usr").glob(pattern))
    if accounting and not any((folder / "accounting_storage_mysql.so").exists() for folder in folders):
        absent.append("Slurm's MySQL plugin")
    return absent


def _remedy(accounting: bool) -> str:
    if not _is_debian():
        return "the mini-cluster is made of Debian's or Ubuntu's packages, and this is neither"
    command = ["apt-get", "install", "--no-install-recommends", *_packages(accounting)]
    return f"install with: {' '.join(command)}"


def _packages(accounting: bool) -> list[str]:
    return [*_SLURM, *(_ACCOUNTING if accounting else ())]


def faketime() -> Path | None:
    """The library that makes a program's clock another one, where it is installed."""
    return next(Path("/usr").glob(_FAKETIME), None)


def install(*, tests: bool = False) -> int:
    """Install what is missing, if this is root on Debian or Ubuntu; say what is done, or why nothing is.

    Never fails the caller: what needs the packages is skipped without them, and says so.
    """
    absent = missing() if sys.platform.startswith("linux") else ["Linux"]
    if tests and faketime() is None:
        absent += _TESTS
    if not absent:
        return 0
    if not sys.platform.startswith("linux") or not _is_debian() or os.geteuid() != 0:
        print(
            "Slurm is not installed, and only root on Debian or Ubuntu gets it from here: "
            "the parts that need a real Slurm are skipped"
        )
        return 0
    print(f"the parts on a real Slurm need {', '.join(absent)}: installing Debian packages", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "PATH": PATH}
    commands = [
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *_packages(accounting=True)],
    ]
    if tests:
        commands[1] += _TESTS
    installed_before = {name for name in _SERVICES if _has_unit(name)}
    with _services_stay_down():
        for command in commands:
            print(f"+ {' '.join(command)}", flush=True)
            # Their talk is of interest only when they fail.
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
def _services_stay_down() -> Iterator[None]:
    """Packages installed within do not start their services (Debian asks `policy-rc.d` first)."""
    if _POLICY.exists():
        yield  # a container image's own, which says the same
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
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
    """Keep services that came with the packages from starting at the next boot."""
    if services and shutil.which("systemctl"):
        units = [service for service in services if _has_unit(service)]
        subprocess.run(["systemctl", "disable", "--quiet", *units], capture_output=True, check=False)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(why_not())
    sys.exit(install(tests="--tests" in sys.argv))
