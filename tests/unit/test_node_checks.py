"""The checks of the pre-flight: each names the node at fault, and finds nothing on healthy ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from jobs.checks import node_checks as checks
from jobs.checks.finding import Finding
from jobs.checks.node_checks import findings_of_facts
from jobs.checks.node_facts import NodeFacts

AGREED = {"torch": "2.14.1", "fabric": "infiniband"}
RATES: dict[str, Any] = {"write_bytes_per_s": 1e9, "read_bytes_per_s": 2e9}
GOOD = NodeFacts(0, "n0", 1000.0, AGREED, 8, {"/runs": 10**12}, ranks=4, gpus=8, **RATES)
MIB = 2**20
NEEDED = {"/runs": 64 * MIB, "/elsewhere": 1}
Changes = Mapping[int, Mapping[str, Any]]


def nodes(changes: Changes, count: int = 4) -> list[NodeFacts]:
    """Equal nodes, of which some have other facts."""
    return [
        replace(GOOD, node=number, host=f"n{number}", **changes.get(number, {})) for number in range(count)
    ]


def summary(findings: Sequence[Finding]) -> list[str]:
    return [f"{each.severity} {each.key} {','.join(each.hosts)}".strip() for each in findings]


GPU = {"severity": "warning", "message": "GPU 0: throttled", "remedy": "cool it"}
DEAD, NARROW = {"defects": ["mlx5_3: port 1 is DOWN"]}, {"defects": ["mlx5_0: PCIe carries 252 Gbit/s"]}
LITTLE, SOME = ({"memory_lock_bytes": limit, "rdma": True} for limit in (64 * MIB - 1, 64 * MIB))
OLD, FULL = {"agreement": AGREED | {"torch": "2.13.0"}}, {"free_bytes": {"/runs": MIB}}


@pytest.mark.parametrize(
    ("changes", "count", "expected"),
    [
        ({}, 4, []),
        # a value that ranks need alike, one that they do not, and one that was not read
        ({2: OLD}, 4, ["error agreement n2"]),
        ({2: {"agreement": AGREED | {"plugin": "1"}}}, 4, ["warning agreement n2"]),
        ({2: {"agreement": {"fabric": "infiniband"}}}, 4, ["warning agreement n2"]),
        ({1: OLD}, 2, ["error agreement"]),  # no majority
        ({1: {"missing_gpus": "3 of 4 GPUs"}}, 4, ["error gpus n1"]),
        ({3: {"gpus": 0}}, 4, ["error gpus n3"]),  # its ranks would train on the CPU
        ({3: {"gpus": 4}}, 4, []),  # as many as ranks
        ({3: {"gpus": None}}, 4, []),
        ({1: {"gpu_problems": [GPU]}}, 4, ["warning gpu_health"]),
        ({1: {"gpu_problems": [{**GPU, "severity": "error"}]}}, 4, ["error gpu_health n1"]),
        ({1: {"processors": 3}}, 4, ["warning processors"]),
        ({0: {"far_from_gpus": [0, 1]}, 1: {"far_from_gpus": [0, 1]}}, 4, ["warning affinity"]),
        ({0: LITTLE, 1: LITTLE, 2: SOME}, 4, ["error memory_lock n0,n1", "warning memory_lock"]),
        ({0: LITTLE | {"rdma": False}, 1: {"rdma": True}}, 4, []),
        ({1: DEAD, 2: DEAD, 3: NARROW}, 4, ["warning defects", "warning defects"]),
        ({0: LITTLE | DEAD}, 1, []),  # no other node
        ({0: FULL, 1: FULL}, 2, ["error free_space"]),  # nobody's fault
        ({2: FULL}, 4, ["error free_space n2"]),
        ({1: {"read_bytes_per_s": 0.4e9}}, 4, ["warning storage_rate n1"]),
        ({1: {"read_bytes_per_s": 0.1e9}}, 2, []),  # of two nodes either may be the usual one
        ({0: {"write_bytes_per_s": 4e6}}, 1, ["warning storage_rate n0"]),
    ],
)  # fmt: skip
def test_facts_of_nodes(changes, count, expected):
    hosts = [f"n{number}" for number in range(count)]
    assert summary(findings_of_facts(nodes(changes, count), {}, hosts, NEEDED)) == expected


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({2: OLD}, "node n2: torch is 2.13.0, and 2.14.1 on 3 other nodes"),
        ({1: DEAD, 2: DEAD}, "nodes n1, n2: mlx5_3: port 1 is DOWN"),
        ({0: {"gpus": 0}}, "node n0: no usable GPUs, and the run uses 4 on each node"),
        ({2: FULL}, "node n2: /runs has 1.0 MiB free, and the run needs 64.0 MiB"),
        ({1: {"read_bytes_per_s": 1e8}}, "node n1 reads 100.0 MB/s in the run directory, less than 500 MB/s"),
    ],
)  # fmt: skip
def test_a_problem_names_its_nodes_and_values(changes, start):
    (found,) = findings_of_facts(nodes(changes), {}, ["n0"], NEEDED)
    assert found.problem.startswith(start)


def test_the_hash_of_agreement_tells_nodes_apart():
    first, second, other = nodes({2: OLD}, 3)
    assert first.agreement_hash == second.agreement_hash != other.agreement_hash


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (100.0, None),
        (104.0, None),  # may have been written 4 s after node 0 opened the attempt
        (110.0, "7 s ahead of"),  # node 0 saw the file at 103 s
        (96.0, None),  # 4 to 7 s behind: not certain
        (90.0, "10 s behind"),
    ],
)
def test_clocks_differ_only_where_the_order_of_events_proves_it(written, expected):
    offset = checks.clock_offset(written, opened=100.0, seen=103.0)
    found = list(checks.check_clocks("n0", {"n1": offset}))
    assert [f"at least {expected} node n0" in each.problem for each in found] == [True] * bool(expected)


RIGHT, WRONG = (-1.0, 1.0), (-61.0, -59.0)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([RIGHT, WRONG, RIGHT], ["error clock n2"]),
        ([WRONG, WRONG, RIGHT], ["error clock n0"]),  # most nodes differ from node 0
        ([WRONG], ["error clock"]),  # of two clocks either may be wrong
        ([RIGHT], []),
    ],
)
def test_the_node_with_the_wrong_clock_is_named(offsets, expected):
    by_host = {f"n{number}": bounds for number, bounds in enumerate(offsets, 1)}
    facts = nodes({}, len(offsets) + 1)
    assert summary(findings_of_facts(facts, by_host, ["n0", *by_host], {})) == expected


@pytest.mark.parametrize(
    ("count", "present", "at_fault"),
    [
        (4, [0, 1, 2, 3], None),
        (4, [0, 1, 3], ["n2"]),
        (4, [0], []),  # the folder is that of node 0 alone
        (4, [0, 2], []),
        (5, [0, 1, 2], ["n3", "n4"]),  # half of the other nodes share it
        (2, [0], []),  # either node may lack the mount
    ],
)
def test_a_folder_that_most_nodes_do_not_share_is_the_fault_of_none(count, present, at_fault):
    hosts = [f"n{number}" for number in range(count)]
    found = checks.check_shared_folder("/runs/a", hosts, present, 120)
    if at_fault is None:
        assert found == []
        return
    assert (found[0].severity, checks.hosts_at_fault(found, hosts)) == ("error", at_fault)
    silent = ", ".join(host for number, host in enumerate(hosts) if number not in present)
    assert f"{silent} wrote nothing" in found[0].problem, "the message names them all the same"


def test_a_refusal_is_one_line_with_its_remedy():
    warning, error = Finding("warning", "a", "slow", "wait"), Finding("error", "b", "bad", "mend it")
    assert checks.refusal([warning]) is None
    assert checks.refusal([warning, error]) == "bad; mend it"
    assert str(checks.refusal([error, error])).endswith("mend it (and 1 more in preflight.json)")


def test_only_errors_blame_and_not_what_is_common_to_all_nodes():
    hosts = ["n0", "n1", "n2"]
    bad = [Finding("error", "b", "", "", hosts=(host,)) for host in reversed(hosts)]
    warning = Finding("warning", "b", "", "", hosts=("n0",))
    assert checks.hosts_at_fault([*bad[:2], warning], hosts) == ["n1", "n2"], "in rank order"
    assert checks.hosts_at_fault(bad, hosts) == []
    assert checks.hosts_at_fault(bad, ["n0"]) == ["n0"], "the only node of a job"
