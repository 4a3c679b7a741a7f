"""Options of `sbatch` in a batch script, and paths that no script can hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from disttrain.errors import ConfigError
from jobs.schedulers.slurm.profile import GENERIC, Profile
from jobs.schedulers.slurm.script import render, shape_options
from tests.support.scripts import SHARED, batch, config, directives

CONTAINED = Profile.model_validate({"name": "x", "container": {"kind": "pyxis", "image": "x"}})


def test_a_job_follows_those_before_it_and_the_dependency_of_the_profile() -> None:
    site = GENERIC.model_copy(update={"sbatch": {"dependency": "singleton"}})
    after = ("12", "14_2")
    assert directives(render(batch(SHARED, after=after)))["dependency"] == "afterany:12:14_2"
    assert directives(render(batch(SHARED, site, after=after)))["dependency"] == "afterany:12:14_2,singleton"
    assert directives(render(batch(SHARED, site)))["dependency"] == "singleton"


def test_nodes_of_the_profile_and_nodes_that_failed_are_excluded() -> None:
    site = GENERIC.model_copy(update={"exclude": "gpu[1-3]"})
    script = render(batch(SHARED, site, excluded_nodes=("n7", "n9")))
    assert directives(script)["exclude"] == "gpu[1-3],n7,n9"


def test_a_command_gets_processors_for_its_threads_alone() -> None:
    of_command = {name: section for name, section in config().items() if name != "data"}
    assert directives(render(batch(SHARED, config=of_command)))["cpus-per-task"] == "8"  # 4 ranks x 2 threads
    assert directives(render(batch(SHARED)))["cpus-per-task"] == "20"  # and 3 loaders for each rank


def test_only_a_container_refuses_a_working_directory_with_a_comma() -> None:
    folder = Path("/home/a,b")
    render(batch(SHARED / "X", folders=(folder,)))
    message = "the working directory: '/home/a,b' holds ',', which ends a path among others"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        render(batch(SHARED, CONTAINED, folders=(folder,)))
    render(batch(SHARED / "X", CONTAINED, folders=(Path("/home/X"),)))


@pytest.mark.parametrize(
    ("style", "option", "value"),
    [
        ({}, "gpus-per-node", "4"),
        ({"gpu_type": "h100"}, "gpus-per-node", "h100:4"),
        ({"gpus": "gres"}, "gres", "gpu:4"),
        ({"gpus": "gres", "gpu_type": "h100"}, "gres", "gpu:h100:4"),
        ({"gpus": "gres", "sbatch": {"gres": "nvme:1"}}, "gres", "gpu:4,nvme:1"),
        ({"sbatch": {"gres": "nvme:1"}}, "gres", "nvme:1"),
        ({"gpus": "gres", "gpu_type": "nvidia_h100_80gb_hbm3"}, "gres", "gpu:nvidia_h100_80gb_hbm3:4"),
        ({"gpus": "gpus"}, "gpus", "8"),
        ({"gpus": "gpus", "gpu_type": "h100"}, "gpus", "h100:8"),
    ],
)
def test_gpus_are_asked_for_as_the_site_likes_it(style: dict[str, Any], option: str, value: str) -> None:
    options = directives(render(batch(SHARED, Profile.model_validate({"name": "x", **style}))))
    assert options[option] == value
    assert ("gpus-per-node" in options) is (style.get("gpus", "gpus-per-node") == "gpus-per-node")


def test_no_gpus_where_nodes_come_with_theirs_or_none_are_wanted() -> None:
    for profile, device in ((Profile(name="x", gpus="none"), "auto"), (GENERIC, "cpu")):
        resources = {**config()["resources"], "device": device}
        options = directives(render(batch(SHARED, profile, config=config() | {"resources": resources})))
        assert not {"gpus-per-node", "gres"} & options.keys()


@pytest.mark.parametrize(
    ("lead_s", "limit_min", "signal_s"),
    [(60, 60, 60), (60, 1, 15), (0, 60, 1), (45.5, 600, 46), (1e9, 1e9, 65535)],
)
def test_the_warning_comes_when_ranks_stop_by_themselves(
    lead_s: float, limit_min: float, signal_s: int
) -> None:
    script = render(batch(SHARED, config=config(job={"stop_lead_s": lead_s, "time_limit_min": limit_min})))
    assert directives(script)["signal"] == f"USR2@{signal_s}"


@pytest.mark.parametrize("path", ["a\nb", "a\\b", "a\x7fb"])
def test_a_path_that_no_script_can_hold_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"--runs: .* holds a"):
        render(batch(SHARED / path))


def test_a_path_that_would_end_among_others_is_refused() -> None:
    for profile, root, what in (
        (GENERIC, "a:b", r"the code: '/shared/a:b/code' holds ':'"),
        (CONTAINED, "a,b", r"--runs: '/shared/a,b/runs/demo/n2-r0/submissions' holds ','"),
    ):
        with pytest.raises(ConfigError, match=f"^{what}, which ends a path among others$"):
            render(batch(SHARED / root, profile))
    render(batch(SHARED / "a,b"))


def test_a_percent_sign_in_a_path_is_itself() -> None:
    script = render(batch(SHARED / "100 %j"))
    assert directives(script)["output"] == "/shared/100 %%j/runs/demo/n2-r0/submissions/%j.log"


def test_the_options_of_a_shape_are_those_of_the_script_without_names(tmp_path: Path) -> None:
    site = GENERIC.model_copy(update={"partition": "gpu"})
    array = batch(tmp_path, site, runs=3, at_once=2, excluded_nodes=("n7",))
    options = shape_options(array)
    written = [line.removeprefix("#SBATCH ") for line in render(array).splitlines() if "#SBATCH" in line]
    assert [line for line in written if line in options] == options
    assert {line.partition("=")[0] for line in set(written) - set(options)} == {
        "--job-name",
        "--comment",
        "--output",
    }
    assert {"--array=0-2%2", "--nodes=2", "--partition=gpu", "--exclude=n7"} <= set(options)
