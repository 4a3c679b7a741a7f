"""Known delays in generated records: the culprit is named with its size, or nobody is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.results.culprits import Culprit, Diagnosis, diagnose, recurring
from analysis.results.links import LinkRates, find_slow_link
from analysis.stats.estimates import Estimate, mean_interval
from tests.support.straggler_records import TRANSFER_S, delays, generate, seconds_of

USUAL = 125e6
LONG = 10 * TRANSFER_S
COMMUNICATION = ["comm_wait_s", "comm_transfer_s", "comm_exposed_s"]


def ring(nodes: int, slow: Mapping[tuple[int, int], float] | None = None) -> LinkRates:
    """Rates between neighbours in both directions; `slow`: factors of single directions."""
    pairs = {(node, (node + 1) % nodes) for node in range(nodes)}
    random = np.random.default_rng(0)
    return {
        (f"c{a:02d}", f"c{b:02d}"): USUAL * (slow or {}).get((a, b), 1.0) * random.uniform(0.9, 1.1)
        for a, b in sorted(pairs | {(b, a) for a, b in pairs})
    }


def of_node(node: int, nodes: int, factor: float = 0.1) -> dict[tuple[int, int], float]:
    """All directions of one node."""
    near = {(node + 1) % nodes, (node - 1) % nodes}
    return {pair: factor for other in near for pair in ((node, other), (other, node))}


def diagnosis(rows: pd.DataFrame, links: LinkRates | None = None, unjudged: str = "") -> Diagnosis:
    seconds = seconds_of(rows)
    assert seconds is not None
    return diagnose(seconds, links, unjudged)


def only(rows: pd.DataFrame, links: LinkRates | None = None) -> Culprit:
    (culprit,) = diagnosis(rows, links).culprits
    return culprit


def slow_rows(ranks: int = 4, slow: tuple[int, ...] = (1,), steps: int = 60, **options: Any) -> pd.DataFrame:
    """These ranks take 0.05 s longer in all steps, or only `between` two."""
    between, jitter_s = options.pop("between", None), options.pop("jitter_s", 0.004)
    return generate(delays(ranks, steps, slow, 0.05, jitter_s, between), **options)


@pytest.mark.parametrize(
    ("ranks", "slow", "options", "name"),
    [
        (2, (1,), {}, "rank 1 on c01"),
        (4, (1,), {"phase": "input_s"}, "rank 1 on c01"),
        (64, (1,), {"phase": "other_s"}, "rank 1 on c01"),
        (8, (5,), {"ranks_per_node": 4}, "rank 5 on c01"),
        (8, (4, 5, 6, 7), {"ranks_per_node": 4}, "node c01"),
        (64, (4, 5, 6, 7), {"ranks_per_node": 4}, "node c01"),
        (8, (4, 5, 6, 7), {"ranks_per_node": 4, "steps": 20}, "node c01"),  # they are last in turn
    ],
)
def test_slow_ranks_are_named_by_rank_or_node_with_the_size_of_their_delay(ranks, slow, options, name):
    culprit = only(slow_rows(ranks, slow, **options))
    assert (culprit.name, culprit.ranks) == (name, slow)
    assert (culprit.phase, culprit.persistent) == (options.get("phase", "compute_s"), True)
    low, high = culprit.excess_s.low, culprit.excess_s.high
    assert low - 0.001 < 0.05 < high + 0.001
    assert culprit.cost_s == pytest.approx(0.05, rel=0.25)  # jitter of the others hides a part
    assert culprit.last_share == pytest.approx(1.0, abs=0.01)
    assert (culprit.first_step, culprit.last_step) == (1, options.get("steps", 60))
    assert culprit.host == culprit.part == name.split()[-1]


def test_half_of_the_nodes_is_named_against_the_other_half():
    usual = 0.001 * np.random.default_rng(2).standard_normal((16, 1))
    added = delays(16, 60, slow=[*range(8, 16)], slow_s=0.012, jitter_s=0.006) + usual
    culprit = only(generate(added, ranks_per_node=4))
    assert (culprit.name, culprit.ranks, culprit.host) == ("c02, c03", (*range(8, 16),), "")
    assert (culprit.part, culprit.other_nodes) == ("c02, c03", "c00, c01")


@pytest.mark.parametrize("nodes", [3, 8])
def test_a_slow_link_is_named_with_the_transfer_that_it_adds_to_all_ranks(nodes):
    rows, rates = (
        generate(np.zeros((nodes, 60)), transfer_s=LONG, noise_s=0.01),
        ring(nodes, of_node(2, nodes)),
    )
    culprit, link, seconds = only(rows, rates), find_slow_link(rates), seconds_of(rows)
    assert link is not None
    assert seconds is not None
    assert (culprit.name, culprit.ranks, culprit.phase) == ("the link of node c02", (), "comm_transfer_s")
    assert (culprit.host, culprit.persistent, culprit.last_share, culprit.link) == ("", True, None, link)
    assert seconds.floor_s is not None
    assert seconds.floor_s > 0.005
    share = 1 - link.bytes_per_s / link.usual_bytes_per_s
    expected = mean_interval(share * (seconds.seconds["comm_transfer_s"][0] + seconds.floor_s))
    assert (culprit.excess_s.value, culprit.excess_s.low) == pytest.approx((expected.value, expected.low))
    assert culprit.cost_s == pytest.approx(expected.value)


JITTER = delays(4, 60, jitter_s=0.004)


@pytest.mark.parametrize(
    ("rows", "rates", "unjudged", "state"),
    [
        (generate(JITTER), ring(4), "", "judged"),
        (generate(delays(64, 100, jitter_s=0.02)), ring(64), "", "judged"),
        (generate(JITTER, transfer_s=LONG), None, "", "not measured"),
        (generate(np.zeros((4, 60)), transfer_s=0.01), None, "", ""),
        # recorded transfer is below a tenth of the step, and with the floor of 1 ms above it
        (generate(np.zeros((4, 200)), transfer_s=0.0155, noise_s=0.001), None, "", "not measured"),
        (generate(JITTER, transfer_s=LONG).assign(comm_wait_s=np.nan), None, "", ""),
        (generate(np.zeros((4, 60)), transfer_s=LONG), ring(4, of_node(2, 4)), "shared", "shared"),
        (generate(JITTER, transfer_s=0.0005), ring(4, of_node(2, 4)), "", "judged"),  # it costs nothing
    ],
)
def test_nobody_is_named_for_jitter_of_all_ranks_and_the_search_for_links_has_a_state(
    rows, rates, unjudged, state
):
    found = diagnosis(rows, rates, unjudged)
    assert (found.culprits, found.links) == ((), state)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_is_slow_for_a_while(ranks):
    rows = slow_rows(ranks, steps=200, between=(101, 140), jitter_s=0.0001)
    culprit = only(rows)
    assert (culprit.name, culprit.persistent) == ("rank 1 on c01", False)
    assert (culprit.first_step, culprit.last_step) == (101, 140)
    assert culprit.excess_s.value == pytest.approx(0.05, rel=0.01)
    assert culprit.cost_s == pytest.approx(0.05 * 40 / 200, rel=0.01)


@pytest.mark.parametrize(
    ("added_s", "named"),
    [((0.1, 0.1, 0.2, 0.2, 0.15, 0.15), [(31, 36)]), ((0.3, 0.3, 0.05, 0.05, 0.05, 0.2), [])],
)
def test_nobody_is_named_by_an_excess_whose_interval_includes_zero(added_s, named):
    added = delays(8, 60, jitter_s=0.0001)
    added[1, 30:36] += added_s
    assert [(each.first_step, each.last_step) for each in diagnosis(generate(added)).culprits] == named


def test_a_third_of_the_run_is_an_episode_where_jitter_makes_most_windows_slow():
    """Over all steps the excess is 0.021 s, and its interval includes zero."""
    for seed in range(12):
        added = delays(4, 60, slow=[1], slow_s=0.06, jitter_s=0.012, between=(21, 40), seed=seed)
        culprit = only(generate(added))
        assert (culprit.persistent, culprit.first_step, culprit.last_step) == (False, 21, 40)


def test_a_cost_is_saved_if_the_rank_is_as_fast_as_the_median_of_the_others_in_its_steps():
    rows = generate(delays(4, 200, slow=[1], slow_s=0.06, jitter_s=0.02, between=(101, 140), seed=1))
    seconds = seconds_of(rows)
    assert seconds is not None
    (culprit,) = diagnose(seconds).culprits
    mended = seconds.own_s.copy()
    part = slice(culprit.first_step - 1, culprit.last_step)
    usual = np.median(np.delete(mended, 1, axis=0), axis=0)
    mended[1, part] = np.minimum(mended[1], usual)[part]
    assert culprit.cost_s == pytest.approx((seconds.own_s.max(axis=0) - mended.max(axis=0)).mean())


@pytest.mark.parametrize(
    ("slow", "at", "per_node", "name"),
    [
        ((1, 60), 61, 1, "rank 2 on c02"),  # slow only on the node of the first attempt
        ((101, 200), 101, 1, "rank 2 on d02"),
        ((1, 200), 101, 1, "rank 2"),  # slow on both nodes
        ((121, 200), 121, 2, "node d01"),
    ],
)
def test_a_resumed_run_names_the_node_on_which_the_rank_was_slow(slow, at, per_node, name):
    """The nodes have other names from step `at` on."""
    ranks = (2,) if per_node == 1 else (2, 3)
    rows = slow_rows(8, ranks, 200, between=slow, ranks_per_node=per_node)
    second = rows["step"] >= at
    rows.loc[second, "attempt"] = 1
    rows.loc[second, "host"] = rows.loc[second, "host"].str.replace("c", "d")
    assert only(rows).name == name


def test_a_slow_rank_is_named_by_whatever_was_recorded():
    rows = slow_rows(slow=(2,))
    seconds = [name for name in rows if name.endswith("_s") and name not in ("step_s", "compute_s")]
    table = rows.assign(**dict.fromkeys(seconds, np.nan)).assign(other_s=rows["step_s"] - rows["compute_s"])
    unmeasured = rows["step"] > 20
    partly = rows.copy()  # such records have their communication in `other_s`: it is shorter on the slow rank
    partly.loc[unmeasured, "other_s"] += partly.loc[unmeasured, "comm_exposed_s"]
    partly.loc[unmeasured, COMMUNICATION] = np.nan
    for records, phase in (
        (table, "compute_s"),
        (partly, "compute_s"),
        (rows.assign(comm_wait_s=np.nan, comm_transfer_s=np.nan), "compute_s"),
        (rows[rows["rank"] > 0], "compute_s"),  # others recorded nothing
        (
            rows[[name for name in rows if name not in (*seconds, "compute_s") or name in COMMUNICATION]],
            "step_s",
        ),
    ):
        culprit = only(records)
        assert (culprit.name, culprit.ranks, culprit.phase) == ("rank 2 on c02", (2,), phase)
        assert culprit.persistent
    found = diagnosis(table.assign(compute_s=np.nan, other_s=rows["step_s"]))
    assert (found.culprits, found.sensitivity) == ((), None)
    assert diagnosis(rows).sensitivity is not None


def test_several_culprits_are_listed_by_their_cost_which_is_divided_among_them():
    added = delays(8, 60, slow=[1], slow_s=0.05, jitter_s=0.002)
    added[6] += 0.02
    found = diagnosis(generate(added, transfer_s=LONG), ring(8, of_node(3, 8))).culprits
    assert [each.name for each in found] == ["the link of node c03", "rank 1 on c01", "rank 6 on c06"]
    assert sum(each.cost_s for each in found[1:]) == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(("last", "first", "kind"), [(105, 76, "node"), (105, 77, "rank")])
def test_ranks_of_a_node_that_are_slow_at_about_the_same_time_are_the_node(last, first, kind):
    """The ranges 61 to `last` and `first` to 120 share at least half of their union, or less."""
    added = delays(8, 200, slow=[2], slow_s=0.06, jitter_s=0.001, between=(61, last))
    added += delays(8, 200, slow=[3], slow_s=0.06, between=(first, 120))
    found = diagnosis(generate(added, ranks_per_node=2)).culprits
    ranges = {(each.name.split()[0], each.first_step, each.last_step) for each in found}
    assert ranges == ({("node", 61, 120)} if kind == "node" else {("rank", 61, last), ("rank", first, 120)})


def test_the_range_of_a_culprit_ends_with_the_last_step_of_its_last_record():
    rows = slow_rows(jitter_s=0)
    rows[[name for name in rows if name.endswith("_s")]] *= 5
    rows["steps"], rows["step"] = 5, 5 * rows["step"] - 4
    culprit = only(rows)
    assert (culprit.first_step, culprit.last_step) == (1, 300)
    link = only(rows.assign(compute_s=rows["compute_s"].median()), ring(4, of_node(2, 4, 0.01)))
    assert (link.ranks, link.first_step, link.last_step) == ((), 1, 300)


@pytest.mark.parametrize(
    ("rates", "name"),
    [
        (ring(4, {(1, 2): 0.1}), "the link from node c01 to node c02"),
        (ring(4, {(1, 2): 0.1, (2, 1): 0.1}), "the link between node c01 and node c02"),
        (ring(4, {(2, 1): 0.1, (2, 3): 0.1}), "sending on the link of node c02"),
        (ring(4, {(1, 2): 0.1, (3, 2): 0.1}), "receiving on the link of node c02"),
        (ring(2, {(0, 1): 0.1}), "the link from node c00 to node c01"),
        (ring(3, of_node(1, 3)), "the link of node c01"),  # it slows 4 of 6 directions
        (ring(8, of_node(1, 8, 0.4) | {(5, 6): 0.1}), "the link from node c05 to node c06"),  # the slowest
        ({("node1", "node2"): 1e6, ("node2", "node1"): 1e9}, "the link from node1 to node2"),
        ({("a", "b"): 49.0, ("b", "a"): 100.0}, "the link from node a to node b"),
        ({("a", "b"): 50.0, ("b", "a"): 100.0}, None),
        (ring(2, of_node(1, 2)), None),  # both directions are equally slow
        (ring(8), None),
        ({}, None),
    ],
)
def test_the_slow_part_of_the_network(rates, name):
    link = find_slow_link(rates)
    assert (link and link.name) == name
    if link and max(rates.values()) > 1e8 and link.name.startswith("the link of"):
        assert link.bytes_per_s == pytest.approx(0.1 * USUAL, rel=0.15)
        assert link.usual_bytes_per_s in rates.values()


def made(host: str, *ranks: int, name: str = "", cost_s: float = 0.05, **fields: Any) -> Culprit:
    values = {"first_step": 1, "last_step": 60, **fields}
    excess = Estimate(cost_s, None, None, 1)
    return Culprit(
        name or f"rank {ranks[0]}", host, ranks, "compute_s", excess, cost_s, 0.2, persistent=True, **values
    )


FIRST, MOVED, ALONE = made("c01", 1, cost_s=0.4), made("c02", 1, cost_s=0.3), made("c09", 2)
NODE = made("c01", 1, 3, name="node c01", cost_s=0.2)
TWO = made("c01", 2)
LINKS = [made("", name=f"the link of node c0{node}") for node in (1, 2)]


@pytest.mark.parametrize(
    ("repeats", "least", "culprits", "nodes"),
    [
        ([(ALONE, FIRST), (NODE,), ()], 0.0, [(FIRST, NODE), (ALONE,)], [0, 0]),  # by the node
        (
            [(MOVED, ALONE), (FIRST,), (FIRST,), (MOVED,)],
            0.0,
            [(FIRST, FIRST, MOVED, MOVED), (ALONE,)],
            [2, 0],
        ),
        ([(FIRST, TWO), (FIRST, TWO)], 0.5, [(FIRST, FIRST), (TWO, TWO)], [0, 0]),  # two ranks of one node
        ([(LINKS[0],), (LINKS[1],)], 0.5, [(LINKS[0],), (LINKS[1],)], [0, 0]),
        ([(ALONE,), (MOVED,), (), (ALONE,)], 0.5, [(ALONE, ALONE)], [0]),
        ([(ALONE,), (MOVED,), ()], 0.5, [], []),
    ],
)
def test_a_culprit_recurs_by_its_node_or_by_its_rank_where_that_is_slow_in_more_repeats(
    repeats, least, culprits, nodes
):
    found = recurring([Diagnosis(each, None, "") for each in repeats], least)
    assert [(each.culprits, each.nodes) for each in found] == [*zip(culprits, nodes, strict=True)]
    assert {each.repeats for each in found} <= {len(repeats)}


def test_a_recurrence_has_the_means_of_its_repeats_and_all_of_their_steps():
    early = made("c01", 1, first_step=5, last_step=20, last_share=0.5)
    late = made("c01", 1, cost_s=0.15, first_step=10, last_step=60, last_share=1.0)
    (part,) = recurring([Diagnosis((each,), None, "") for each in (early, late)])
    assert (part.first, part.steps, part.last_share) == (late, "5 to 60", 0.75)
    assert (part.excess_s.value, part.share.value) == pytest.approx((0.1, 0.1 / 0.2))
