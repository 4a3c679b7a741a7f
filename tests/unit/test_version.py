"""The installed version of Slurm and its options, against stand-ins for sbatch."""

from __future__ import annotations

import pytest

from jobs.schedulers.slurm.version import SlurmVersion, installed_slurm, parse_options, parse_version
from tests.support.commands import Commands

HELP = """\
Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]
  -a, --array=indexes         job array index values
      --exclusive[=user]      allocate nodes in exclusive mode when
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
                              --mem >= --mem-per-cpu if --mem is specified.
Options provided by plugins:
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8", SlurmVersion(22, 5)),
        ("slurm 24.11.5", SlurmVersion(24, 11)),
        ("slurm 26.05.0-0rc1", SlurmVersion(26, 5)),
        ("slurm-ee 23.11.10-Bull.1.1", SlurmVersion(23, 11)),
        ("sbatch: fatal: Could not establish a configuration source", None),
        ("", None),
    ],
)
def test_versions_as_sbatch_prints_them(text: str, version: SlurmVersion | None) -> None:
    assert parse_version(text) == version
    assert version is None or str(version) in text


def test_versions_are_ordered() -> None:
    assert SlurmVersion(22, 5) < SlurmVersion(23, 2) < SlurmVersion(23, 11) < SlurmVersion(24, 5)


def test_options_of_plugins_are_listed() -> None:
    assert parse_options(HELP) == {
        "array", "exclusive", "extra-node-info", "mem", "mem-per-cpu", "container-image",
    }  # fmt: skip


def test_each_command_is_probed_once(commands: Commands) -> None:
    answers = f"--version) echo slurm 24.05.3;; --help) cat <<'X'\n{HELP}X\n;; --usage) echo [--nice];;"
    commands.add("sbatch", f"case $1 in {answers} esac")
    commands.add("srun", "case $1 in --help) echo '  --mpi=type';; --usage) echo '[--uenv]';; esac")
    for _ in range(3):
        found = installed_slurm()
    assert found.version == SlurmVersion(24, 5)
    assert {"container-image", "nice"} < found.sbatch_options
    assert found.srun_options == {"mpi", "uenv"}
    assert commands.calls().count("sbatch --") == 3
    assert commands.calls().count("srun --") == 2


def test_an_sbatch_without_a_configuration_is_an_unknown_slurm(commands: Commands) -> None:
    commands.add("sbatch", "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1")
    assert (installed_slurm().version, installed_slurm().sbatch_options) == (None, frozenset())
    assert commands.calls().count("sbatch --") == 1


def test_a_host_without_sbatch_has_no_slurm(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(commands.folder))
    assert installed_slurm().version is None
