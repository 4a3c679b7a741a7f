"""Sentences of the sections on step times, utilization, memory and training, as they were approved."""

from __future__ import annotations

from analysis.report.sentences import say
from tests.support.golden import golden


def test_sentences_as_they_were_approved() -> None:
    texts = [
        say("distributions", "1.42x", "4 nodes", 100),
        say("distributions", "1.42x", "4 nodes", 30),
        say("utilization", True, "87 % to 93 %"),
        say("utilization", False, "3.50"),
        say("memory", 3 * 2**30, "4 nodes"),
        say("training", None, "2.310 to 2.900"),
        say("training", None, ""),
        say("training", 0.25, "2.310"),
        say("training", -0.25, "2.310"),
        say("skipped_steps", 0, [], 0),
        say("skipped_steps", 4, ["n1-r0 (1 of 110)", "n2-r0 (3 of 110)"], 2),
    ]
    golden("sections.txt", "\n".join(texts) + "\n")
