"""Select runs by the filters of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import get_args

from disttrain.errors import ConfigError, nearest
from disttrain.records.exit_causes import ENDED_BY_REQUEST
from jobs.status.run_state import RunState, StateName

STATES = (*get_args(StateName), *ENDED_BY_REQUEST)
"""Values of `--state`, as `RunState.displayed_state` has them."""


def by_state(args: argparse.Namespace) -> Callable[[RunState], bool]:
    """Whether `--state` selects a run; without it, every run. Raises `ConfigError` for an unknown state."""
    if args.state is None:
        return lambda state: True
    wanted = [word.strip() for word in args.state.split(",")]
    for word in wanted:
        if word not in STATES:
            raise ConfigError(
                f"{word!r} is not one of {', '.join(STATES)}{nearest(word, STATES)}", at="--state"
            )
    return lambda state: state.displayed_state in wanted


def with_tags(states: Sequence[RunState], tags: Sequence[str]) -> list[RunState]:
    """The runs that have all of these tags. Raises `ConfigError` for a tag that no run has."""
    known = sorted({tag for state in states for tag in state.tags})
    for tag in tags:
        if tag not in known:
            hint = nearest(tag, known) or f"; existing tags: {', '.join(known) or 'none'}"
            raise ConfigError(f"no run here has the tag {tag!r}{hint}", at="--tag")
    return [state for state in states if {*tags} <= {*state.tags}]
