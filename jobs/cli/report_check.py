"""`report --check`: the targets of sweeps, and the exit code that follows from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from jobs.cli.command_output import add_json


def check_targets(
    folders: Sequence[Path],
    *,
    base: str | None,
    only: Collection[Path] | None,
    warmup: int = 0,
    reject_warned: bool = False,
    print_results: bool = True,
) -> int:
    """Print one line for each target; 0 if all are met, 1 if one is missed, 3 if the runs cannot tell.

    Raises `ConfigError` if the sweeps have no targets.
    """
    from analysis.results import targets  # imports numpy and pandas

    found = targets.check(folders, base=base, only=only, warmup=warmup, reject_warned=reject_warned)
    if print_results:
        several = len({result.curve for result in found}) > 1
        for result in found:
            print(f"{result.curve}: {targets.sentence(result)}" if several else targets.sentence(result))
        add_json(targets=[targets.as_json(result) for result in found])
    return targets.exit_code(found)
