"""Scripts that ``run --gen-script`` writes: by either tool, run by either, all come to one verdict.

All in this process, since a process of each tool takes half a second; those that start processes run in one of their own.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from trtops.cli.main import main
from trtops.json import save_json
from trtops.logger import G_LOGGER

pytestmark = pytest.mark.parity

pytest.importorskip("polygraphy")

SAVED = "--onnxrt --load-inputs i.json --load-outputs o.json"
SETS: dict[str, tuple[str, int]] = {
    "one runner": ("--onnxrt", 0),
    "validated": ("--onnxrt --onnxrt --validate", 0),
    "validated, with NaN": ("--onnxrt --validate --val-range [nan,nan]", 1),
    "tolerances": ("--onnxrt --onnxrt --atol 1e-3 --rtol scores:1e-3 --check-error-stat max --fail-fast", 0),
    "random data": ("--onnxrt --onnxrt --seed 3 --iterations 2 --val-range [0,2] image:[0,1]", 0),
    "shapes": ("--onnxrt --onnxrt --input-shapes image:[2,3,8,8]", 0),
    "everything saved": ("--onnxrt --save-inputs si.json --save-outputs so.json --save-input-blob blobs", 0),
    "folders": ("--onnxrt --save-inputs si --save-outputs so --iterations 2", 0),
    "saved outputs": (SAVED, 0),
    "saved folders of outputs": ("--onnxrt --load-inputs i.json --load-outputs folder", 0),
    "saved outputs that differ": (f"{SAVED} other.json", 1),
    "only saved outputs": ("--load-outputs o.json other.json", 1),
    "metrics": (f"{SAVED} --compare l2 cosine_similarity psnr snr", 0),
    "metrics of two": (f"{SAVED} --compare distance_metrics quality_metrics simple --l2-threshold 1e-3", 0),
    "metrics that fail": ("--onnxrt --load-inputs i.json --load-outputs other.json --compare psnr --psnr-threshold 90", 1),
    "indices": (f"{SAVED} --compare indices --postprocess top-3 --index-tolerance 1", 0),
    "top k of an output": (f"{SAVED} --postprocess scores:top-2,axis=1", 0),
    "scripts": ("--onnxrt --onnxrt --compare-func-script compare.py --postprocess-func-script postprocess.py", 0),
    "named functions of scripts": ("--onnxrt --onnxrt --compare-func-script compare.py:never --data-loader-script data.py:feeds", 1),
    "data of a script, averaged": ("--onnxrt --onnxrt --data-loader-script data.py --validate --check-average --check-error-stat median", 0),
    "quantiles": ("--onnxrt --onnxrt --error-quantile 0.9 --check-error-stat quantile --save-accuracy-results acc.json", 0),
    "lenient": ("--onnxrt --onnxrt --no-shape-check --infinities-compare-equal", 0),
    "one after the other": ("--onnxrt --onnxrt --sequential-runners --warm-up 1", 0),
    "outputs": ("--onnxrt --onnxrt --onnx-outputs mark all --save-onnx s.onnx", 0),
    "other outputs": ("--onnxrt --onnxrt --onnx-outputs r0 scores --onnx-exclude-outputs scores --shape-inference", 0),
    "by type": ("--onnxrt --onnxrt --onnx-outputs-by-type Relu --save-onnx s.onnx --save-external-data s.data", 0),
    "sessions": ("--onnxrt --onnxrt --providers cpu --graph-optimization-level ORT_ENABLE_BASIC", 0),
    "the log": ("--onnxrt --onnxrt -v --log-format timestamp line-info no-colors --log-file log.txt", 0),
    "quiet": ("--onnxrt --verbosity WARNING comparator:VERBOSE", 0),
    "only the model": ("--save-onnx s.onnx --onnx-outputs r0", 0),
}  # fmt: skip
"""Options, and the verdict of what they ask for."""

SAID = ("FAILED", "Output validation failed")
"""How Polygraphy's scripts say that the verdict is bad: in an error."""

PROCESSES = {"processes": ("--onnxrt --use-subprocess --sequential-runners --load-inputs i.json", 0)}

