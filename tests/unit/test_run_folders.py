"""Names of sweeps and runs in natural order."""

from __future__ import annotations

from jobs.status.run_folders import natural_key


def test_names_sort_by_the_numbers_in_them() -> None:
    names = ["n16-r0", "n2-r10", "n2-r9", "n1-r0"]
    assert sorted(names, key=natural_key) == ["n1-r0", "n2-r9", "n2-r10", "n16-r0"]
