"""Parts of a product sum exactly and do not depend on the order."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.results.log_mean import additive_parts, log_mean

positive = st.floats(1e-6, 1e6)
factors = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 2.0), min_size=1)


@given(positive, positive)
def test_the_mean_lies_between_the_geometric_and_the_arithmetic(a: float, b: float) -> None:
    assert math.sqrt(a * b) * (1 - 1e-12) <= log_mean(a, b) <= (a + b) / 2 * (1 + 1e-12)
    assert log_mean(a, b) == pytest.approx(log_mean(b, a))


@given(positive, factors)
def test_parts_sum_to_the_difference_and_have_the_sign_of_their_factor(
    ideal_s: float, found: dict[str, float]
) -> None:
    parts = additive_parts(ideal_s, found)
    actual_s = ideal_s / math.prod(found.values())
    assert sum(parts.values()) == pytest.approx(actual_s - ideal_s, abs=1e-9 * max(actual_s, ideal_s))
    assert all((parts[name] >= 0) == (factor <= 1) for name, factor in found.items())


@given(positive, factors)
def test_the_order_of_factors_does_not_matter(ideal_s: float, found: dict[str, float]) -> None:
    turned = dict(reversed(found.items()))
    assert additive_parts(ideal_s, turned) == pytest.approx(additive_parts(ideal_s, found))


def test_equal_numbers_are_their_mean_and_other_numbers_are_refused() -> None:
    assert log_mean(3.0, 3.0) == pytest.approx(3.0)
    assert log_mean(math.e, 1.0) == pytest.approx(math.e - 1)
    for refused in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive finite"):
            log_mean(refused, 1.0)


@pytest.mark.parametrize("difference", [1e-9, 1e-5, 1.8e-4, 2.2e-4])
def test_nearly_equal_numbers_lose_no_digits(difference: float) -> None:
    a, b = Decimal(1 + difference), Decimal(1)  # Decimal has 28 digits
    exact = (a - b) / (a / b).ln()
    assert log_mean(1 + difference, 1.0) == pytest.approx(float(exact), rel=1e-14)
