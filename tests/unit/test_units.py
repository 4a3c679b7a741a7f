"""Numbers as the reports print them."""

from __future__ import annotations

import pytest

from analysis import units
from analysis.stats.estimates import Estimate


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
        (2.14, "+2.1"),
        (-0.31, "-0.3"),
        (0.04, "0.0"),
        (-0.04, "0.0"),
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (0.06, "+0.1"),
    ],
)
def test_a_number_that_is_rounded_to_zero_has_no_sign(value: float, text: str) -> None:
    assert units.signed(value) == text
    assert units.points(value / 100) == f"{text} pp"
    assert units.fixed(value) == text.lstrip("+")
    assert units.interval(Estimate(1.0, value, 2.0, 2)) == f"[{text.lstrip('+')}, 2.0]"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.2, "1.20 s"), (0.0412, "41.2 ms"), (31e-6, "31.0 µs"), (0.0, "0 µs"), (90, "90.0 s")],
)
def test_seconds_choose_their_unit(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 s"), (0.12, "120 ms"), (2.49, "2.49 s"), (42, "42.0 s"), (9360, "2.60 h")]
)
def test_spans_have_three_digits(value: float, text: str) -> None:
    assert units.span(value) == text


def test_the_comma_of_an_interval_separates_its_bounds_alone() -> None:
    assert units.bounds("1,234", "12,300") == "[1\u202f234, 12\u202f300]"
    assert units.bounds("0.5", "7.2") == "[0.5, 7.2]"


def test_interval_says_why_there_is_none() -> None:
    assert units.interval(Estimate(0.7, 0.68, 0.72, 3), 100) == "[68.0, 72.0]"
    assert units.interval(Estimate(0.7, None, None, 1), 100) == "n=1, no interval"


def test_small_words() -> None:
    assert (units.plural(1, "node"), units.plural(1200, "sample")) == ("1 node", "1,200 samples")
    assert (units.percent(0.731), units.times(2.868)) == ("73.1 %", "2.87\N{MULTIPLICATION SIGN}")
    assert (units.binary_bytes(3 * 2**30), units.binary_bytes(12)) == ("3.00 GiB", "12 B")


@pytest.mark.parametrize(
    ("value", "text"), [(16, "16"), (16_384, "16,384"), (4_206_592, "4.21 M"), (7_000_000_000, "7.00 G")]
)
def test_large_counts_are_short(value: int, text: str) -> None:
    assert units.short_count(value) == text
