"""The table of differences between versions of Slurm."""

from __future__ import annotations

import pytest

from disttrain.documents import DOCS
from jobs.schedulers.slurm.capabilities import CAPABILITIES, capabilities
from jobs.schedulers.slurm.version import NEWEST, SlurmVersion


@pytest.mark.parametrize(
    ("name", "last_without", "first_with"),
    [
        ("exclusive_topo", SlurmVersion(23, 11), SlurmVersion(24, 5)),
        ("expedited_requeue", SlurmVersion(25, 5), SlurmVersion(25, 11)),
        ("topology_order", SlurmVersion(25, 11), SlurmVersion(26, 5)),
    ],
)
def test_a_capability_begins_with_its_version(
    name: str, last_without: SlurmVersion, first_with: SlurmVersion
) -> None:
    assert name not in capabilities(last_without)
    assert name in capabilities(first_with)


@pytest.mark.parametrize("name", ["cpu_bind_rank", "gres_beside_gpus_per_node"])
def test_a_capability_ends_with_its_version(name: str) -> None:
    until = CAPABILITIES[name].until
    assert until is not None
    assert name in capabilities(SlurmVersion(22, 5))
    assert name not in capabilities(until)


def test_an_unknown_version_is_the_newest() -> None:
    assert capabilities(None) == capabilities(NEWEST) == capabilities(SlurmVersion(99, 11))


def test_the_page_on_profiles_has_the_versions_of_all_differences() -> None:
    page = (DOCS / "profiles.md").read_text()
    versions = {each.since or each.until for each in CAPABILITIES.values()}
    assert [str(version) for version in versions if f"| {version} |" not in page] == []
