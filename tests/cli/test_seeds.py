"""Every command line of the documents that the project came from, with the command's name changed."""

import importlib.util
from pathlib import Path

import pytest

from tests import models
from tests.cli import seed_lines
from trtops.cli.main import main

pytestmark = [
    pytest.mark.seeds,
    pytest.mark.skipif(not seed_lines.SEEDS.is_dir(), reason="the documents are not next to the checkout"),
]

HAS_TENSORRT = importlib.util.find_spec("tensorrt") is not None
LINES = seed_lines.lines() if seed_lines.SEEDS.is_dir() else []

# The golden outputs in the folder are random numbers.
FAILS = (
    "debug precision reduced.onnx --golden-outputs onnxrt_outputs.json --mark-all --save-layer-outputs analysis.json"
)


def test_the_documents_have_100_lines():
    assert len(LINES) >= 100
    assert {line.seed for line in LINES} == {"000", "001", "002", "003", "004"}


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_documented_line_works(line: seed_lines.SeedLine, tmp_path: Path, monkeypatch, caplog, capsys):
    folder = tmp_path / "examples" / "cli" / "convert"
    folder.mkdir(parents=True)
    seed_lines.write_folder(folder, line.seed)
    monkeypatch.chdir(folder)
    if "CustomOp" in line.words:
        proto = models.model("(float[4] x) => (float[4] y) { t = Relu(x)\n u = custom.CustomOp(t)\n y = Relu(u) }")
        models.Case(proto, {}, name="model").write(folder)

    code = main(line.words)

    shown = capsys.readouterr()
    if seed_lines.needs_tensorrt(line.words) and not HAS_TENSORRT:
        assert code == 3, f"{shown.err}\n{caplog.text}"
        assert "needs tensorrt" in caplog.text + shown.err
        assert "pip install" in caplog.text
    elif not HAS_TENSORRT:
        assert code == int(" ".join(line.words) == FAILS), f"{shown.out}\n{shown.err}\n{caplog.text}"
    else:
        assert code in (0, 1, 3)
