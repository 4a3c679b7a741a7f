"""Drafted site profiles: valid, from the evidence of the site, and accepted by a dry run."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from disttrain.errors import ConfigError
from jobs.fabric.description import Adapter, AdapterKind, Fabric, FabricKind, Port
from jobs.schedulers.slurm import doctor
from jobs.schedulers.slurm.facts import ClusterFacts
from jobs.schedulers.slurm.profile import Profile
from tests.support.cluster_sites import SITES, site_facts

ETHERNET = Fabric(FabricKind.ETHERNET)


def drafted(facts: ClusterFacts) -> Profile:
    return Profile.model_validate({**yaml.safe_load(doctor.profile_text(facts, ETHERNET)), "name": "mine"})


@pytest.mark.parametrize("site", SITES)
def test_every_line_has_its_evidence(site: str) -> None:
    facts = site_facts(site)
    lines = doctor.profile_text(facts, ETHERNET).splitlines()
    keys = [index for index, line in enumerate(lines) if not line.startswith(("#", "description"))]
    assert keys
    assert all(lines[index - 1].startswith("# ") for index in keys)
    assert drafted(facts).partition in {part.name for part in facts.partitions or ()}


def test_a_site_whose_jobs_use_whole_nodes() -> None:
    made = drafted(site_facts("h100"))
    assert (made.partition, made.account, made.gpus, made.gpu_type) == (
        "batch", "physics", "gpus-per-node", None,
    )  # fmt: skip
    assert (made.exclusive, made.cpus_per_task, made.memory) == (True, 192, "0")
    text = doctor.profile_text(site_facts("h100"), ETHERNET)
    for evidence in (
        "jobs request 25 GPUs here, those of ada 24",
        "4 of h100", "2 of 3 GPU jobs use whole", "job.time_limit_min may be 2880 at most",
    ):  # fmt: skip
        assert evidence in text


def test_a_site_of_shared_nodes_without_cons_tres() -> None:
    facts = site_facts("university", "eve")
    made = drafted(facts)
    assert (made.partition, made.gpus, made.account) == ("gpu", "gres", None)
    assert (made.exclusive, made.cpus_per_task, made.memory) == (False, None, None)
    assert "8 processors and 64000 MiB for each of 4 GPUs" in doctor.profile_text(facts, ETHERNET)


def test_a_site_without_jobs() -> None:
    made = drafted(site_facts("gb200"))
    assert (made.partition, made.exclusive, made.cpus_per_task) == ("nvl", True, 144)
    idle = dataclasses.replace(site_facts("university"), queue=())
    assert drafted(idle).partition == "gpu", "the default partition has no GPUs"
    assert "sinfo: 8 GPUs" in doctor.profile_text(idle, ETHERNET)


def test_a_partition_of_several_types_has_one_chosen() -> None:
    facts = site_facts("h100", "bob")
    others = tuple(job for job in facts.queue or () if job.partition == "mixed")
    facts = dataclasses.replace(facts, queue=others)
    made = drafted(facts)
    assert (made.partition, made.gpu_type, made.account) == ("mixed", "a100", "chem")


def test_the_partition_admits_the_account_and_is_up() -> None:
    facts = dataclasses.replace(site_facts("h100"), accounts=("guest", "physics"))
    names = {part.name for part in facts.partitions or () if part.name != "batch"}
    alone = [part for part in facts.partitions or () if part.name in names]
    facts = dataclasses.replace(facts, partitions=alone, queue=())
    with pytest.raises(ConfigError, match="no partition of this cluster is up"):
        doctor.profile_text(dataclasses.replace(facts, accounts=("guest",)), ETHERNET)
    made = drafted(facts)
    assert (made.partition, made.account) == ("mixed", "physics"), "an account beside the default one"


def test_a_partition_of_own_jobs_admits_their_account() -> None:
    facts = site_facts("h100", "bob")
    alone = [part for part in facts.partitions or () if part.name == "mixed"]
    made = drafted(dataclasses.replace(facts, partitions=alone, accounts=("astro",)))
    assert (made.partition, made.account) == ("mixed", "chem")


@pytest.mark.parametrize("part", ["partitions", "nodes"])
def test_a_part_that_slurm_did_not_list_is_named(part: str) -> None:
    facts = dataclasses.replace(
        site_facts("h100"), refusals={part: "`x`: no answer within 10 s"}, **{part: None}
    )
    with pytest.raises(ConfigError, match=f"no profile without {part}: `x`: no answer within 10 s"):
        doctor.profile_text(facts, ETHERNET)


@pytest.mark.parametrize("kind", [FabricKind.INFINIBAND, FabricKind.ROCE, FabricKind.EFA])
def test_adapters_of_rdma_need_locked_memory(kind: FabricKind) -> None:
    port = Port(1, "InfiniBand", "ACTIVE", "LinkUp", 400.0, "400 Gb/sec (4X NDR)")
    adapters = [
        Adapter(name, AdapterKind.VERBS, None, None, None, (port,), "", for_compute=True)
        for name in ("mlx5_0", "mlx5_1")
    ]
    text = doctor.profile_text(site_facts("h100"), Fabric(kind, tuple(adapters)))
    assert f"network of this host: {kind}, 2 adapters of 400 Gbit/s" in text
    made = Profile.model_validate({**yaml.safe_load(text), "name": "mine"})
    assert made.setup[0].startswith("ulimit -l unlimited")
    assert drafted(site_facts("h100")).setup == ()


def test_a_cluster_of_processors() -> None:
    facts = site_facts("university")
    nodes = tuple(node for node in facts.nodes or () if node.partition == "cpu")
    parts = [part for part in facts.partitions or () if part.name == "cpu"]
    made = drafted(dataclasses.replace(facts, nodes=nodes, partitions=parts))
    assert (made.partition, made.gpus) == ("cpu", "none")


@pytest.mark.parametrize(
    ("text", "written"), [("gpu", "gpu"), ("on", '"on"'), ("01", '"01"'), ("a b", '"a b"')]
)
def test_a_name_is_text_in_yaml(text: str, written: str) -> None:
    assert doctor.word(text) == written
    assert yaml.safe_load(f"x: {written}") == {"x": text}
