"""What every record of a run directory has in common. Imports without torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of every record: closed, documented under each field."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    schema_version: int = SCHEMA_VERSION
