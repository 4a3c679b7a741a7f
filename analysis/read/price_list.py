"""Price list of a report: prices of devices and the carbon intensity of the grid, in a YAML file.

    currency: EUR
    device_hour:                      # price of one device for one hour, by a part of its recorded name
      NVIDIA H100: 2.50
      cpu: 0.04                       # one CPU rank
    grid_g_per_kwh: 380               # grams of CO2 per kWh

Nothing is assumed: a device without a price costs nothing that the report could name, so no money is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from disttrain.config.parsing import load
from disttrain.errors import ConfigError, nearest

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PriceList(BaseModel):
    """Prices and carbon intensity; empty where the user gave none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    currency: Annotated[str, StringConstraints(pattern=r"\S")] | None = None
    device_hour: dict[str, Amount] = {}
    """Price of one device for one hour, by a part of its name."""
    grid_g_per_kwh: Amount | None = None

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
    try:
        prices = PriceList.model_validate(draft.data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        hint = nearest(key, PriceList.model_fields) if first["type"] == "extra_forbidden" else ""
        raise ConfigError(
            f"{key}={first['input']!r}: {first['msg']}{hint}", at=draft.origin.get(key, str(path))
        ) from None
    if prices.device_hour and prices.currency is None:
        raise ConfigError("no `currency` of the prices, such as EUR", at=str(path))
    return prices
