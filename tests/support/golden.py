"""Golden files: texts under tests/golden, rewritten where UPDATE_GOLDEN is set."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(file: str, text: str) -> None:
    """Compare a text with its golden file. A batch script must be correct bash as well."""
    path = GOLDEN / file
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    if path.suffix == ".sbatch":
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
