"""PNG files of matplotlib figures."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from analysis.figures.style import DPI
from disttrain.records.json_files import write_bytes


def save(figure: Figure, path: Path) -> None:
    """Write a PNG atomically."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=DPI, metadata={"Software": None})
    write_bytes(path, image.getvalue())
