"""Drafted site profiles: valid, and from the evidence of the site."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from disttrain.errors import ConfigError
from jobs.fabric.description import Adapter, AdapterKind, Fabric, FabricKind, Port
from jobs.schedulers.slurm import doctor
from jobs.schedulers.slurm.facts import ClusterFacts
from jobs.schedulers.slurm.profile import Profile
from tests.support.cluster_sites import SITES, site_facts

ETHERNET = Fabric(FabricKind.ETHERNET)


def drafted(facts: ClusterFacts, fabric: Fabric = ETHERNET) -> Profile:
    return Profile.model_validate({**yaml.safe_load(doctor.profile_text(facts, fabric)), "name": "mine"})


@pytest.mark.parametrize("site", SITES)
def test_every_line_has_its_evidence(site):
    facts = site_facts(site)
    lines = doctor.profile_text(facts, ETHERNET).splitlines()
    keys = [number for number, line in enumerate(lines) if not line.startswith(("#", "description"))]
    assert keys
    assert all(lines[number - 1].startswith("# ") for number in keys)
    assert drafted(facts).partition in {part.name for part in facts.partitions or ()}


H100, UNIVERSITY = site_facts("h100"), site_facts("university")
BOB = site_facts("h100", "bob")


def only(facts: ClusterFacts, *partitions: str) -> ClusterFacts:
    """A cluster of these partitions."""
    return replace(
        facts,
        partitions=[part for part in facts.partitions or () if part.name in partitions],
        nodes=tuple(node for node in facts.nodes or () if node.partition in partitions),
        queue=tuple(job for job in facts.queue or () if job.partition in partitions),
    )


GUEST = replace(only(H100, "mixed", "old"), accounts=("guest",), queue=())


@pytest.mark.parametrize(
    ("facts", "expected", "evidence"),
    [
        (
            H100,  # jobs use whole nodes
            {"partition": "batch", "account": "physics", "gpus": "gpus-per-node", "gpu_type": None,
             "exclusive": True, "cpus_per_task": 192, "memory": "0"},
            ["jobs request 25 GPUs here, those of ada 24", "2 of 3 GPU jobs use whole",
             "job.time_limit_min may be 2880 at most"],
        ),
        (
            site_facts("university", "eve"),  # shared nodes without cons_tres
            {"partition": "gpu", "gpus": "gres", "account": None, "exclusive": False, "memory": None},
            ["8 processors and 64000 MiB for each of 4 GPUs"],
        ),
        (site_facts("gb200"), {"partition": "nvl", "exclusive": True, "cpus_per_task": 144}, []),
        # no jobs: the default partition has no GPUs
        (replace(UNIVERSITY, queue=()), {"partition": "gpu"}, ["sinfo: 8 GPUs"]),
        # several types of GPUs
        (
            replace(BOB, queue=only(BOB, "mixed").queue),
            {"partition": "mixed", "gpu_type": "a100", "account": "chem"},
            [],
        ),
        # an account beside the default one, and that of the user's own jobs
        (replace(GUEST, accounts=("guest", "physics")), {"partition": "mixed", "account": "physics"}, []),
        (replace(only(BOB, "mixed"), accounts=("astro",)), {"partition": "mixed", "account": "chem"}, []),
        (only(UNIVERSITY, "cpu"), {"partition": "cpu", "gpus": "none"}, []),
    ],
)  # fmt: skip
def test_the_profile_of_a_site(facts, expected, evidence):
    made = drafted(facts)
    assert {name: getattr(made, name) for name in expected} == expected
    text = doctor.profile_text(facts, ETHERNET)
    assert [line for line in evidence if line not in text] == []


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (GUEST, "no partition of this cluster is up"),
        (replace(H100, partitions=None, refusals={"partitions": "x"}), "no profile without partitions: x"),
        (replace(H100, nodes=None, refusals={"nodes": "x"}), "no profile without nodes: x"),
    ],
)  # fmt: skip
def test_a_site_without_a_profile(facts, message):
    with pytest.raises(ConfigError, match=message):
        doctor.profile_text(facts, ETHERNET)


@pytest.mark.parametrize("kind", [FabricKind.INFINIBAND, FabricKind.ROCE, FabricKind.EFA])
def test_adapters_of_rdma_need_locked_memory(kind):
    port = Port(1, "InfiniBand", "ACTIVE", "LinkUp", 400.0, "400 Gb/sec (4X NDR)")
    adapter = Adapter("mlx5_0", AdapterKind.VERBS, None, None, None, (port,), "", for_compute=True)
    fabric = Fabric(kind, (adapter, replace(adapter, name="mlx5_1")))
    assert f"network of this host: {kind}, 2 adapters of 400 Gbit/s" in doctor.profile_text(H100, fabric)
    assert drafted(H100, fabric).setup[0].startswith("ulimit -l unlimited")
    assert drafted(H100).setup == ()


@pytest.mark.parametrize(
    ("text", "written"), [("gpu", "gpu"), ("on", '"on"'), ("01", '"01"'), ("a b", '"a b"')]
)
def test_a_name_is_text_in_yaml(text, written):
    assert doctor.word(text) == written
    assert yaml.safe_load(f"x: {written}") == {"x": text}
