"""The TensorRT command lines of the documents that the project came from, run on a GPU."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli import seed_lines
from trtops.cli.main import main
from trtops.system.worker import Worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.seeds,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not seed_lines.SEEDS.is_dir(), reason="the documents are not next to the checkout"),
]


class Expected(NamedTuple):
    """How a line may end other than with 0: exit codes, the reason, and a pattern in the output."""

    codes: tuple[int, ...]
    reason: str
    output: str = ""


TF32 = Expected(
    (0, 1), "TF32 keeps 10 bits of each input, and nothing is said to replace the default tolerance of 1e-5"
)
FP16 = Expected((0, 1), "FP16 where it is fastest, under a tolerance that FP32 is held to")
INT8 = Expected((0, 1), "INT8 where it is fastest, by ranges of made-up data, under a tolerance that it need not meet")
TYPED = Expected((3,), "strongly typed networks and weight streaming came with 10.0", r"strongly typed networks.*10\.0")

EXPECTED = {
    "run model.onnx --onnxrt --trt --tf32": TF32,
    "run model.onnx --onnxrt --trt-engine engines/model.engine --save-outputs results/model.json": FP16,
    "run model.onnx --onnxrt --trt --fp16 --rtol 1e-3 --atol 1e-3 --builder-optimization-level 5 "
    "--save-engine optimized_fp16.engine": FP16,
    "run model.onnx --onnxrt --trt --fp16 --save-outputs results/model_fp16.json --rtol 1e-3 --atol 1e-3": FP16,
    "run model.onnx --onnxrt --trt --int8 --calibration-cache calib.cache --save-outputs int8_outputs.json": INT8,
    "run model.onnx --onnxrt --trt --int8 --data-loader-script calibration_data.py --calibration-cache int8.cache "
    "--calib-base-cls IInt8MinMaxCalibrator --rtol 5e-2 --atol 1e-2": INT8,
    "run model.onnx --onnxrt --trt --int8 --save-outputs results/model_int8.json --rtol 1e-3 --atol 1e-3": INT8,
    "run model.onnx --onnxrt --trt --int8 --calibration-cache calibration.cache --load-outputs fp32_baseline.json "
    "--rtol 5e-2 --atol 1e-2": INT8,
    "run model.onnx --trt --strongly-typed --weight-streaming --weight-streaming-budget 1G --pool-limit workspace:2G "
    "--max-aux-streams 4": TYPED,
    "run huge_model.onnx --trt --weight-streaming --weight-streaming-budget 50% --strongly-typed --refittable": TYPED,
    "run multi_input_model.onnx --onnxrt --trt --input-shapes 'image:[1,3,224,224]' 'mask:[1,1,224,224]' "
    "--val-range 'image:[0,1]' 'mask:[0,1]' --data-loader-backend-module torch": Expected(
        (0, 3), "PyTorch makes the data, where it is installed", "torch"
    ),
    "run large_model.onnx --onnxrt --trt --pool-limit workspace:4G dla_local_dram:1G --allocation-strategy runtime "
    "--use-subprocess": Expected((3,), "contexts can be made for the shapes at hand from 10.0 on", "allocation"),
    "run model.onnx --onnxrt --trt --fp16 --warm-up 10 --iterations 100 --save-timing-cache timing.cache "
    "--builder-optimization-level 5 --tactic-sources cublas cudnn --max-aux-streams 4": Expected(
        (0, 1, 3), "FP16 under FP32's tolerance, by tactics of cuBLAS and cuDNN, which the test machine has not"
    ),
}
"""Lines that may end otherwise than with 0 on TensorRT 8.6, by their words."""

IN_A_CHILD = ("--tactic-sources",)
"""What might take the process down: libraries that are not all there."""


def _lines() -> list[seed_lines.SeedLine]:
    """The lines, in the documents' order; one that starts a process for each of ten engines is taken from the first of
    the documents that have it.
    """
    lines: list[seed_lines.SeedLine] = []
    for line in seed_lines.lines() if seed_lines.SEEDS.is_dir() else []:
        again = "--check" in line.words and any(line.words == other.words for other in lines)
        if seed_lines.needs_tensorrt(line.words) and not again:
            lines.append(line)
    return lines


LINES = _lines()


def test_every_expectation_has_a_line() -> None:
    words = {shlex.join(line.words) for line in LINES}

    assert not set(EXPECTED) - words
    assert len(LINES) >= 80


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each document, made when its first line is carried out.

    What a line leaves serves those behind it.
    """
    return {"root": tmp_path_factory.mktemp("seeds")}


@pytest.fixture(scope="module")
def command(folders: dict[str, Path]) -> Path:
    """A folder with the command in it, for ``--check trtops ...``."""
    folder = folders["root"] / "bin"
    folder.mkdir()
    script = folder / "trtops"
    root = Path(__file__).parents[2]
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = [{str(root)!r}]\n"
        "from trtops.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return folder


def folder_of(seed: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The document's folder, with real engines and golden outputs in it."""
    if seed not in folders:
        folders[seed] = folders["root"] / seed / "examples" / "cli" / "convert"
        folders[seed].mkdir(parents=True)
        seed_lines.write_folder(folders[seed], seed)
        monkeypatch.chdir(folders[seed])
        for name in ("model", "dynamic_identity") if seed == "000" else ():
            assert main(["convert", f"{name}.onnx", "-o", f"{name}.engine"]) == 0
        for line in seed_lines.lines():
            if line.seed == seed and "golden.json" in line.words and "--check" not in line.words:
                assert main(line.words) == 0
    return folders[seed]


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_documented_tensorrt_line_works(
    line: seed_lines.SeedLine, folders, command, monkeypatch, caplog, capsys
) -> None:
    monkeypatch.setenv("PATH", f"{command}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(folder_of(line.seed, folders, monkeypatch))
    expected = EXPECTED.get(shlex.join(line.words), Expected((0,), ""))
    caplog.clear()
    capsys.readouterr()

    if any(word in line.words for word in IN_A_CHILD):
        with Worker() as worker:
            code = worker.run(main, list(line.words), timeout=300)
    else:
        code = main(line.words)

    shown = capsys.readouterr()
    everything = f"{shown.out}\n{shown.err}\n{caplog.text}"
    assert code in expected.codes, f"{code}, expected {expected}\n{everything[-6000:]}"
    if code == 3:
        assert re.search(expected.output, everything, re.DOTALL), everything[-6000:]
