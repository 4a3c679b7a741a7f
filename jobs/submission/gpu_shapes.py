"""Numbers of GPUs (`sweep --gpus`) as shapes that fill a node before the next one begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from disttrain.errors import ConfigError
from sweeps.expand import GPUS, NODES, Axes
from sweeps.overrides import parse_flag


def gpu_shapes(words: Iterable[str], of_node: Any) -> list[Axes]:
    """Shapes (axes of one value) of these numbers, with `of_node` GPUs on a node.

    Raises `ConfigError` for a number beyond one node that fills no whole nodes.
    """
    numbers = parse_flag("--gpus", "gpus", words).values
    if type(of_node) is not int or of_node < 1:
        hint = "give --gpus-per-node N, or gpus_per_node in the site profile or the sweep file"
        raise ConfigError(f"the GPUs of a node are not known; {hint}", at="--gpus")
    for number in numbers:
        if type(number) is not int or number < 1 or (number > of_node and number % of_node):
            allowed = f"allowed are 1 to {of_node} and multiples of {of_node}, the GPUs of a node"
            raise ConfigError(f"{number} fills no whole nodes; {allowed}", at="--gpus")
    return [{NODES: [max(1, number // of_node)], GPUS: [min(number, of_node)]} for number in numbers]
