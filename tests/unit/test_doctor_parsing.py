"""Outputs of Slurm's commands in their forms of several versions and sites, as facts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jobs.schedulers.slurm.commands import Gres, count_gpus, gpus_of_tres, parse_gpus, parse_gres
from jobs.schedulers.slurm.facts import Config, Node, Partition, parse_nodes, parse_partitions, parse_queue
from tests.support.cluster_sites import SITES, site_facts

H100, UNIVERSITY = site_facts("h100"), site_facts("university")


@pytest.mark.parametrize("site", SITES)
def test_every_site_is_read_whole(site):
    facts = site_facts(site)
    assert facts.config is not None
    assert {part.name for part in facts.partitions or ()} == {node.partition for node in facts.nodes or ()}
    assert facts.nodes


def test_settings_and_control_groups():
    config, old = H100.config or Config({}), UNIVERSITY.config or Config({})
    assert (config.number("KillWait"), config.text("MpiDefault"), config.text("RequeueExit")) == (
        30,
        "pmix",
        None,
    )
    assert config.text("PMIxTimeout") is None, "of another section"
    names = ("ConstrainDevices", "SignalChildrenProcesses", "Nothing")
    assert [config.is_yes(name) for name in names] == [True, False, False]
    assert config.evidence("JobRequeue", "Nothing") == "JobRequeue = 0, Nothing not set"
    assert (config.has_accounting, old.has_accounting, old.cgroup) == (True, False, {})


def test_partitions_in_both_forms():
    def form(partitions: Sequence[Partition] | None) -> list[tuple[str, bool, str, int | None]]:
        return [(part.name, part.is_default, part.state, part.max_minutes) for part in partitions or ()]

    assert form(H100.partitions) == [
        ("batch", False, "UP", 2880), ("mixed", False, "UP", None), ("old", False, "DRAIN", 60),
    ]  # fmt: skip
    assert form(UNIVERSITY.partitions) == [("cpu", True, "UP", None), ("gpu", False, "UP", 720)]
    batch, mixed, _ = list(H100.partitions or ())
    assert (batch.number("GraceTime"), mixed.text("DefMemPerNode"), batch.allows("chem")) == (120, None, True)
    assert [mixed.allows(name) for name in ("physics", "guest", "chem")] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "minutes"), [("2-01:30:00", 2970), ("00:20:00", 20), ("UNLIMITED", None), ("", None)]
)
def test_time_limits(text, minutes):
    (part,) = parse_partitions(f"PartitionName=x MaxTime={text}")
    assert part.max_minutes == minutes


def node(state: str = "idle", memory: str = "1000", gres: str = "gpu:1") -> Node:
    (parsed,) = parse_nodes(f"n1|p*|{state}|8|{memory}|{gres}\nnonsense\n")
    return parsed


def test_nodes_and_parts_of_gpus():
    shared = node(memory="1000+", gres="gpu:1g.10gb:7(S:0),mps:200,shard:h100:16,nvme:1")
    kinds = [(each.name, each.type) for each in shared.gpus]
    assert kinds == [("gpu", "1g.10gb"), ("mps", None), ("shard", "h100")]
    assert (shared.gpu_count, shared.memory_mib, shared.cpus, shared.partition) == (7, 1000, 8, "p")
    counts = {each.name: (each.cpus, each.memory_mib, each.gpu_count) for each in H100.nodes or ()}
    assert (counts["g01"], counts["m1"][2]) == ((192, 2000000, 8), 11)
    assert [each.name for each in H100.nodes or () if not each.usable] == ["g04", "o1"]


def test_usable_states_of_nodes():
    usable = ["idle", "mix-", "alloc", "comp", "idle~", "mixed#"]
    others = ["down", "drng", "drain", "fail", "maint", "inval", "drained$", "idle*"]
    assert [state for state in [*usable, *others] if node(state).usable] == usable


def test_jobs_of_queue_and_accounting():
    jobs = [(job.gpu_type, job.gpus_per_node) for job in H100.queue or ()]
    assert jobs == [("h100", 8), (None, 8), (None, 1), ("a100", 4), (None, 0)]
    assert (list(H100.accounts), H100.finished) == (["physics", "astro"], 1)
    assert UNIVERSITY.queue
    assert UNIVERSITY.accounts == ()


def test_lines_without_a_name_or_with_other_digits_are_left_out():
    assert [part.name for part in parse_partitions("PartitionName=\nPartitionName=gpu State=UP\n")] == ["gpu"]
    assert parse_nodes("g01|batch|idle|19²|2000|gpu:8\n") == ()
    assert parse_queue("batch|a|b|ada|gpu:8|²|1\n") == ()


def entry(gres: Gres) -> str:
    return f"{gres.name} {gres.type or '-'} {gres.count}"


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("gpu", "gpu - 1"),
        ("gpu:4", "gpu - 4"),
        ("gpu:h100", "gpu h100 1"),
        ("GPU:H100:4", "gpu H100 4"),
        ("gpu:nvidia_h100_80gb_hbm3:4(S:0-1)", "gpu nvidia_h100_80gb_hbm3 4"),
        ("gpu:h100:4(IDX:0,2-3),nvme:1(IDX:0)", "gpu h100 4, nvme - 1"),
        ("gpu:a100_3g.20gb:2,gpu:1g.5gb+me", "gpu a100_3g.20gb 2, gpu 1g.5gb+me 1"),
        ("gres:gpu:4", "gpu - 4"),
        ("gres/gpu:h100=4", "gpu h100 4"),
        ("gpu:no_consume:4", "gpu - 4"),
        ("lustre:2K, shard:8", "lustre - 2048, shard - 8"),
        ("no_consume", "no_consume - 1"),
        *((text, "") for text in ("(null)", "N/A", "")),
    ],
)
def test_lists_of_generic_resources(text, entries):
    assert ", ".join(map(entry, parse_gres(text))) == entries


@pytest.mark.parametrize(
    ("text", "gpus"), [("4", 4), ("h100:4", 4), ("h100=4", 4), ("a100:1,v100:3", 4), ("0", 0)]
)
def test_lists_of_gpus_alone(text, gpus):
    assert count_gpus(parse_gpus(text)) == gpus


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=8,cpu=8,gres/gpu=4,mem=1G,node=2", 4),
        ("gres/gpu:a100=2,gres/gpu:h100=3", 5),
        ("gres/gpu=5,gres/gpu:a100=2,gres/gpu:h100=3", 5),  # of all types
        ("billing=8,cpu=8,gres/gpumem=80G,gres/shard=8", None),
        ("", None),
    ],
)
def test_gpus_of_an_allocation(tres, gpus):
    assert gpus_of_tres(tres) == gpus
