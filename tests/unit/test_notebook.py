"""The notebook: thin, stored without outputs, and it runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.fake_runs import fake_sweep
from tests.support.jobs import WITHIN_S

NOTEBOOK = Path(__file__).parents[2] / "analysis" / "scaling.ipynb"


def test_stored_without_outputs() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


def test_runs_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTTRAIN_SWEEP", str(fake_sweep(tmp_path, nodes=(1, 2), repeats=2)))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=WITHIN_S, kernel_name="python3")
    client.execute(cwd=str(NOTEBOOK.parent))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) == 5
    assert any("n2x1-r1" in output.get("data", {}).get("text/html", "") for output in outputs)
