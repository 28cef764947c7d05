"""Scripts that ``run --gen-script`` writes: by either tool, run by either, all come to one verdict.

All in this process, since a process of each tool takes half a second; those that start processes run in one of their
own.
"""

import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from tests.cli.tensorrt_commands import SCRIPTS
from trtops.cli.main import main
from trtops.json import save_json
from trtops.logger import G_LOGGER

pytestmark = pytest.mark.parity

pytest.importorskip("polygraphy")

SAVED = "--onnxrt --load-inputs i.json --load-outputs o.json"
SETS: dict[str, tuple[str, int]] = {
    "validated": ("--onnxrt --onnxrt --validate", 0),
    "validated, with NaN": ("--onnxrt --validate --load-inputs nan.json", 1),
    "tolerances": ("--onnxrt --onnxrt --atol 1e-3 --rtol scores:1e-3 --check-error-stat max --fail-fast", 0),
    "random data": ("--onnxrt --onnxrt --seed 3 --iterations 2 --val-range [0,2] image:[0,1] --input-shapes "
                    "image:[2,3,8,8]", 0),
    "everything saved": ("--onnxrt --save-inputs si.json --save-outputs so.json --save-input-blob blobs", 0),
    "folders": ("--onnxrt --save-inputs si --save-outputs so --iterations 2", 0),
    "saved folders of outputs": ("--onnxrt --load-inputs i.json --load-outputs folder", 0),
    "saved outputs that differ": (f"{SAVED} other.json", 1),
    "only saved outputs": ("--load-outputs o.json other.json", 1),
    "metrics": (f"{SAVED} --compare distance_metrics quality_metrics snr simple --l2-threshold 1e-3", 0),
    "metrics that fail": ("--onnxrt --load-inputs i.json --load-outputs other.json --compare psnr "
                          "--psnr-threshold 90", 1),
    "indices": (f"{SAVED} --compare indices --postprocess scores:top-3,axis=1 --index-tolerance 1", 0),
    "scripts": ("--onnxrt --onnxrt --compare-func-script compare.py --postprocess-func-script postprocess.py", 0),
    "named functions of scripts": ("--onnxrt --onnxrt --compare-func-script compare.py:never --data-loader-script "
                                   "data.py:feeds", 1),
    "data of a script, averaged": ("--onnxrt --onnxrt --data-loader-script data.py --validate --check-average "
                                   "--check-error-stat median", 0),
    "quantiles": ("--onnxrt --onnxrt --error-quantile 0.9 --check-error-stat quantile --save-accuracy-results "
                  "acc.json --no-shape-check --infinities-compare-equal --sequential-runners --warm-up 1", 0),
    "outputs": ("--onnxrt --onnxrt --onnx-outputs mark all --save-onnx s.onnx --providers cpu", 0),
    "other outputs": ("--onnxrt --onnxrt --onnx-outputs r0 scores --onnx-exclude-outputs scores --shape-inference", 0),
    "by type": ("--onnxrt --onnxrt --onnx-outputs-by-type Relu --save-onnx s.onnx --save-external-data s.data "
                "--graph-optimization-level ORT_ENABLE_BASIC", 0),
    "the log": ("--onnxrt --onnxrt -v --log-format timestamp line-info no-colors --log-file log.txt", 0),
    "quiet": ("--onnxrt --verbosity WARNING comparator:VERBOSE", 0),
    "only the model": ("--save-onnx s.onnx --onnx-outputs r0", 0),
}  # fmt: skip
"""Options, and the verdict that they ask for."""

SAID = ("FAILED", "Output validation failed")
"""How Polygraphy's scripts say that the verdict is bad: in an error."""

