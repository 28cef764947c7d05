"""Searches and pictures that need TensorRT and a GPU, by their command lines."""

import shlex
import sys
from pathlib import Path

import pytest

from tests import models
from trtops.cli.main import main

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, and with its inputs and outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))  # for the commands that evaluate
    models.conv_net().write(tmp_path)
    assert run("run conv_net.onnx --onnxrt --save-inputs i.json --save-outputs golden.json") == 0
    return tmp_path


def run(line: str) -> int:
    return main(shlex.split(line))


def test_engines_with_fp32_layers_are_checked(folder, capsys):
    """The engine fails as long as the last layer may be FP16; the command finds out by reading the engine itself."""
    Path("check.py").write_text(
        "import subprocess, sys\n"
        "def command(line):\n"
        "    return subprocess.run([sys.executable, '-m', 'trtops.cli', *line.split()], capture_output=True, "
        "text=True)\n"
        "layers = command('inspect model trtops_debug.engine --show layers').stdout.partition('Layer(s)')[2]\n"
        "print(layers)\n"
        "ran = 'run trtops_debug.engine --trt --load-inputs i.json --load-outputs golden.json --atol 1e-2'\n"
        "sys.exit('fp16' in layers or command(ran).returncode)\n"
    )
    words = shlex.split("debug precision conv_net.onnx --fp16 --mode bisect --check")

    assert main([*words, sys.executable, "check.py"]) == 0
    assert not Path("trtops_debug.engine").exists()
    output = capsys.readouterr().out
    assert "must stay in FP32" in output or "can be lowered" in output


def test_tensor_statistics_appear_with_layers(folder, capsys):
    assert run("run conv_net.onnx --trt --load-inputs i.json --save-engine e.engine --save-outputs saved.json") == 0
    capsys.readouterr()

    assert run("inspect model e.engine --show layers --combine-tensor-info saved.json") == 0
    assert "scores [dtype=float32, shape=" in capsys.readouterr().out.partition("---- Tensors of")[2]
