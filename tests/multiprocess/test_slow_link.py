"""Bytes that the schemes of gradient communication send between two nodes of two ranks each."""

from __future__ import annotations

import os
import shutil

import pytest

from benchmarks.gradient_communication import SCHEMES, figures, parser, run_ranks

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("tc") is None, reason="network namespaces need root, ip and tc"
    ),
]


def test_bytes_on_the_link_are_those_of_the_formula() -> None:
    sizes = ["--mbit=400", "--width=256", "--layers=4", "--rounds=1", "--steps=4"]
    found = figures(run_ranks(parser().parse_args(sizes), timeout_s=100.0))["schemes"]
    assert set(found) == set(SCHEMES)
    for scheme, row in found.items():
        assert row["formula_mb"] <= row["link_mb"] <= 1.15 * row["formula_mb"] + 0.03, scheme
    assert found["hierarchical"]["link_mb"] < 0.7 * found["none"]["link_mb"]
    assert found["topk"]["link_mb"] < 0.05 * found["none"]["link_mb"]
