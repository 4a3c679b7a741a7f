"""Numbers of JSON Lines files: the fast decoder agrees with pyarrow's, also on damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.read.json_columns import read_columns, read_numbers, read_object
from disttrain.records.json_files import CorruptFile

WHOLE, REAL = ("step", "samples"), ("step_s", "wait_s")
SCHEMA = pa.schema([*((name, pa.int32()) for name in WHOLE), *((name, pa.float64()) for name in REAL)])


def both(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """The columns and messages of `read_numbers`, which are those of `read_columns`."""
    fast, slow = [], []
    found = read_numbers(path, WHOLE, REAL, fast)
    table = read_columns(path, SCHEMA, slow)
    for name in SCHEMA.names:
        expected = table[name].cast(pa.float64()).fill_null(np.nan).to_numpy()
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].dtype == np.float64
    assert fast == slow
    return found, fast


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "step": st.none() | st.integers(-(2**31), 2**31 - 1),
                "samples": st.integers(0, 9),
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
    found, messages = both(path)
    assert messages == []
    assert found["step_s"].size == len(records)


@pytest.mark.parametrize(
    ("line", "listed"),
    [
        ("not json", 1),
        ("[]", 1),
        ('{"step": "three"}', 1),
        ('{"step": 1.5}', 1),
        ('{"step": 3000000000}', 1),
        ('{"step_s": 1e999}', 1),
        ('{"step_s": NaN}', 0),
        ("", 0),
    ],
)
def test_a_damaged_record_is_listed_and_costs_no_other(tmp_path: Path, line: str, listed: int) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"step": 1, "step_s": 0.1}}\n{line}\n{{"step": 2, "step_s": 0.2}}\n{{"step": 3')
    found, messages = both(path)
    steps = found["step"]
    assert steps[~np.isnan(steps)].tolist() == [1, 2]
    assert [message.startswith(f"{path}:2 ") for message in messages] == [True] * listed


def test_an_object_is_read_as_the_standard_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9"}}')
    assert read_object(path) == json.loads(path.read_text())
    path.write_text('{"a": NaN}')
    assert np.isnan(read_object(path)["a"])
    for damage in (b"[1]", b'{"a": ', b"", b'{"a":"\xff"}', b'{"a":' + b"[" * 100_000):
        path.write_bytes(damage)
        with pytest.raises(CorruptFile):
            read_object(path)
