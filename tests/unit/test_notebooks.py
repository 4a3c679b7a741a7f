"""Notebooks: stored without outputs; their code runs, and shows the sections' figures and tables.

`tests/multiprocess/test_default_sweep.py` executes them by Jupyter's client on runs that were measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from matplotlib.figure import Figure

import analysis.notebook
from tests.support.fake_runs import fake_sweep

NOTEBOOKS = sorted((Path(__file__).parents[2] / "analysis").glob("*.ipynb"))


def cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_the_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare", "efficiency", "scaling"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_its_code_shows_figures_and_tables(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(not cell.outputs and cell.execution_count is None for cell in cells(path))
    monkeypatch.setenv("DISTTRAIN_SWEEP", str(fake_sweep(tmp_path, "now", nodes=(1, 2), repeats=2)))
    monkeypatch.setenv("DISTTRAIN_AGAINST", str(fake_sweep(tmp_path, "before", nodes=(1, 2), step_s=0.2)))
    shown: list[Any] = []
    monkeypatch.setattr(analysis.notebook, "display", lambda *parts: shown.extend(parts))
    names: dict[str, Any] = {}
    for cell in cells(path):
        code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        exec(compile(code, path.name, "exec"), names)
    assert any(isinstance(part, Figure) for part in shown)
    assert any(isinstance(part, pd.DataFrame) and len(part) for part in shown)
