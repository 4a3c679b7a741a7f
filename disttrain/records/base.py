"""Base class of all records of a run directory."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of every record: refuses unknown fields; the docstring under a field describes it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    schema_version: int = SCHEMA_VERSION
