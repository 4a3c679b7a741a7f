"""Sentences on losses: each case of their macros stands in a golden file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from analysis.report.sentences import say
from analysis.results.lost_time import Bottleneck, Cause, Waterfall
from analysis.results.phases import Part
from analysis.stats.estimates import Estimate, on_basis
from tests.support.golden import golden

SHARE, ONE = Estimate(0.208, 0.175, 0.24, 3), Estimate(0.208, None, None, 1)
SECONDS = Estimate(0.0291, 0.02, 0.03, 3)


def test_each_sentence_of_losses() -> None:
    golden("losses.txt", "\n".join([*waterfall(), *compute(), *bottlenecks(), *communication()]) + "\n")


def waterfall() -> list[str]:
    names = {"comm_transfer_s": "data transfer"}
    parts = [
        Part("comm_transfer_s", SECONDS, share) for share in (SHARE, ONE, on_basis(SHARE, "not stationary"))
    ]
    curve: Any = SimpleNamespace(name=lambda base: "1 node")

    def text(part: Part | None, efficiency: Estimate, *gains: tuple[float, str]) -> str:
        point: Any = SimpleNamespace(efficiency=efficiency)
        return say("losses", "4 nodes", Waterfall(curve, point, point, (), ()), part, names, gains, [])

    gain = text(parts[0], Estimate(1.02, 0.99, 1.05, 3), (-0.1, "compute"), (-0.011, "input"))
    settled = text(parts[0], Estimate(0.9, 0.85, 0.95, 3), (-0.3, "compute"))
    assert text(None, SHARE) == ""
    return [
        *(text(part, Estimate(0.8, 0.7, 0.9, 3)) for part in parts),
        gain,
        settled,
        say("longest_phase", place="4 nodes", phase="compute", share=Estimate(0.62, None, None, 1)),
        say("smallest_factor", name="transfer", value=SHARE, place="4 nodes"),
    ]


def compute() -> list[str]:
    parts = [
        SimpleNamespace(first=SimpleNamespace(name=name), excess_s=Estimate(0.122, None, None, 1))
        for name in ("node c01", "rank 1", "rank 4")
    ]
    slow = Cause({"slow ranks": {"parts": parts}}, 0.289)
    clocks = Cause(
        {"lower clocks": {"clock": Estimate(0.66, 0.6, 0.7, 3), "before": Estimate(0.9, 0.9, 0.9, 3)}}, 0.1
    )
    shared = {"shared processors": {}, "smaller batch": {"own": 2, "before": 8}}
    unknown, gain = Cause({"unknown": {}}, 0.2), Cause({"unknown": {}}, -0.114)
    other, runs, alone = {"other load": {}}, {"overlaps": {}}, {"shared processors": {}}
    rest = [Cause(each, 0.2) for each in (shared, alone, other, runs)]
    cases = [[slow, clocks, gain], *([each] for each in rest)]
    assert say("compute_causes", [unknown]) == say("compute_causes", []) == ""
    return [say("compute_causes", causes) for causes in cases]


def bottlenecks() -> list[str]:
    part = Bottleneck("compute_s", SHARE)
    first = [(part, "compute", True, "Update faster: a fused optimizer kernel (optim.fused=true).")]
    return [say("bottleneck", "4 nodes", parts) for parts in ([], first, [(part, "compute", False, "")])]


def communication() -> list[str]:
    shown = {"place": "4 nodes", "share": SHARE, "unlike": None}
    times = {"comm_wait_s": SECONDS, "comm_transfer_s": SECONDS}
    both, one = (
        {"phases": SimpleNamespace(mean_s=known.get)} for known in (times, {"comm_transfer_s": SECONDS})
    )
    return [
        say("communication", **shown, **one, hidden=None, messages=[]),
        say("communication", **shown, **both, hidden=SHARE, messages=[4]),
        say("communication", **shown, **both, hidden=Estimate(0, None, None, 1), messages=[1, 1]),
        say("communication", **shown | {"unlike": (4.0, "2 nodes")}, **both, hidden=None, messages=[]),
        say("communication_longest", place="4 nodes"),
    ]
