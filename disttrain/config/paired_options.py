"""Options that some values of another key need, and that all other values do not read."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from disttrain.config.config_tree import Config
from disttrain.errors import as_text, either


def refuse_unpaired(
    config: Config, option: str, chooser: str, values: Sequence[str]
) -> tuple[str, str] | None:
    """Dotted key and message if `option` is missing for one of the `values` of the key `chooser`, or given
    for another value."""
    given, chosen = attrgetter(option, chooser)(config)
    if chosen in values and given is None:
        return chooser, f"{chooser}={chosen} needs {option}, which is not given; give both"
    if chosen not in values and given is not None:
        return (
            option,
            f"{option}={as_text(given)} has no effect with {chooser}={chosen}: leave it out, or use "
            f"{chooser}={either(values)}",
        )
    return None
