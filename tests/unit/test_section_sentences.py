"""Sentences of the sections on step times, utilization, memory and training, as they were approved."""

from __future__ import annotations

from analysis.report.sentences import say
from analysis.stats.stationarity import Change, Unseen
from tests.support.golden import golden


def test_sentences_as_they_were_approved() -> None:
    texts = [
        say("distributions", "1.42x", "4 nodes", 100),
        say("distributions", "1.42x", "4 nodes", 30),
        say("utilization", True, "87 % to 93 %"),
        say("utilization", False, "3.50"),
        say("memory", 3 * 2**30, "4 nodes"),
        say("training", [0.5, 0.25]),
        say("training", [-0.25, 0.1]),
        say("unseen", 9, [Unseen(0.04, 0.02)] * 9),
        say("change", Change(True, -0.1, 0, 200)),
        say("change", Change(False, 0.5, 50, 100)),
    ]
    golden("sections.txt", "\n".join(texts) + "\n")