PROFILE = " ".join(f"--trt-{bound}-shapes image:[{n},3,8,8]" for bound, n in (("min", 1), ("opt", 2), ("max", 4)))
TENSORRT: dict[str, tuple[str, int]] = {
    "an engine": ("--trt --onnxrt --atol 1e-2 --rtol 1e-2", 0),
    "profiles": (f"--trt --onnxrt {PROFILE} --input-shapes image:[3,3,8,8] --atol 1e-2 --rtol 1e-2", 0),
    "precisions": (f"--trt {PROFILE} --fp16 --precision-constraints obey --layer-precisions conv0:float32", 0),
    "INT8": (f"--trt {PROFILE} --int8 --calibration-cache c.cache --data-loader-script data.py", 0),
    "a builder config": (
        f"--trt {PROFILE} --tf32 --sparse-weights --pool-limit workspace:64M --builder-optimization-level 2 "
        "--tactic-sources CUBLAS --profiling-verbosity detailed --max-aux-streams 0",
        0,
    ),
    "files": (f"--trt {PROFILE} --save-engine e.engine --save-timing-cache t.cache --save-tactics t.json", 0),
    "outputs of the network": (f"--trt {PROFILE} --trt-outputs mark all --trt-exclude-outputs scores", 0),
    "formats": (f"--trt {PROFILE} --tensor-formats image:[linear] --tensor-dtypes scores:float32", 0),
    "too strict": ("--trt --onnxrt --fp16 --atol 1e-12 --rtol 1e-12", 1),
}
"""The same for TensorRT; what a release does not have is skipped."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the options name."""
    folder = tmp_path_factory.mktemp("scripts")
    case = models.conv_net()
    case.write(folder, "m")
    (folder / "data.py").write_text(
        "import numpy as np\ndef load_data():\n    return [{'image': np.full((1, 3, 8, 8), i, np.float32)} for i in range(2)]\nfeeds = load_data\n"
    )
    (folder / "compare.py").write_text(
        "def compare_outputs(a, b):\n    return {n: True for n in a}\ndef never(a, b):\n    return {n: False for n in a}\n"
    )
    (folder / "postprocess.py").write_text("def postprocess_outputs(iteration):\n    return iteration\n")
    save_json([{"image": models.random(1, 3, 8, 8, seed=1)}], str(folder / "i.json"))
    with contextlib.chdir(folder) if sys.version_info >= (3, 11) else _changed_to(folder):
        for path in ("o.json", "folder"):
            assert main(["run", "m.onnx", "--onnxrt", "--load-inputs", "i.json", "--save-outputs", path]) == 0
        assert main(["run", "m.onnx", "--onnxrt", "--seed", "7", "--save-outputs", "other.json"]) == 0
    return folder


@contextlib.contextmanager
def _changed_to(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    shutil.copytree(prepared, work)
    monkeypatch.chdir(work)
    return work


def generated(tool: str, options: str) -> str:
    """The script that a tool writes."""
    words = ["run", "m.onnx", *shlex.split(options), "--gen-script", f"by_{tool}.py"]
    if "--load-outputs" in options and "--onnxrt" not in options:
        words.remove("m.onnx")
    if tool == "trtops":
        assert main(words) == 0
    else:
        from polygraphy.tools import main as their_main

        assert not their_main(words)
    return Path(f"by_{tool}.py").read_text()


def renamed(text: str, tool: str) -> str:
    return text.replace("trtops", tool) if tool == "polygraphy" else text.replace("polygraphy", tool)


def verdict(text: str, name: str, *, apart: bool = False) -> int:
    """The exit code of a script."""
    for left in ("maps", "plots", "blobs", "si", "so"):
        shutil.rmtree(left, ignore_errors=True)
    Path(name).write_text(text)
    if apart:
        return subprocess.run([sys.executable, name], capture_output=True).returncode
    from polygraphy.logger import G_LOGGER as THEIRS

    severity = G_LOGGER.module_severity
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as exc:
        return int(exc.code or 0)
    except Exception as exc:
        assert str(exc).startswith(SAID) or "NaN Detected" in str(exc), exc
        return 1
    finally:
        for logger in (G_LOGGER, THEIRS):
            logger.timestamp = logger.line_info = False
            logger.log_file = None
        G_LOGGER.module_severity = severity
        THEIRS.module_severity = THEIRS.CRITICAL
    return 0


def check(options: str, expected: int, *, apart: bool = False) -> None:
    """Both tools' scripts, run by both."""
    found = {}
    for writer in ("polygraphy", "trtops"):
        text = generated(writer, options)
        for runner in ("polygraphy", "trtops"):
            name = f"{writer}_run_by_{runner}.py"
            found[name] = verdict(renamed(text, runner), name, apart=apart)
    assert found == dict.fromkeys(found, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETS)
def test_scripts_of_either_tool_come_to_the_verdict_run_by_either(folder, name):
    check(*SETS[name])


@pytest.mark.parametrize("name", PROCESSES)
def test_scripts_that_start_processes_do_too(folder, name):
    check(*PROCESSES[name], apart=True)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TENSORRT)
def test_scripts_for_tensorrt_do_too(folder, name):
    check(*TENSORRT[name])
