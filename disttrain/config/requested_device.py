"""What `resources.device` requests of a scheduler. Standard library only: agents read it."""

from __future__ import annotations


def asks_for_gpus(device: str) -> bool:
    """Whether `resources.device` means a GPU for each rank, where a job gets what it requests."""
    return device not in ("cpu", "shared")
