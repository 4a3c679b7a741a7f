"""Options of sbatch and srun by key: what the installed commands take, and what batch scripts become."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.site_profiles import resolve
from jobs.schedulers.slurm.profile import GENERIC
from jobs.schedulers.slurm.script import render
from tests.support.commands import Commands
from tests.support.golden import golden
from tests.support.scripts import SHARED as ROOT
from tests.support.scripts import batch

REQUESTS = (
    "reservation=workshop", "exclude=gpu[01-04,7]", "gpus=gres", "gpus=gpus", "gpu_type=h100_80gb_hbm3",
    "sbatch.dependency=singleton", "sbatch.licenses=matlab:2", "sbatch.switches=1@30", "sbatch.segment=2",
    "sbatch.consolidate-segments=true", "exclusive=topo", "sbatch.stepmgr=true", "sbatch.mem-update=10@60",
    "sbatch.requeue=expedite", "srun.cpu-bind=rank", "srun.network=disable_rdzv_get",
)  # fmt: skip
"""Options that sites ask for, as `--slurm` has them."""
SLURM = """\
case "$1" in
  --help) echo '  -L, --licenses=names'; echo '  --cpu-bind='; echo '  --kill-on-bad-exit' ;;
  --licenses | --mpi) echo 'COMMAND: error: Batch script is empty!' >&2; exit 1 ;;
  --licenses=* | --mpi=* | --nice* | --hold | --exclusive=user) echo slurm 26.05.1 ;;
  --exclusive=*) echo 'COMMAND: error: Invalid --exclusive specification' >&2; exit 255 ;;
  --hold=* | --requeue=*)
    echo "COMMAND: option '${1%%=*}' doesn't allow an argument" >&2
    echo 'Try "COMMAND --help" for more information' >&2; exit 255 ;;
  *) echo "COMMAND: unrecognized option '$1'" >&2
    echo 'Try "COMMAND --help" for more information' >&2; exit 255 ;;
esac"""
"""sbatch and srun, by the output of Slurm 22.05."""


def test_scripts_of_requests_are_those_of_every_version() -> None:
    """Slurm 22.05 to 26.05 get the same text; sbatch of an older version refuses newer options itself."""
    lines, base = ["# requests by --slurm, compared with generic.sbatch"], render(batch(ROOT, GENERIC))
    for word in REQUESTS:
        script = render(batch(ROOT, resolve(ProfileSelection("generic", (word,)))))
        changes = difflib.ndiff(base.splitlines(), script.splitlines())
        lines += [word, *(f"  {line}" for line in changes if line.startswith(("+ ", "- ")))]
    golden("site-requests.txt", "\n".join(lines) + "\n")


@pytest.fixture
def slurm(commands: Commands) -> Commands:
    for name in ("sbatch", "srun"):
        commands.add(name, SLURM.replace("COMMAND", name))
    return commands


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (
            "sbatch.licences=x",
            "sbatch.licences: sbatch: unrecognized option '--licences=x'; did you mean 'licenses'?",
        ),
        ("sbatch.zzz=x", "sbatch.zzz: sbatch: unrecognized option '--zzz=x'"),
        ("sbatch.reservaton=x", "did you mean 'reservation'? It is reserved: set the profile's reservation"),
        ("sbatch.hold=yes", "sbatch.hold: sbatch: option '--hold' doesn't allow an argument"),
        ("sbatch.licenses=true", "sbatch.licenses: needs a value"),
        (
            "sbatch.requeue=expedite",
            "sbatch.requeue: sbatch: option '--requeue' doesn't allow an argument",
        ),
        ("exclusive=topo", "exclusive: sbatch: Invalid --exclusive specification"),
        ("srun.cpubind=none", "srun.cpubind: srun: unrecognized option '--cpubind=none'; did you mean"),
        ("srun.mpi=true", "srun.mpi: needs a value"),
    ],
)
def test_an_option_that_the_installed_command_refuses(slurm: Commands, word: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(ProfileSelection("generic", (word,)), try_options=True)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Try" not in str(caught.value)


@pytest.mark.parametrize("word", ["sbatch.licenses=x", "sbatch.nice=true", "srun.mpi=pmix", "exclusive=user"])
def test_an_option_that_the_installed_command_takes(slurm: Commands, word: str) -> None:
    resolve(ProfileSelection("generic", (word,)), try_options=True)


def test_an_unknown_option_in_a_file_is_found_by_its_line(slurm: Commands, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("qos: high\nsbatch:\n  licences: matlab\n")
    with pytest.raises(ConfigError, match=r"site.yaml:3: sbatch.licences: .*did you mean 'licenses'"):
        resolve(ProfileSelection(str(tmp_path / "site.yaml")), try_options=True)


def test_without_a_configuration_of_slurm_nothing_is_refused(commands: Commands) -> None:
    commands.add("sbatch", "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1")
    resolve(ProfileSelection("generic", ("sbatch.licences=x",)), try_options=True)
    resolve(ProfileSelection("infiniband", ("partition=x",)), try_options=True)
    assert commands.calls().count("sbatch --") == 1, "only for options"
