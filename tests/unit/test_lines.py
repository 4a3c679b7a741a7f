"""JSON Lines as columns: exact, and a damaged record costs no other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.read.lines import Int32, read_columns

FIELDS = {"step": Int32, "step_s": float, "wait_s": float}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "step": st.none() | st.integers(-(2**31), 2**31 - 1),
                "step_s": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
                "wait_s": st.none() | st.floats(0, 1),
                "unread": st.text() | st.lists(st.integers()),
            },
        )
    )
)
def test_numbers_are_equal_to_the_last_bit(tmp_path: Path, records: list[dict[str, object]]) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    problems: list[str] = []
    found = read_columns(path, FIELDS, problems)
    assert problems == []
    for name in FIELDS:
        expected = np.array([record.get(name) for record in records], dtype=np.float64)
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize(
    ("line", "listed"),
    [
        ("not json", 1),
        ("[]", 1),
        ('{"step": "three"}', 1),
        ('{"step": 1.5}', 1),
        ('{"step": true}', 1),
        ('{"step": 3000000000}', 1),
        ('{"step_s": 1e999}', 1),
        ('{"step_s": NaN}', 1),
        ("", 0),
    ],
)
def test_a_damaged_record_is_listed_and_costs_no_other(tmp_path: Path, line: str, listed: int) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"step": 1, "step_s": 0.1}}\n{line}\n{{"step": 2, "step_s": 0.2}}\n{{"step": 3')
    problems: list[str] = []
    assert read_columns(path, FIELDS, problems)["step"][[0, -1]].tolist() == [1, 2]
    assert [problem.startswith(f"{path}:2 ") for problem in problems] == [True] * listed
