"""Price list of a report: prices of devices and the carbon intensity of the grid, in a YAML file.

    currency: EUR
    device_hour:                      # price of one device for one hour, by a part of its recorded name
      NVIDIA H100: 2.50
      cpu: 0.04                       # one CPU rank
    grid_g_per_kwh: 380               # grams of CO2 per kWh

Nothing is assumed: a device without a price costs nothing that the report could name, so no money is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disttrain.config.parsing import load
from disttrain.errors import ConfigError, nearest

_KEYS = ("currency", "device_hour", "grid_g_per_kwh")


@dataclass(frozen=True)
class PriceList:
    """Prices and carbon intensity; empty where the user gave none."""

    currency: str | None = None
    device_hour: Mapping[str, float] = field(default_factory=dict)
    """Price of one device for one hour, by a part of its name."""
    grid_g_per_kwh: float | None = None

    def price_of(self, device: str | None) -> float | None:
        """Price per hour of a device with this recorded name; the longest matching entry counts."""
        found = [key for key in self.device_hour if device and key.lower() in device.lower()]
        return self.device_hour[max(found, key=len)] if found else None


def read_price_list(path: Path | str) -> PriceList:
    """Read and check a price list.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not allowed; one line with file and line.
    """
    draft = load(path)

    def refuse(key: str, problem: str) -> ConfigError:
        return ConfigError(problem, at=draft.origin.get(key, str(path)))

    for key in draft.data:
        if key not in _KEYS:
            hint = nearest(str(key), _KEYS)
            raise refuse(str(key), f"unknown key {key!r} in a price list{hint}; keys: {', '.join(_KEYS)}")
    currency, prices = draft.data.get("currency"), draft.data.get("device_hour") or {}
    if not isinstance(prices, dict):
        raise refuse("device_hour", f"device_hour={prices!r}: a mapping from a device's name to its price")
    for name, price in prices.items():
        if not isinstance(name, str) or not _is_amount(price):
            at = f"device_hour.{name}"
            raise refuse(at, f"{at}={price!r}: the price of one device for one hour, at least 0")
    if prices and not (isinstance(currency, str) and currency.strip()):
        raise refuse("currency", f"currency={currency!r}: the currency of the prices, such as EUR")
    grid = draft.data.get("grid_g_per_kwh")
    if grid is not None and not _is_amount(grid):
        raise refuse("grid_g_per_kwh", f"grid_g_per_kwh={grid!r}: grams of CO2 per kWh, at least 0")
    return PriceList(currency if prices else None, prices, grid)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
