"""Known delays in generated records: the culprit is named with its size, or nobody is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.results.culprits import (
    Culprit,
    Diagnosis,
    diagnose,
    recurring,
)
from analysis.results.links import LinkRates, find_slow_link, node_name
from analysis.stats.estimates import Estimate, mean_interval
from tests.support.straggler_records import TRANSFER_S, delays, generate, seconds_of

USUAL = 125e6


def ring(nodes: int, slow: dict[tuple[int, int], float] | None = None) -> LinkRates:
    """Rates between neighbours in both directions; `slow`: factors of single directions."""
    pairs = {(node, (node + 1) % nodes) for node in range(nodes)}
    directions = sorted(pairs | {(b, a) for a, b in pairs})
    random = np.random.default_rng(0)
    return {
        (f"c{a:02d}", f"c{b:02d}"): USUAL * (slow or {}).get((a, b), 1.0) * random.uniform(0.9, 1.1)
        for a, b in directions
    }


def of_node(node: int, nodes: int, factor: float) -> dict[tuple[int, int], float]:
    """All directions of one node."""
    near = {(node + 1) % nodes, (node - 1) % nodes}
    return {pair: factor for other in near for pair in ((node, other), (other, node))}


def diagnosis(rows, links: LinkRates | None = None) -> Diagnosis:
    found = seconds_of(rows)
    assert found is not None
    return diagnose(found, links)


def only(rows, links: LinkRates | None = None) -> Culprit:
    (culprit,) = diagnosis(rows, links).culprits
    return culprit


def assert_within(culprit: Culprit, seconds: float) -> None:
    low, high = culprit.excess_s.low, culprit.excess_s.high
    assert low is not None
    assert high is not None
    assert low - 0.01 * seconds < seconds < high + 0.01 * seconds


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
@pytest.mark.parametrize("phase", ["compute_s", "input_s", "other_s"])
def test_one_slow_rank(ranks, phase):
    culprit = only(generate(delays(ranks, 60, slow=[1], slow_s=0.05, jitter_s=0.004), phase=phase))
    assert (culprit.name, culprit.phase) == ("rank 1 on c01", phase)
    assert culprit.persistent
    assert_within(culprit, 0.05)
    assert culprit.cost_s == pytest.approx(0.05, rel=0.25)  # jitter of the others hides a part
    assert culprit.last_share == pytest.approx(1.0, abs=0.01)
    assert (culprit.first_step, culprit.last_step) == (1, 60)


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_one_slow_node(nodes):
    rows = generate(delays(4 * nodes, 60, slow=[4, 5, 6, 7], slow_s=0.05, jitter_s=0.004), ranks_per_node=4)
    culprit = only(rows)
    assert (culprit.name, culprit.ranks) == ("node c01", (4, 5, 6, 7))
    assert_within(culprit, 0.05)


def test_the_ranks_of_a_slow_node_that_are_last_in_turn_are_named_in_a_few_steps():
    rows = generate(delays(8, 20, slow=[4, 5, 6, 7], slow_s=0.03, jitter_s=0.005), ranks_per_node=4)
    assert only(rows).name == "node c01"


def test_one_slow_rank_of_a_node_is_not_its_node():
    rows = generate(delays(8, 60, slow=[5], slow_s=0.05, jitter_s=0.004), ranks_per_node=4)
    assert only(rows).name == "rank 5 on c01"


@pytest.mark.parametrize("nodes", [3, 4, 8, 16])
def test_one_slow_link_is_named_and_not_its_rank(nodes):
    """The rank computes as fast as any, and transfer takes ten times as long on all."""
    rows = generate(delays(nodes, 60, jitter_s=0.004), transfer_s=10 * TRANSFER_S)
    culprit = only(rows, ring(nodes, of_node(2, nodes, 0.1)))
    assert (culprit.name, culprit.ranks) == ("the link of node c02", ())
    assert culprit.excess_s.value == pytest.approx(9 * TRANSFER_S, rel=0.05)
    assert culprit.phase == "comm_transfer_s"
    assert (culprit.host, culprit.persistent, culprit.last_share) == ("", True, None)
    assert culprit.link == find_slow_link(ring(nodes, of_node(2, nodes, 0.1)))


def test_the_excess_of_a_link_is_of_the_transfer_with_the_floor():
    rows = generate(np.zeros((4, 60)), transfer_s=10 * TRANSFER_S, noise_s=0.01)
    found = seconds_of(rows)
    assert found is not None
    floor_s = found.floor_s
    assert floor_s is not None
    assert floor_s > 0.005
    culprit = only(rows, ring(4, of_node(2, 4, 0.1)))
    assert culprit.link is not None
    share = 1 - culprit.link.bytes_per_s / culprit.link.usual_bytes_per_s
    expected = mean_interval(share * (found.seconds["comm_transfer_s"][0] + floor_s))
    assert (culprit.excess_s.value, culprit.excess_s.low) == pytest.approx((expected.value, expected.low))
    assert culprit.cost_s == pytest.approx(expected.value)


def test_without_rates_long_transfer_is_pointed_out_and_nobody_is_named():
    found = diagnosis(generate(delays(4, 60, jitter_s=0.004), transfer_s=10 * TRANSFER_S))
    assert found.culprits == ()
    assert found.links == "not measured"


def test_a_slow_link_that_costs_nothing_is_not_named():
    rows = generate(delays(4, 60), transfer_s=0.0005)
    assert diagnosis(rows, ring(4, of_node(2, 4, 0.1))).culprits == ()


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_jitter_on_all_ranks_names_nobody(ranks):
    found = diagnosis(generate(delays(ranks, 100, jitter_s=0.02)), ring(ranks))
    assert found.culprits == ()
    assert found.links == "judged"


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_a_rank_that_is_slow_for_a_while(ranks):
    rows = generate(delays(ranks, 200, slow=[1], slow_s=0.06, jitter_s=0.004, between=(101, 140)))
    culprit = only(rows)
    assert (culprit.name, culprit.persistent) == ("rank 1 on c01", False)
    assert abs(culprit.first_step - 101) <= 2
    assert abs(culprit.last_step - 140) <= 2
    assert culprit.excess_s.value == pytest.approx(0.06, rel=0.1)
    assert culprit.cost_s == pytest.approx(0.06 * 40 / 200, rel=0.25)


def test_a_rank_has_its_own_number_where_others_recorded_nothing():
    rows = generate(delays(4, 60, slow=[2], slow_s=0.05, jitter_s=0.004))
    culprit = only(rows[rows["rank"] > 0])
    assert (culprit.name, culprit.ranks) == ("rank 2 on c02", (2,))


def resumed(slow: tuple[int, int], at: int, ranks_per_node: int = 1) -> pd.DataFrame:
    """200 steps of 8 ranks, resumed on nodes d00 to d07 at step `at`; ranks of one node slow in `slow`."""
    ranks = [*range(2 * ranks_per_node, 3 * ranks_per_node)]
    added = delays(8, 200, slow=ranks, slow_s=0.06, jitter_s=0.004, between=slow)
    rows = generate(added, ranks_per_node=ranks_per_node)
    second = rows["step"] >= at
    rows.loc[second, "attempt"] = 1
    rows.loc[second, "host"] = rows.loc[second, "host"].str.replace("c", "d")
    return rows


@pytest.mark.parametrize(
    ("slow", "at", "name"),
    [
        ((1, 60), 61, "rank 2 on c02"),  # slow only on the node of the first attempt
        ((101, 200), 101, "rank 2 on d02"),
        ((1, 200), 101, "rank 2"),  # slow on both nodes
    ],
)
def test_a_resumed_run_names_the_node_on_which_the_rank_was_slow(slow, at, name):
    assert only(resumed(slow, at)).name == name


def test_a_resumed_run_names_the_node_of_several_ranks():
    culprit = only(resumed((121, 200), 121, ranks_per_node=2))
    assert (culprit.name, culprit.ranks, culprit.host) == ("node d02", (4, 5), "d02")


def test_a_table_with_compute_alone_names_its_slow_rank():
    """The rest of the step is `other_s`, and most of it is waiting."""
    rows = generate(delays(4, 60, slow=[2], slow_s=0.05, jitter_s=0.004))
    columns = [name for name in rows if name.endswith("_s") and name not in ("step_s", "compute_s")]
    rows[columns] = np.nan
    rows["other_s"] = rows["step_s"] - rows["compute_s"]
    assert only(rows).name == "rank 2 on c02"
    rows["compute_s"], rows["other_s"] = np.nan, rows["step_s"]
    assert diagnosis(rows).culprits == ()


@pytest.mark.parametrize("unmeasured", [slice(0, 60), slice(20, 60)])
def test_a_slow_rank_is_named_where_communication_was_not_measured(unmeasured):
    """The records of such steps have their communication in `other_s`: it is shorter on the slow rank."""
    rows = generate(delays(4, 60, slow=[2], slow_s=0.05, jitter_s=0.004))
    steps = rows["step"].between(unmeasured.start + 1, unmeasured.stop)
    rows.loc[steps, "other_s"] += rows.loc[steps, "comm_exposed_s"]
    rows.loc[steps, ["comm_wait_s", "comm_transfer_s", "comm_exposed_s"]] = np.nan
    culprit = only(rows)
    assert (culprit.name, culprit.phase, culprit.persistent) == ("rank 2 on c02", "compute_s", True)
    assert_within(culprit, 0.05)


def test_two_culprits_are_listed_by_their_cost():
    added = delays(8, 60, slow=[1], slow_s=0.05, jitter_s=0.002)
    added[6] += 0.02
    found = diagnosis(generate(added, transfer_s=10 * TRANSFER_S), ring(8, of_node(3, 8, 0.1))).culprits
    assert [each.name for each in found] == ["the link of node c03", "rank 1 on c01", "rank 6 on c06"]
    assert sum(each.cost_s for each in found[1:]) == pytest.approx(0.05, rel=0.1)


def test_records_without_communication_still_name_a_slow_rank():
    rows = generate(delays(4, 60, slow=[2], slow_s=0.05)).assign(comm_wait_s=np.nan, comm_transfer_s=np.nan)
    found = diagnosis(rows)
    assert [each.name for each in found.culprits] == ["rank 2 on c02"]


@pytest.mark.parametrize(
    ("nodes", "slow", "name"),
    [
        (4, {(1, 2): 0.1}, "the link from node c01 to node c02"),
        (4, {(1, 2): 0.1, (2, 1): 0.1}, "the link between node c01 and node c02"),
        (4, {(2, 1): 0.1, (2, 3): 0.1}, "sending on the link of node c02"),
        (4, {(1, 2): 0.1, (3, 2): 0.1}, "receiving on the link of node c02"),
        (2, {(0, 1): 0.1}, "the link from node c00 to node c01"),
    ],
)
def test_the_slow_direction_of_a_link(nodes, slow, name):
    link = find_slow_link(ring(nodes, slow))
    assert link is not None
    assert link.name == name
    assert link.bytes_per_s == pytest.approx(0.1 * USUAL, rel=0.1)


def test_a_host_that_is_called_node_is_not_doubled():
    assert (node_name("node2"), node_name("c02")) == ("node2", "node c02")
    found = find_slow_link({("node1", "node2"): 1e6, ("node2", "node1"): 1e9})
    assert found is not None
    assert found.name == "the link from node1 to node2"


def test_no_link_is_slow_where_rates_differ_little_or_both_of_two_are_equally_slow():
    assert find_slow_link(ring(8)) is None
    assert find_slow_link(ring(2, of_node(1, 2, 0.1))) is None
    assert find_slow_link({}) is None


def made(host: str, *ranks: int, name: str = "", cost_s: float = 0.05) -> Culprit:
    excess = Estimate(cost_s, None, None, 1)
    return Culprit(name or f"rank {ranks[0]}", host, ranks, "compute_s", excess, cost_s, 0.2, True, 1, 60)


def repeats_with(*culprits: Culprit | tuple[Culprit, ...]) -> list[Diagnosis]:
    named = (each if isinstance(each, tuple) else (each,) for each in culprits)
    return [Diagnosis(each, None, "") for each in named]


def test_a_culprit_recurs_by_its_node_or_by_its_rank_where_that_is_slow_in_more_repeats():
    first, moved, alone = made("c01", 1, cost_s=0.4), made("c02", 1, cost_s=0.3), made("c09", 2)
    node = made("c01", 1, 3, name="node c01", cost_s=0.2)
    by_node = recurring(repeats_with((alone, first), node, ()), 0.0)
    assert [(each.culprits, each.nodes) for each in by_node] == [((first, node), 0), ((alone,), 0)]
    by_rank = recurring(repeats_with((moved, alone), first, first, moved), 0.0)
    assert [(len(each.culprits), each.nodes) for each in by_rank] == [(4, 2), (1, 0)]
    assert by_rank[0].excess_s.value == pytest.approx(0.35)
    assert by_rank[0].share.value == pytest.approx(0.35 / 0.2)
    links = [made("", name=f"the link of node c0{node}") for node in (1, 2)]
    assert [each.culprits for each in recurring(repeats_with(*links))] == [(link,) for link in links]
    assert (first.part, alone.share, links[0].part) == ("c01", 0.25, "the link of node c01")


def test_of_two_ranks_of_a_node_each_is_a_culprit_of_its_own():
    one, two = made("c01", 1, cost_s=0.2), made("c01", 2)
    assert [each.culprits for each in recurring(repeats_with((one, two), (one, two)))] == [
        (one, one),
        (two, two),
    ]


def test_culprits_of_half_of_the_repeats_are_listed_by_their_cost():
    often, costly, once = made("c01", 1), made("c01", 1, cost_s=0.1), made("c02", 2, cost_s=0.3)
    four = repeats_with(often, once, (), costly)
    assert [each.culprits for each in recurring(four)] == [(costly, often)]
    assert recurring(four[:3]) == []


@pytest.mark.parametrize(("last", "first", "kind"), [(110, 71, "node"), (105, 76, "node"), (105, 77, "rank")])
def test_ranks_of_a_node_that_are_slow_at_about_the_same_time_are_the_node(last, first, kind):
    """The ranges 61 to `last` and `first` to 120 share at least half of their union, or less."""
    added = delays(8, 200, slow=[2], slow_s=0.06, jitter_s=0.001, between=(61, last))
    added += delays(8, 200, slow=[3], slow_s=0.06, between=(first, 120))
    found = diagnosis(generate(added, ranks_per_node=2)).culprits
    ranges = {(each.name.split()[0], each.first_step, each.last_step) for each in found}
    assert ranges == ({("node", 61, 120)} if kind == "node" else {("rank", 61, last), ("rank", first, 120)})


def test_the_range_of_a_culprit_ends_with_the_last_step_of_its_last_record():
    rows = generate(delays(4, 60, slow=[1], slow_s=0.05))
    seconds = [name for name in rows if name.endswith("_s")]
    rows[seconds] *= 5
    rows["steps"], rows["step"] = 5, 5 * rows["step"] - 4
    culprit = only(rows)
    assert (culprit.first_step, culprit.last_step) == (1, 300)
    link = only(rows.assign(compute_s=rows["compute_s"].median()), ring(4, of_node(2, 4, 0.01)))
    assert (link.ranks, link.first_step, link.last_step) == ((), 1, 300)


def test_without_phases_the_whole_step_is_longer():
    rows = generate(delays(4, 60, slow=[1], slow_s=0.05))
    phases = ["compute_s", "input_s", "optimizer_s", "checkpoint_s", "other_s"]
    assert only(rows.drop(columns=phases)).phase == "step_s"


def test_the_cost_of_an_episode_is_saved_if_its_rank_is_as_fast_as_the_median_of_the_others():
    rows = generate(delays(4, 200, slow=[1], slow_s=0.06, jitter_s=0.02, between=(101, 140), seed=1))
    found = seconds_of(rows)
    assert found is not None
    (culprit,) = diagnose(found).culprits
    mended = found.own_s.copy()
    part = slice(culprit.first_step - 1, culprit.last_step)
    usual = np.median(np.delete(mended, 1, axis=0), axis=0)
    mended[1, part] = np.minimum(mended[1], usual)[part]
    assert culprit.cost_s == pytest.approx((found.own_s.max(axis=0) - mended.max(axis=0)).mean())


def test_a_late_step_outside_of_an_episode_is_not_its_cost():
    added = delays(4, 200, slow=[1], slow_s=0.06, jitter_s=0.0001, between=(101, 140))
    added[1, [10, 170]] += 0.1
    assert only(generate(added)).cost_s == pytest.approx(0.06 * 40 / 200, rel=0.01)


def test_a_diagnosis_has_the_state_of_the_search_for_links():
    rows = generate(delays(4, 60, jitter_s=0.004), noise_s=0.001)
    assert diagnosis(rows).links == "not measured"
    assert diagnosis(rows, ring(4)).links == "judged"
    assert diagnosis(generate(np.zeros((4, 60)), transfer_s=0.01)).links == ""
    assert diagnosis(rows.assign(comm_wait_s=np.nan)).links == ""
    seconds = seconds_of(generate(np.zeros((4, 60)), transfer_s=10 * TRANSFER_S))
    assert seconds is not None
    found = diagnose(seconds, ring(4, of_node(2, 4, 0.1)), "the nodes share a machine")
    assert (found.culprits, found.links) == ((), "the nodes share a machine")


def test_the_floor_counts_as_transfer():
    """Recorded transfer is below a tenth of the step, and with the floor of 1 ms above it."""
    rows = generate(np.zeros((4, 200)), transfer_s=0.0155, noise_s=0.001)
    assert rows["comm_transfer_s"].mean() < 0.1 * rows["step_s"].mean()
    assert diagnosis(rows).links == "not measured"


def test_the_usual_rate_is_one_that_was_measured_and_half_of_it_is_not_slow():
    """In a ring of three, one slow link slows 4 of 6 directions."""
    nodes = ("c00", "c01", "c02")
    pairs = [(a, b) for a in nodes for b in nodes if a != b]
    for factor, name in ((0.45, "the link of node c01"), (0.5, None)):
        rates = {pair: factor * USUAL if "c01" in pair else USUAL for pair in pairs}
        link = find_slow_link(rates)
        assert (link and link.name) == name


def test_of_several_slow_links_the_slowest_is_named():
    link = find_slow_link(ring(8, of_node(1, 8, 0.4) | {(5, 6): 0.1}))
    assert link is not None
    assert link.name == "the link from node c05 to node c06"