PROFILE = " ".join(f"--trt-{bound}-shapes image:[{n},3,8,8]" for bound, n in (("min", 1), ("opt", 2), ("max", 4)))
LARGER = PROFILE.replace("[4,", "[16,").replace("[2,", "[8,").replace("[1,", "[5,")
CLOSE = "--atol 1e-2 --rtol 1e-2"
INT8 = "--int8 --calibration-cache c.cache --data-loader-script calibration.py --calib-base-cls"
TENSORRT: dict[str, tuple[str, int]] = {
    "an engine": (f"--trt --onnxrt {CLOSE}", 0),
    "profiles": (f"--trt --onnxrt {PROFILE} --input-shapes image:[3,3,8,8] {CLOSE}", 0),
    "one of two profiles": (f"--trt {PROFILE} {LARGER} --optimization-profile 1 --input-shapes image:[9,3,8,8]", 0),
    "precisions": (f"--trt {PROFILE} --fp16 --precision-constraints obey --layer-precisions relu:float32 "
                   f"neg:float16", 0),
    "INT8": (f"--trt {PROFILE} {INT8} IInt8MinMaxCalibrator", 0),
    "INT8 by the legacy calibrator": (f"--trt {PROFILE} {INT8} IInt8LegacyCalibrator --quantile 0.9 "
                                      f"--regression-cutoff 0.8", 0),
    "INT8 of random data": (f"--trt {PROFILE} --int8 --seed 3 --val-range [0,2]", 0),
    "a builder config": (f"--trt {PROFILE} --tf32 --sparse-weights --pool-limit workspace:64M --tactic-sources CUBLAS "
                         "--builder-optimization-level 2 --profiling-verbosity detailed --max-aux-streams 0", 0),
    "another builder config": (f"--trt {PROFILE} --refittable --direct-io --tactic-sources --preview-features "
                               "FASTER_DYNAMIC_SHAPES_0805 --quantization-flags", 0),
    "files": (f"--trt {PROFILE} --save-engine e.engine --save-timing-cache t.cache --save-tactics t.json", 0),
    "files that are read": (f"--trt {PROFILE} --load-timing-cache made.cache --load-tactics made.json --load-inputs "
                            f"ti.json --load-outputs to.json {CLOSE}", 0),
    "a saved engine": ("made.engine --trt", 0),
    "outputs of the network": (f"--trt {PROFILE} --trt-outputs mark all --trt-exclude-outputs scores", 0),
    "formats": (f"--trt {PROFILE} --trt-outputs-by-type UNARY --tensor-formats image:[linear] --tensor-dtypes "
                "scores:float32", 0),
    "formats of everything": (f"--trt {PROFILE} --fp16 --all-tensor-formats linear --all-tensor-dtypes float16", 0),
    "a network of a script": ("create_network.py --trt", 0),
    "a config of a script": (f"--trt --onnxrt --trt-config-script config.py {CLOSE}", 0),
    "functions that change": (f"--trt {PROFILE} --trt-network-postprocess-script add_constraints.py "
                              "--trt-config-postprocess-script postprocess_config.py", 0),
    "too strict": ("--trt --onnxrt --fp16 --val-range [0,2] --layer-precisions relu:float16 neg:float16 exp:float16 "
                   "--precision-constraints obey --atol 1e-12 --rtol 1e-12", 1),
}  # fmt: skip
"""The same for TensorRT, of a network that builds in no time; ``m.onnx`` goes before options that name no model."""

