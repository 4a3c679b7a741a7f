"""Share of mutants that the tests killed, by module, and the survivors: `make mutants`.

mutmut changes one expression at a time (a mutant) and runs the tests that reach it; a mutant that no test
fails on has survived. `[tool.mutmut]` in pyproject.toml names modules and tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict

AIM = 0.95
KILLED = frozenset({"killed", "timeout", "segfault", "suspicious", "caught by type check"})


def main() -> int:
    """Print a table and the changes that survived; 1 if a module is below the aim or not run as a whole."""
    listed = _mutmut("results", "--all", "true").splitlines()
    named = [line.strip().rsplit(": ", 1) for line in listed if "__mutmut_" in line]
    found = [(name, status) for name, status in named if status != "not checked"]
    by_module: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    for name, status in found:
        by_module[module_of(name)][status in KILLED] += 1
    for name, status in found:
        if status not in KILLED:
            print(f"{status}: {name}\n{changed_lines(_mutmut('show', name))}")
    low = False
    for module, counts in sorted(by_module.items()):
        share = counts[True] / counts.total()
        low |= share < AIM
        print(f"{module:45}{counts[True]:5} of {counts.total():5} killed: {100 * share:.1f} %")
    if len(found) < len(named):
        print(f"{len(named) - len(found)} mutants were not run")
    return int(low or len(found) < len(named) or not found)


def module_of(mutant: str) -> str:
    """`analysis.stats.estimates` of `analysis.stats.estimates.x_ratio__mutmut_1`."""
    return mutant.rpartition(".x")[0]


def changed_lines(diff: str) -> str:
    """The removed and added lines of a unified diff."""
    return "\n".join(
        line for line in diff.splitlines() if line[:1] in ("-", "+") and line[:3] not in ("---", "+++")
    )


def _mutmut(*arguments: str) -> str:
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
