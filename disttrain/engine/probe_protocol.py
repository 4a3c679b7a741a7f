"""Messages between a rank and its probe process: JSON lines. Standard library only."""

from __future__ import annotations

EXIT_OUT_OF_MEMORY = 75
"""Exit code of a probe process that could not allocate memory."""
STORE_PREFIX = "DISTTRAIN_PROBE_STORE_PREFIX"
"""Environment variable: prefix of the keys by which the probe processes of all ranks meet."""