FILES = {
    "data.py": "import numpy as np\n\ndef load_data():\n    return [{'image': np.full((1, 3, 8, 8), i, np.float32)} "
    "for i in range(2)]\n\nfeeds = load_data\n",
    "compare.py": "def compare_outputs(a, b):\n    return {n: True for n in a}\n\ndef never(a, b):\n    "
    "return {n: False for n in a}\n",
    "postprocess.py": "def postprocess_outputs(iteration):\n    return iteration\n",
}
TENSORRT_FILES = {
    "calibration.py": """
import numpy as np
def load_data():
    return [{"image": np.full((2, 3, 8, 8), i + 1, np.float32)} for i in range(2)]
""",
    "config.py": """
from TOOL import func
from TOOL.backend.trt import CreateConfig, Profile

@func.extend(CreateConfig(profiles=[Profile().add("image", (1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8))]))
def load_config(builder, network, config):
    config.builder_optimization_level = 2
""",
    **{name: SCRIPTS[name] for name in ("create_network.py", "add_constraints.py", "postprocess_config.py")},
}
"""The scripts that those options name: ``TOOL`` is the tool that runs them."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the options name."""
    folder = tmp_path_factory.mktemp("scripts")
    models.conv_net().write(folder, "m")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    save_json([{"image": models.random(1, 3, 8, 8, seed=1)}], str(folder / "i.json"))
    save_json([{"image": np.full((1, 3, 8, 8), np.nan, np.float32)}], str(folder / "nan.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for path in ("o.json", "folder"):
            assert main(["run", "m.onnx", "--onnxrt", "--load-inputs", "i.json", "--save-outputs", path]) == 0
        assert main(["run", "m.onnx", "--onnxrt", "--seed", "7", "--save-outputs", "other.json"]) == 0
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    shutil.copytree(prepared, work)
    monkeypatch.chdir(work)
    return work


def generated(tool: str, options: str) -> str:
    """The script that a tool writes."""
    from polygraphy.tools import main as their_main

    words = shlex.split(options)
    model = ["m.onnx"] if words[0].startswith("--") and words[0] != "--load-outputs" else []
    assert not (main if tool == "trtops" else their_main)(["run", *model, *words, "--gen-script", f"by_{tool}.py"])
    return Path(f"by_{tool}.py").read_text()


def verdict(text: str, name: str, *, apart: bool = False) -> int | str:
    """The exit code of a script; where it ends in an error that is no verdict, the error."""
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
        is_reported = str(exc).startswith(SAID) or "NaN Detected" in str(exc)
        return 1 if is_reported else f"{type(exc).__name__}: {exc}"
    finally:
        for logger in (G_LOGGER, THEIRS):
            logger.timestamp = logger.line_info = False
            logger.log_file = None
        G_LOGGER.module_severity = severity
        THEIRS.module_severity = THEIRS.CRITICAL
    return 0


def check(options: str, expected: int, *, apart: bool = False) -> None:
    """Both tools' scripts, run by both."""
    verdicts = {}
    for writer in ("polygraphy", "trtops"):
        text = generated(writer, options)
        for runner in ("polygraphy", "trtops"):
            _write_scripts_for(runner)
            name = f"{writer}_run_by_{runner}.py"
            verdicts[name] = verdict(text.replace(writer, runner), name, apart=apart)
    assert verdicts == dict.fromkeys(verdicts, expected)


def _write_scripts_for(tool: str) -> None:
    """Write what options for TensorRT name, importing the tool, where such files are; no module of theirs is kept."""
    for name, text in TENSORRT_FILES.items():
        if Path(name).exists():
            Path(name).write_text(text.replace("TOOL", tool))
            sys.modules.pop(Path(name).stem, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETS)
def test_scripts_run_with_either_tool(folder, name):
    check(*SETS[name])


def test_scripts_with_processes_run_too(folder):
    check("--onnxrt --use-subprocess --sequential-runners --load-inputs i.json", 0, apart=True)


@pytest.fixture(scope="module")
def with_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the options for TensorRT name."""
    folder = tmp_path_factory.mktemp("tensorrt_scripts")
    text = (
        "(float[batch,3,8,8] image) => (float[batch,3,8,8] scores) { [relu] a = Relu(image)\n [neg] b = "
        "Neg(a)\n [exp] scores = Exp(b) }"
    )
    onnx.save(models.model(text), folder / "m.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in TENSORRT_FILES:
            Path(name).touch()
        _write_scripts_for("trtops")
        save_json([{"image": models.random(1, 3, 8, 8, seed=1)}], "ti.json")
        assert main(["run", "m.onnx", "--onnxrt", "--load-inputs", "ti.json", "--save-outputs", "to.json"]) == 0
        saved = "--save-engine made.engine --save-timing-cache made.cache --save-tactics made.json"
        assert main(["run", "m.onnx", "--trt", *shlex.split(PROFILE), *shlex.split(saved)]) == 0
    return folder


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TENSORRT)
def test_tensorrt_scripts_run_too(with_engines, tmp_path, monkeypatch, name):
    work = tmp_path / "work"
    shutil.copytree(with_engines, work)
    monkeypatch.chdir(work)
    check(*TENSORRT[name])
