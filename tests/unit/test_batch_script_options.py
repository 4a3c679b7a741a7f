"""Options and paths of a batch script that come from more than one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from jobs.schedulers.slurm.batch_script import render
from jobs.schedulers.slurm.site_profile import GENERIC, Profile
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
