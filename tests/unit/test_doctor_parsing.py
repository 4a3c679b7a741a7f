"""Outputs of Slurm's commands in their forms of several versions and sites, as facts."""

from __future__ import annotations

import pytest

from jobs.schedulers.slurm.facts import parse_nodes, parse_partitions, parse_queue
from tests.support.cluster_sites import SITES, site_facts


@pytest.mark.parametrize("site", SITES)
def test_every_site_is_read_whole(site: str) -> None:
    facts = site_facts(site)
    assert facts.config is not None
    assert facts.partitions
    assert facts.nodes
    assert {part.name for part in facts.partitions} == {node.partition for node in facts.nodes}


def test_settings_and_control_groups() -> None:
    config = site_facts("h100").config
    assert config is not None
    assert config.number("KillWait") == 30
    assert config.text("RequeueExit") is None
    assert config.text("MpiDefault") == "pmix"
    assert config.is_yes("ConstrainDevices") is True
    assert config.is_yes("SignalChildrenProcesses") is False
    assert config.is_yes("Nothing") is False
    assert config.text("PMIxTimeout") is None, "of another section"
    assert config.evidence("JobRequeue") == "JobRequeue = 0"
    assert config.evidence("Nothing") == "Nothing not set"
    assert config.has_accounting
    old = site_facts("university").config
    assert old is not None
    assert not old.has_accounting
    assert old.cgroup == {}


def test_partitions_in_both_forms() -> None:
    batch, mixed, old = site_facts("h100").partitions or ()
    assert (batch.name, batch.is_default, batch.number("GraceTime"), batch.max_minutes) == (
        "batch",
        False,
        120,
        2880,
    )
    assert (mixed.max_minutes, mixed.text("DefMemPerNode")) == (None, None)
    assert mixed.allows("physics")
    assert not mixed.allows("guest")
    assert not mixed.allows("chem")
    assert batch.allows("chem")
    assert old.state == "DRAIN"
    cpu, gpu = site_facts("university").partitions or ()
    assert (cpu.is_default, gpu.is_default, gpu.max_minutes) == (True, False, 720)


def test_parts_of_gpus_are_no_gpus() -> None:
    (node,) = parse_nodes("n1|p|idle|8|1000|gpu:1g.10gb:7(S:0),mps:200,shard:h100:16,nvme:1\n")
    assert [(each.name, each.type) for each in node.gpus] == [
        ("gpu", "1g.10gb"),
        ("mps", None),
        ("shard", "h100"),
    ]
    assert node.gpu_count == 7


def test_nodes_and_their_states() -> None:
    nodes = {node.name: node for node in site_facts("h100").nodes or ()}
    assert [name for name, node in nodes.items() if not node.usable] == ["g04", "o1"]
    assert (nodes["g01"].cpus, nodes["g01"].memory_mib, nodes["g01"].gpu_count) == (192, 2000000, 8)
    assert nodes["m1"].gpu_count == 11
    for state in ("down", "drng", "drain", "fail", "maint", "inval", "drained$", "idle*"):
        (node,) = parse_nodes(f"n1|p|{state}|1|1|gpu:1\n")
        assert not node.usable, state
    for state in ("idle", "mix-", "alloc", "comp", "idle~", "mixed#"):
        (node,) = parse_nodes(f"n1|p|{state}|1|1+|gpu:1\nnonsense\n")
        assert node.usable, state


def test_jobs_of_queue_and_accounting() -> None:
    facts = site_facts("h100")
    assert [(job.gpu_type, job.gpus_per_node) for job in facts.queue or ()] == [
        ("h100", 8), (None, 8), (None, 1), ("a100", 4), (None, 0),
    ]  # fmt: skip
    assert list(facts.accounts) == ["physics", "astro"]
    assert facts.finished == 1
    assert site_facts("university").queue
    assert site_facts("university").accounts == ()


@pytest.mark.parametrize(
    ("text", "minutes"), [("2-01:30:00", 2970), ("00:20:00", 20), ("UNLIMITED", None), ("", None)]
)
def test_time_limits(text: str, minutes: int | None) -> None:
    (part,) = parse_partitions(f"PartitionName=x MaxTime={text}")
    assert part.max_minutes == minutes


def test_lines_without_a_name_or_with_other_digits_are_left_out() -> None:
    assert parse_partitions("PartitionName=\nPartitionName=gpu State=UP\n")[0].name == "gpu"
    assert parse_nodes("g01|batch|idle|19²|2000|gpu:8\n") == ()
    assert parse_queue("batch|a|b|ada|gpu:8|²|1\n") == ()
