"""Price lists: read, and refused in one line with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.read.price_list import PriceList, read_price_list
from disttrain.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(text)
    return path


def test_a_price_is_found_by_the_longest_part_of_the_name(tmp_path: Path) -> None:
    names = "  nvidia: 2\n  H100: 2.5\n  H100 NVL: 3\n  cpu: 0\n"
    text = f"currency: EUR\ndevice_hour:\n{names}grid_g_per_kwh: 380\n"
    prices = read_price_list(written(tmp_path, text))
    assert prices.currency == "EUR"
    assert prices.grid_g_per_kwh == 380
    assert prices.price_of("H100 80GB HBM3") == 2.5
    assert prices.price_of("NVIDIA H100 NVL") == 3
    assert prices.price_of("NVIDIA A100") == 2
    assert prices.price_of("cpu") == 0
    assert prices.price_of("AMD Instinct MI300X") is None
    assert prices.price_of(None) is None


def test_nothing_is_assumed(tmp_path: Path) -> None:
    assert read_price_list(written(tmp_path, "grid_g_per_kwh: 50")) == PriceList(grid_g_per_kwh=50)
    assert read_price_list(written(tmp_path, "currency: EUR")) == PriceList(currency="EUR")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("currenzy: EUR", r"prices.yaml:1: currenzy='EUR': Extra inputs.*did you mean 'currency'"),
        ("device_hour:\n  cpu: 1", r"prices.yaml: no `currency` of the prices"),
        ("currency: 3\ndevice_hour:\n  cpu: 1", r"prices.yaml:1: currency=3: Input should be a valid string"),
        ("currency: EUR\ndevice_hour:\n  cpu: .inf", r"prices.yaml:3: device_hour.cpu=inf: .* finite"),
        ("currency: EUR\ndevice_hour:\n  cpu: -1", r"prices.yaml:3: device_hour.cpu=-1: .* or equal to 0"),
        (
            "currency: EUR\ndevice_hour: 3",
            r"prices.yaml:2: device_hour=3: Input should be a valid dictionary",
        ),
        ("grid_g_per_kwh: high", r"prices.yaml:1: grid_g_per_kwh='high': Input should be a valid number"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read_price_list(written(tmp_path, text))
    assert "\n" not in str(refused.value)
