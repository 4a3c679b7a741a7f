"""Options of sbatch and srun by key: what each version of Slurm takes, and what batch scripts become.

The golden files `slurm-VERSION.txt` have, for each version, the batch scripts of the shipped profiles and the
requests that sites make. Their diff is the review of a new version.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from jobs.core.sbatch_options import SBATCH_OPTIONS, SRUN_OPTIONS, Value
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.slurm.batch_script import render
from jobs.schedulers.slurm.profile_options import SBATCH_SINCE, SRUN_SINCE, check_options
from jobs.schedulers.slurm.profile_selection import resolve
from jobs.schedulers.slurm.site_profile import GENERIC, Profile
from jobs.schedulers.slurm.version import InstalledSlurm, SlurmVersion
from tests.support.commands import Commands
from tests.support.golden import golden
from tests.support.scripts import SHARED as ROOT
from tests.support.scripts import SHIPPED_NAMES, batch

VERSIONS = [
    SlurmVersion(22, 5), SlurmVersion(23, 11), SlurmVersion(24, 11),
    SlurmVersion(25, 5), SlurmVersion(25, 11), SlurmVersion(26, 5),
]  # fmt: skip
REQUESTS = (
    "reservation=workshop", "exclude=gpu[01-04,7]", "gpus=gres", "gpus=gpus", "gpu_type=h100_80gb_hbm3",
    "sbatch.dependency=singleton", "sbatch.licenses=matlab:2", "sbatch.switches=1@30", "sbatch.segment=2",
    "sbatch.consolidate-segments=true", "exclusive=topo", "sbatch.stepmgr=true", "sbatch.mem-update=10@60",
    "sbatch.requeue=expedite", "srun.cpu-bind=rank", "srun.network=disable_rdzv_get",
)  # fmt: skip
"""Options that sites ask for, as `--slurm` has them."""


def changes(script: str, base: str) -> list[str]:
    found = difflib.ndiff(base.splitlines(), script.splitlines())
    return [line for line in found if line.startswith(("+ ", "- "))] or ["(nothing)"]


def review(version: SlurmVersion) -> str:
    """How the scripts of this version differ from those without Slurm, and what the requests come to."""
    slurm = InstalledSlurm(version)
    lines = [f"# Slurm {version}: scripts of the shipped profiles, compared with profile-NAME.txt"]
    for name in SHIPPED_NAMES:
        checked = resolve(ProfileSelection(name), slurm=lambda: slurm)
        own, base = (render(batch(ROOT, each)) for each in (checked, resolve(ProfileSelection(name))))
        lines += [f"{name}: {line}" for line in changes(own, base)]
    lines.append("# requests by --slurm, compared with generic.sbatch")
    for word in REQUESTS:
        try:
            profile = resolve(ProfileSelection("generic", (word,)), slurm=lambda: slurm)
            found = changes(render(batch(ROOT, profile)), render(batch(ROOT, GENERIC)))
        except ConfigError as error:
            found = [f"refused: {error}"]
        lines += [word, *(f"  {line}" for line in found)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_scripts_of_each_version(version: SlurmVersion, commands: Commands) -> None:
    enabled = "SlurmctldParameters     = enable_expedited_requeue"
    commands.add("scontrol", f"echo '{enabled}'; echo 'SchedulerParameters = x'")
    golden(f"slurm-{version}.txt", review(version))


def problem(slurm: InstalledSlurm, **sbatch: str | bool) -> str:
    given = {name.replace("_", "-"): value for name, value in sbatch.items()}
    profile = Profile.model_validate({"name": "x", "sbatch": given})
    found = check_options(profile, slurm)
    return ": ".join(found) if found else ""


OLD = InstalledSlurm(SlurmVersion(22, 5), frozenset({"account", "licenses"}))


def test_a_typo_is_refused_with_the_nearest_name() -> None:
    said = "sbatch.licences: no option of sbatch of Slurm 22.05; did you mean 'licenses'?"
    assert problem(OLD, licences="x") == said
    assert problem(OLD, dep="singleton").endswith("; did you mean 'dependency'?"), "a beginning"
    assert problem(OLD, d="singleton") == "sbatch.d: no option of sbatch of Slurm 22.05"


@pytest.mark.parametrize(
    ("given", "meant", "key"),
    [
        ("reservaton", "reservation", "set the profile's reservation"),
        ("memm", "mem", "set the profile's memory"),
        ("consraint", "constraint", "set the profile's constraint"),
        ("cpus_per_taks", "cpus-per-task", "set the profile's cpus_per_task, which srun gets as well"),
    ],
)
def test_a_typo_of_an_option_with_a_key_of_its_own_is_refused_with_the_key(
    given: str, meant: str, key: str
) -> None:
    assert problem(OLD, **{given: "x"}).endswith(f"; did you mean '{meant}'? It is reserved: {key}")


def test_an_option_that_help_leaves_out_is_taken() -> None:
    assert problem(OLD, hint="nomultithread", network="sn_all", prefer="x") == ""


def test_an_option_of_a_plugin_is_taken_where_sbatch_lists_it() -> None:
    with_pyxis = InstalledSlurm(SlurmVersion(24, 5), frozenset({"container-name"}))
    assert problem(with_pyxis, container_name="x") == ""
    assert "no option of sbatch" in problem(OLD, container_name="x")


def test_an_option_that_a_newer_slurm_has() -> None:
    assert problem(OLD, segment="2") == "sbatch.segment: needs Slurm 24.05, and this is 22.05"
    assert problem(InstalledSlurm(SlurmVersion(24, 5)), segment="2") == ""
    patched = InstalledSlurm(SlurmVersion(22, 5), frozenset({"segment"}))
    assert problem(patched, segment="2") == ""


def test_without_slurm_options_are_those_of_the_newest_version() -> None:
    assert problem(InstalledSlurm(None), segment="2", spread_segments=True) == ""
    assert "no option of sbatch of Slurm 26.05, nor of an older one" in problem(
        InstalledSlurm(None), segmnt="2"
    )


def test_whether_an_option_takes_a_value() -> None:
    assert problem(OLD, hold="yes") == "sbatch.hold: takes no value: give true, not 'yes'"
    assert problem(OLD, licenses=True) == "sbatch.licenses: needs a value"
    assert problem(OLD, nice=True) == problem(OLD, nice="5") == ""


def test_an_unknown_option_in_a_file_is_found_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("qos: high\nsbatch:\n  licences: matlab\n")
    with pytest.raises(ConfigError, match=r"site.yaml:3: sbatch.licences: .*did you mean 'licenses'"):
        resolve(ProfileSelection(str(tmp_path / "site.yaml")), slurm=lambda: OLD)


def test_binding_by_rank_among_other_words_is_refused() -> None:
    new = InstalledSlurm(SlurmVersion(24, 11))
    found = check_options(Profile.model_validate({"name": "x", "srun": {"cpu-bind": "verbose,rank"}}), new)
    assert found == ("srun.cpu-bind", "'rank' is gone since Slurm 24.11")


def srun_problem(slurm: InstalledSlurm, **srun: str | bool) -> str:
    given = {name.replace("_", "-"): value for name, value in srun.items()}
    found = check_options(Profile.model_validate({"name": "x", "srun": given}), slurm)
    return ": ".join(found) if found else ""


def test_a_typo_of_an_option_of_srun_is_refused_with_the_nearest_name() -> None:
    said = "srun.cpubind: no option of srun of Slurm 22.05; did you mean 'cpu-bind'?"
    assert srun_problem(OLD, cpubind="none") == said
    assert srun_problem(OLD, kil_on_bad_exit=True).endswith(
        "; did you mean 'kill-on-bad-exit'? It is reserved: "
        "after one node fails, the others need time to record how they ended"
    )
    assert "no option of srun" in srun_problem(OLD, contraint="a100")


def test_options_of_srun_that_sbatch_lacks_are_taken() -> None:
    assert srun_problem(OLD, mpi="pmix", label=True, x11=True, het_group="0", network="sn_all") == ""
    assert "no option of sbatch" in problem(OLD, label=True)
    assert "no option of srun" in srun_problem(OLD, parsable=True)


def test_whether_an_option_of_srun_takes_a_value() -> None:
    assert srun_problem(OLD, label="yes") == "srun.label: takes no value: give true, not 'yes'"
    assert srun_problem(OLD, mpi=True) == "srun.mpi: needs a value"
    assert srun_problem(OLD, propagate=True) == srun_problem(OLD, propagate="MEMLOCK") == ""


def test_an_option_of_a_plugin_of_srun_is_taken_where_srun_lists_it() -> None:
    with_plugin = InstalledSlurm(SlurmVersion(24, 5), srun_options=frozenset({"uenv"}))
    assert srun_problem(with_plugin, uenv="pytorch") == ""
    assert "no option of srun" in srun_problem(OLD, uenv="pytorch")
    assert "no option of srun" in srun_problem(OLD, container_name="x")


def test_without_slurm_options_of_pyxis_are_taken() -> None:
    unknown = InstalledSlurm(None)
    assert srun_problem(unknown, container_writable=True) == problem(unknown, container_name="x") == ""
    assert srun_problem(unknown, container_writable="x").endswith("takes no value: give true, not 'x'")


def test_a_newer_option_of_srun() -> None:
    assert srun_problem(OLD, tres_bind="gres/gpu:closest") == (
        "srun.tres-bind: needs Slurm 23.02, and this is 22.05"
    )
    assert srun_problem(OLD, wait_for_children=True) == (
        "srun.wait-for-children: needs Slurm 25.05, and this is 22.05"
    )
    assert "needs Slurm 23.11" in srun_problem(OLD, external_launcher=True)
    assert srun_problem(InstalledSlurm(SlurmVersion(25, 5)), wait_for_children=True) == ""


def test_an_option_that_srun_had_before_sbatch() -> None:
    assert srun_problem(OLD, resv_ports="2") == ""
    assert problem(OLD, resv_ports="2") == "sbatch.resv-ports: needs Slurm 24.05, and this is 22.05"


def test_slurm_is_probed_only_for_options() -> None:
    def refuse() -> InstalledSlurm:
        raise AssertionError

    resolve(ProfileSelection("infiniband", ("partition=x",)), slurm=refuse)


def test_expedited_requeue_needs_its_setting(commands: Commands) -> None:
    new = InstalledSlurm(SlurmVersion(25, 11))
    commands.add("scontrol", "echo 'SlurmctldParameters = (null)'; echo 'SchedulerParameters = (null)'")
    said = "sbatch.requeue: this cluster lacks SlurmctldParameters=enable_expedited_requeue"
    assert problem(new, requeue="expedite") == said
    commands.add("scontrol", "exit 1")
    assert problem(new, requeue="expedite") == "", "sbatch decides where the controller does not answer"
    assert problem(OLD, requeue="expedite") == "sbatch.requeue: needs Slurm 25.11, and this is 22.05"


@pytest.mark.parametrize(
    ("since", "table"), [(SBATCH_SINCE, SBATCH_OPTIONS), (SRUN_SINCE, SRUN_OPTIONS)], ids=["sbatch", "srun"]
)
def test_every_dated_option_is_in_the_table(
    since: Mapping[str, SlurmVersion], table: Mapping[str, Value]
) -> None:
    assert since.keys() <= table.keys()
    assert min(since.values()) > SlurmVersion(22, 5)
