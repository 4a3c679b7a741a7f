"""Numbers as the reports print them."""

from __future__ import annotations

import pytest

from analysis import units
from analysis.stats.estimates import Estimate
from analysis.units import Cell, cell


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0412, "0.0412"),
        (7.0, "7.00"),
        (77.64, "77.6"),
        (412.4, "412"),
        (999.7, "1,000"),
        (12_345, "12,300"),
    ],
)
def test_number_keeps_three_digits(value: float, text: str) -> None:
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.2, "1.20 s"),
        (0.0412, "41.2 ms"),
        (31e-6, "31.0 µs"),
        (0.0, "0 s"),
        (90, "90.0 s"),
        (0.0009996, "1.00 ms"),
    ],
)
def test_seconds_choose_their_unit(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 s"), (0.12, "120 ms"), (2.49, "2.49 s"), (42, "42.0 s"), (9360, "2.60 h")]
)
def test_spans_have_three_digits(value: float, text: str) -> None:
    assert units.span(value) == text


def test_small_words() -> None:
    assert (units.plural(1, "node"), units.plural(1200, "sample")) == ("1 node", "1,200 samples")
    assert (units.percent(0.731), units.times(2.868)) == ("73.1 %", "2.87\N{MULTIPLICATION SIGN}")
    assert (units.binary_bytes(3 * 2**30), units.binary_bytes(12)) == ("3.00 GiB", "12.0 B")


@pytest.mark.parametrize(
    ("value", "text"), [(16, "16"), (16_384, "16,384"), (4_206_592, "4.21 M"), (7_000_000_000, "7.00 G")]
)
def test_large_counts_are_short(value: int, text: str) -> None:
    assert units.short_count(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "\N{EN DASH}"),
        (float("nan"), "share", "\N{EN DASH}"),
        (True, "", "yes"),
        ("text", "", "text"),
        (1234, "count", "1,234"),
        (0.0412, "s", "41.2 ms"),
        (90.0, "span", "1.50 min"),
        (0.913, "share", "91.3 %"),
        (-0.02, "points", "-2.0 pp"),
        (-1e-9, "points", "0.0 pp"),
        (-1e-9, "share", "0.0 %"),
        (0.0, "s", "0 s"),
        (0.00214, "points", "+0.2 pp"),
        (13.901, "points", "+1,390.1 pp"),
        (-1.39e-17, "s", "0 µs"),
        (2.871, "ratio", "2.87\N{MULTIPLICATION SIGN}"),
        (5.1e8, "B/s", "510 MB/s"),
        (9.89e14, "FLOP/s", "989 TFLOP/s"),
        (2**30, "B", "1.00 GiB"),
        (1.23456, "loss", "1.2346"),
        (0.168, "currency", "0.168"),
        (-0.00123, "currency", "-0.00123"),
        (0.0000213, "currency", "0.0000213"),
        (0.000009999, "currency", "0.0000100"),
        (-1e-9, "currency", "0"),
        (12345.6, "currency", "12,300"),
        (0.000398, "g", "398 µg"),
        (0.00398, "g", "3.98 mg"),
        (0.0, "g", "0 g"),
        (1234.0, "g", "1.23 kg"),
    ],
)
def test_values_have_their_unit(value, unit, text):
    assert cell(value, unit) == Cell(text)


@pytest.mark.parametrize(
    ("value", "unit", "line"),
    [
        (Estimate(0.913, 0.901, 0.924, 3), "share", "91.3 % [90.1, 92.4], n=3"),
        (Estimate(1234, 1200, 12345, 3), "number", "1,230 [1\u202f200, 12\u202f300], n=3"),
        (Estimate(0.1, 0.09, 0.11, 3), "s", "100 ms [90.0, 110], n=3"),
        (Estimate(458e-6, 0, 11.4e-3, 1, "within run"), "s", "0.458 ms [0, 11.4] within the run, n=1"),
        (Estimate(-1e-17, -1.39e-17, 1e-17, 3), "s", "0 µs [0, 0], n=3"),
        (Estimate(1e-6, -1.39e-17, 2e-6, 3), "s", "1.00 µs [0, 2.00], n=3"),
        (Estimate(-1e-9, -1e-8, 1e-8, 3), "points", "0.0 pp [0.0, 0.0], n=3"),
        (Estimate(5e9, 4e9, 6e9, 4), "B/s", "5.00 GB/s [4.00, 6.00], n=4"),
        (Estimate(2.49, 2.44, 2.58, 1, "within run"), "span", "2.49 s [2.44, 2.58] within the run, n=1"),
        (Estimate(90, 60, 120, 2), "span", "1.50 min [1.00, 2.00], n=2"),
        (Estimate(0.5, 0.4, 0.6, 1, "within run"), "share", "50.0 % [40.0, 60.0] within the run, n=1"),
        (Estimate(0.1684, 0.168, 0.169, 3), "currency", "0.168 [0.168, 0.169], n=3"),
        (Estimate(0.0000213, 0.0000201, 0.000023, 3), "currency", "0.0000213 [0.0000201, 0.0000230], n=3"),
        (Estimate(0.0123, 0.00098, 0.02, 3), "g", "12.3 mg [0.980, 20.0], n=3"),
        (Estimate(2, None, None, 1), "ratio", "2.00\N{MULTIPLICATION SIGN}, no interval, n=1"),
        (Estimate(2, None, None, 3), "ratio", "2.00\N{MULTIPLICATION SIGN}, no interval, n=3"),
    ],
)
def test_estimates_have_interval_and_repeats_in_the_unit_of_the_value(value, unit, line):
    assert cell(value, unit).line == line
