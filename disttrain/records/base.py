"""Base class of all records of a run directory."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class Part(BaseModel):
    """Base of a part of a record: refuses unknown fields; the docstring under a field describes it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Record(Part):
    """Base of every record."""

    schema_version: int = SCHEMA_VERSION
