"""The notebook of the examples: it is stored without outputs, and its cells run and show what they describe."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stores import copy_store

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "examples" / "13-notebook" / "three_precisions.ipynb"


def test_notebook_shows_three_precisions(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TRTOPS_HOME", str(copy_store(template, tmp_path / "mlruns")))
    notebook = nbformat.read(NOTEBOOK, 4)

    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()

    result, texts, outputs, runs = [_shown(cell) for cell in notebook.cells if cell.get("outputs")]
    assert "digits.onnx: good" in result["text/html"] and "<td>scores</td>" in result["text/html"]
    assert texts["text"].count("verdict: good") == 3 and "arrays in memory" in texts["text"]
    assert "<td>good</td>" in outputs["text/html"]
    for precision in ("fp32", "fp16", "int8"):
        assert f"<td>{precision}</td>" in runs["text/html"]


def _shown(cell: Any) -> dict[str, str]:
    """Return the output of a cell by its type, without what it logs."""
    [output] = [output for output in cell["outputs"] if output.get("name") != "stderr"]
    return dict(output["data"]) if "data" in output else {"text": output["text"]}


def test_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
