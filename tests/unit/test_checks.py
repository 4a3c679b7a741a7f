"""Each check of the pre-flight names its node and finds nothing on healthy ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.checks import node_checks as checks
from jobs.checks.finding import Finding
from jobs.checks.node_facts import NodeFacts

GOOD = NodeFacts(0, "n0", 1000.0, {"torch": "2.14.1", "fabric": "infiniband"}, 8, {"/runs": 10**12}, ranks=4)
FOUR = [replace(GOOD, node=number, host=f"n{number}") for number in range(4)]
HOSTS = [each.host for each in FOUR]


def with_node(number: int, **changes: object) -> list[NodeFacts]:
    """Four nodes, of which one has other facts."""
    return [replace(each, **changes) if each.node == number else each for each in FOUR]


def test_equal_nodes_agree() -> None:
    assert checks.check_agreement(FOUR) == []
    assert len({each.agreement_hash for each in FOUR}) == 1


def test_the_node_that_differs_from_the_majority_is_named_with_both_values() -> None:
    nodes = with_node(2, agreement={"torch": "2.13.0", "fabric": "infiniband", "plugin": "1.2"})
    error, warning = checks.check_agreement(nodes)
    assert (error.hosts, error.severity) == (("n2",), "error")
    assert error.problem == "node n2: torch is 2.13.0, and 2.14.1 on 3 other nodes"
    assert (warning.hosts, warning.severity) == (("n2",), "warning")
    assert warning.problem == "node n2: plugin is 1.2, and none on 3 other nodes"
    assert checks.hosts_at_fault([warning], HOSTS) == []
    assert nodes[2].agreement_hash != nodes[0].agreement_hash


def test_a_value_that_could_not_be_read_refuses_no_node() -> None:
    (found,) = checks.check_agreement(with_node(2, agreement={"fabric": "infiniband"}))
    assert found.severity == "warning"


def test_without_a_majority_no_node_is_at_fault() -> None:
    nodes = with_node(1, agreement={"torch": "2.13.0", "fabric": "infiniband"})[:2]
    found = {each.problem: each.hosts for each in checks.check_agreement(nodes)}
    assert list(found.values()) == [()]
    assert "torch is 2.14.1 on n0 and 2.13.0 on n1" in next(iter(found))


@pytest.mark.parametrize(
    ("written", "beyond"),
    [
        (100.0, 0.0),
        (104.0, 0.0),  # may have been written 4 s after node 0 opened the attempt
        (110.0, 7.0),  # node 0 saw the file at 103 s: 7 s ahead at the least
        (96.0, 0.0),  # 4 to 7 s behind: not certain
        (90.0, -10.0),
    ],
)
def test_clocks_differ_only_where_the_order_of_events_proves_it(written: float, beyond: float) -> None:
    assert checks._least_offset(checks.clock_offset(written, opened=100.0, seen=103.0)) == beyond


def test_the_node_with_the_wrong_clock_is_named() -> None:
    right, wrong = (-1.0, 1.0), (-61.0, -59.0)
    (found,) = checks.check_clocks("n0", {"n1": right, "n2": wrong, "n3": right})
    assert (found.hosts, found.problem) == (
        ("n2",),
        "clocks differ: node n2 is at least 59 s behind node n0",
    )
    (found,) = checks.check_clocks("n0", {"n1": wrong, "n2": wrong, "n3": right})
    assert found.hosts == ("n0",), "most nodes differ from node 0"
    (found,) = checks.check_clocks("n0", {"n1": wrong})
    assert found.hosts == (), "of two clocks either may be wrong"
    assert list(checks.check_clocks("n0", {"n1": right})) == []


def test_missing_and_unequal_gpus_are_those_of_their_node() -> None:
    (found,) = checks.check_nodes(with_node(1, missing_gpus="this node has 3 of the 4 GPUs"))
    assert (found.key, found.hosts, found.severity) == ("gpus", ("n1",), "error")
    # The driver of one node does not work: its ranks would train on the CPU.
    nodes = [replace(each, gpus=0 if each.node == 3 else 8) for each in FOUR]
    (found,) = checks.check_nodes(nodes)
    assert found.hosts == ("n3",)
    assert found.problem == "node n3: no usable GPUs, and the run uses 4 on each node"
    assert checks.check_nodes(FOUR) == []


@pytest.mark.parametrize("gpus", [None, 4])
def test_more_gpus_than_ranks_on_other_nodes_and_a_silent_driver_refuse_no_node(gpus: int | None) -> None:
    assert checks.check_nodes([replace(each, gpus=gpus if each.node == 3 else 8) for each in FOUR]) == []


def test_only_errors_of_gpus_blame_their_node() -> None:
    gpu = {"severity": "warning", "message": "GPU 0: throttled", "remedy": "cool it"}
    warned, failed = checks.check_nodes(with_node(1, gpu_problems=[gpu, {**gpu, "severity": "error"}]))
    assert (warned.hosts, warned.severity, failed.hosts) == ((), "warning", ("n1",))


@pytest.mark.parametrize(
    ("limit", "rdma", "severity"),
    [(None, True, None), (65536, False, None), (65536, True, "error"), (2**30, True, "warning")],
)
def test_locked_memory_matters_on_rdma(limit: int | None, rdma: bool, severity: str | None) -> None:
    found = checks.check_nodes(with_node(1, memory_lock_bytes=limit, rdma=rdma))
    assert [each.severity for each in found] == ([severity] if severity else [])


def test_one_limit_of_locked_memory_on_several_nodes_is_one_problem() -> None:
    low = [replace(each, memory_lock_bytes=65536, rdma=True) for each in FOUR]
    little, more = checks.check_nodes([*low[:2], replace(low[2], memory_lock_bytes=2**30), FOUR[3]])
    assert little.problem == "nodes n0, n1: locked memory is limited to 0.1 MiB, and RDMA needs it"
    assert (little.hosts, more.hosts) == (("n0", "n1"), ())


def test_a_defect_of_several_nodes_is_one_warning() -> None:
    nodes = [replace(each, defects=["mlx5_3: port 1 is DOWN"]) for each in FOUR[1:3]]
    nodes.append(replace(FOUR[3], defects=["mlx5_0: PCIe carries 252 Gbit/s"]))
    two, one = checks.check_nodes([FOUR[0], *nodes])
    assert two.problem == "nodes n1, n2: mlx5_3: port 1 is DOWN"
    assert (two.hosts, two.severity) == ((), "warning")
    assert one.problem == "node n3: mlx5_0: PCIe carries 252 Gbit/s"
    assert checks.check_nodes(nodes[:1]) == [], "no other node"


def test_a_full_disk_is_nobodys_fault_unless_other_nodes_see_another_one() -> None:
    full = [replace(each, free_bytes={"/runs": 2**20}) for each in FOUR]
    (found,) = checks.check_free_space(full, {"/runs": 64 * 2**20})
    assert (found.hosts, found.problem) == ((), "/runs has 1.0 MiB free, and the run needs 64.0 MiB")
    (found,) = checks.check_free_space(with_node(2, free_bytes={"/runs": 0}), {"/runs": 64 * 2**20})
    assert found.hosts == ("n2",)
    assert list(checks.check_free_space(FOUR, {"/runs": 64 * 2**20, "/elsewhere": 1})) == []


def test_nodes_whose_files_do_not_arrive_do_not_share_the_folder() -> None:
    (found,) = checks.check_shared_folder("/runs/a", HOSTS, [0, 1, 3], 120)
    assert found.hosts == ("n2",)
    assert "node n2 wrote nothing that node n0 can see to /runs/a within 120 s" in found.problem
    assert "mount the shared file system" in found.remedy
    assert checks.check_shared_folder("/runs/a", HOSTS, range(4), 120) == []


@pytest.mark.parametrize(
    ("nodes", "present", "at_fault"),
    [
        (4, [0], ()),  # the folder is that of node 0 alone
        (4, [0, 2], ()),
        (5, [0, 1, 2], ("n3", "n4")),  # half of the other nodes share it
        (2, [0], ()),  # either node may lack the mount
        (3, [0, 2], ("n1",)),
    ],
)
def test_a_folder_that_most_nodes_do_not_share_is_the_fault_of_none(
    nodes: int, present: list[int], at_fault: tuple[str, ...]
) -> None:
    hosts = [f"n{number}" for number in range(nodes)]
    (found,) = checks.check_shared_folder("/runs/a", hosts, present, 120)
    assert found.hosts == tuple(checks.hosts_at_fault([found], hosts)) == at_fault
    assert found.severity == "error"
    silent = [host for number, host in enumerate(hosts) if number not in present]
    assert ", ".join(silent) in found.problem, "the message names them all the same"


def test_slow_storage_and_few_processors_are_warnings() -> None:
    nodes = [replace(each, write_bytes_per_s=1e9, read_bytes_per_s=2e9) for each in FOUR]
    assert list(checks.check_storage_rates(nodes)) == []
    nodes[1] = replace(nodes[1], read_bytes_per_s=1e8)
    (found,) = checks.check_storage_rates(nodes)
    assert (found.hosts, found.severity) == (("n1",), "warning")
    assert (
        "node n1 reads 100.0 MB/s in the run directory, less than 500 MB/s (the median is 2" in found.problem
    )
    (found,) = checks.check_storage_rates([replace(FOUR[0], write_bytes_per_s=4e6, read_bytes_per_s=2e9)])
    assert "node n0 writes 4.0 MB/s in the run directory, less than 10 MB/s" in found.problem
    (found,) = checks.check_nodes(with_node(1, processors=3))
    assert (found.hosts, found.severity) == ((), "warning")


def test_a_refusal_is_one_line_with_its_remedy() -> None:
    findings = [Finding("warning", "a", "slow", "wait"), Finding("error", "b", "bad", "mend it")]
    assert checks.refusal(findings) == "bad; mend it"
    assert str(checks.refusal([*findings, findings[1]])).endswith("mend it (and 1 more in preflight.json)")
    assert checks.refusal(findings[:1]) is None


def test_a_reason_common_to_all_nodes_is_the_fault_of_none() -> None:
    bad = [Finding("error", "b", "", "", hosts=(host,)) for host in HOSTS]
    assert checks.hosts_at_fault(bad[:2], HOSTS) == ["n0", "n1"]
    assert checks.hosts_at_fault(bad, HOSTS) == []
    assert checks.hosts_at_fault(bad[:1], HOSTS[:1]) == ["n0"], "the only node of a job"
