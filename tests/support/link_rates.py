"""Rates of the links of a ring of nodes."""

from __future__ import annotations

from collections.abc import Mapping


def ring(nodes: int, slow: Mapping[int, float], usual: float = 100e6) -> dict[tuple[int, int], float]:
    """Rates between neighbours in both directions; each link of a node in `slow` has this fraction."""
    pairs = {(node, (node + 1) % nodes) for node in range(nodes)}
    both = pairs | {(target, source) for source, target in pairs}
    return {
        (source, target): usual * min(slow.get(source, 1.0), slow.get(target, 1.0))
        for source, target in sorted(both)
    }
