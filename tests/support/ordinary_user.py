"""An ordinary user of this machine, with a checkout, who can run this Python even if it lies below /root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.core.code_copy import read_code
from jobs.minicluster import packages
from tests.support.jobs import WITHIN_S
from tests.support.minicluster import MiniCluster, need

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


@contextmanager
def readable_python() -> Iterator[Path]:
    """A folder with a virtual environment of this Python and its packages, `venv`, for all users.

    Its mounts are seen by clusters that come up later.
    """
    folder = Path(tempfile.mkdtemp(prefix="disttrain-user-"))
    folder.chmod(0o755)
    site_packages = Path("venv", "lib", _VERSION, "site-packages")
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder)
        for source, target in (
            (sys.base_prefix, Path("python")),
            (sysconfig.get_path("purelib"), site_packages),
        ):
            (folder / target).mkdir(parents=True)
            mount = ["mount", "-o", "bind,ro", source, str(folder / target)]
            subprocess.run(mount, check=True)
            cleanup.callback(subprocess.run, ["umount", "--lazy", str(folder / target)], check=True)
        (folder / "venv" / "bin").mkdir()
        (folder / "venv" / "bin" / "python").symlink_to(folder / "python" / "bin" / _VERSION)
        (folder / "venv" / "pyvenv.cfg").write_text(f"home = {folder}/python/bin\n")
        yield folder


@dataclass(frozen=True)
class OrdinaryUser:
    """A user of this machine and of a cluster; nobody else enters the home directory."""

    name: str
    home: Path
    python: Path
    libraries: Path
    cluster: MiniCluster

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the home directory."""
        own = {"HOME": str(self.home), "TMPDIR": str(self.home), "USER": self.name}
        own |= {"PATH": f"{self.python.parent}:{packages.PATH}", "LD_LIBRARY_PATH": str(self.libraries)}
        own |= {"SLURM_CONF": str(self.cluster.cluster.folder.slurm_conf)}
        return subprocess.run(
            command, cwd=self.home, user=self.name, group=self.name, extra_groups=[], umask=0o077,
            env=own | env,
            capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip

    def ask(self, *command: str) -> str:
        """Output of a command, which must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *arguments: str) -> str:
        """`python submit.py ...` from the user's own checkout, in a shell of the cluster."""
        program = [str(self.python), "disttrain/submit.py"]
        return self.ask(*program, "cluster", "shell", "--name", self.cluster.name, "--", *program, *arguments)


@contextmanager
def ordinary_user(folder: Path, cluster: MiniCluster) -> Iterator[OrdinaryUser]:
    """A new user, whose checkout `disttrain` has the present code. `folder`: that of `readable_python`."""
    name, home = f"disttrain{os.getpid()}", folder / "home"
    command = ["useradd", "--home-dir", str(home), "--no-create-home", "--shell", "/bin/sh", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        need(f"no user can be added: {done.stderr.strip()}" if done.returncode != 0 else None)
    except FileNotFoundError:
        need("no user can be added: useradd not found")
    try:
        for path, content in read_code().files.items():
            copy = home / "disttrain" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        entry = pwd.getpwnam(name)
        for path in (home, *home.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        home.chmod(0o700)
        user = OrdinaryUser(
            name, home, folder / "venv" / "bin" / "python", folder / "python" / "lib", cluster
        )
        tried = user.run(str(user.python), "-c", "import torch")
        need(
            f"another user cannot run this Python: {tried.stderr.strip()}" if tried.returncode != 0 else None
        )
        yield user
    finally:
        subprocess.run(["userdel", name], check=True)
