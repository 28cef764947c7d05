"""The calibrate and sensitivity flows, on a real Prefect server, a real MLflow store and real ONNX Runtime."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from flows.calibrate import calibrate
from flows.command import run
from flows.sensitivity import sensitivity
from tests import models
from trtops import errors
from trtops.calibration import CalibrationCache
from trtops.ops.engines.calibrate import CalibrateConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.terminal import progress
from trtops.tracking import schema
from trtops.tracking.store import default_tracker

CONFIG = CalibrateConfig(
    build=BuildConfig(precision="int8", options=OnnxRuntimeOptions(tactics=(), timing_iterations=1)),
    check=CheckConfig(latency_runs=0, plots="never"),
    compare_with=(),
    pictures=4,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.conv_net().write(tmp_path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images.npz"
    np.savez(path, image=np.concatenate([models.random(4, 3, 8, 8, seed=seed) for seed in range(4)]))
    return path


def test_a_calibration_leaves_a_whole_run_whose_cache_the_sensitivity_flow_reads(
    store: Path, model: Path, images: Path, tmp_path: Path
) -> None:
    output = tmp_path / "conv_net.cache"
    result = calibrate(model, str(images), CONFIG, algorithm="minmax", batch=8, keep=("fc",), output=str(output))
    measured = sensitivity(model, f"run:{result.run_id}", str(images), budget=0.5)

    tracker = default_tracker()
    stored = tracker.load(result.run_id)
    assert result.feeds == 2 and result.algorithm == "minmax" and result.verdict == "good"
    assert stored.info.tags[schema.Tag.KIND] == "calibrate" and stored.info.tags[schema.Tag.PREFECT_FLOW_RUN]
    assert CalibrationCache.from_bytes(output.read_bytes()).samples == 0  # TensorRT's text has no place for it
    assert {"caches/calibration.cache", "caches/calibration.json", "calibration/histograms_00.png"} <= {
        entry.path for entry in stored.manifest.artifacts
    }
    assert "1 kept in FP32: fc" in tracker.load(result.engine("int8").run_id).read_bytes("build.log").decode()
    assert measured.keep == () and len(measured.layers) == 3
    table = json.loads(tracker.load(measured.run_id).read_bytes("sensitivity/layers.json"))
    assert [row[0] for row in table["data"]] == [layer.layer for layer in measured.layers]


def test_bad_data_fails_the_flow_once_and_names_the_run_that_has_what_was_collected(
    store: Path, model: Path, tmp_path: Path
) -> None:
    script = tmp_path / "loader.py"
    script.write_text(
        "import numpy as np\n"
        "def load_data():\n"
        "    yield {'image': np.ones((4, 3, 8, 8), np.float32)}\n"
        "    raise RuntimeError('the archive ends here')\n"
    )

    with pytest.raises(errors.CalibrationError, match="the archive ends here"):
        calibrate(model, str(script), CONFIG)

    [failed] = default_tracker().find()
    assert failed.status == "failed" and failed.id in failed.tags[schema.Tag.ERROR]


def test_the_shell_calibrates_and_exits_by_the_verdict(
    store: Path,
    model: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "config.json"
    config.write_text(CONFIG.to_json())
    arguments = [str(model), str(images), "--config", str(config), "--algorithm", "percentile", "--keep", "fc"]
    monkeypatch.setattr(sys, "argv", ["calibrate", *arguments])

    assert run(calibrate, "calibrate") == 0

    shown = capsys.readouterr().out
    assert (
        f"# calibrate {model.name}: good" in shown
        and re.search(r"\| INT8 +\| 67% +\| good +\|", shown)
        and "by percentile" in shown
    )


def test_progress_is_shown_on_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for target in (terminal, file):
        with progress("Measuring", "layers", file=target) as bar:
            bar.update(2, 4)
            bar.update(4, 4)

    last = re.sub(r"\x1b\[[0-9;?]*[a-z]", "", terminal.getvalue(), flags=re.IGNORECASE).rstrip().splitlines()[-1]
    assert re.search(r"Measuring ━+ 4/4 0:00:00 layers", last)
    assert file.getvalue() == ""


def test_log_lines_appear_above_the_bar_and_the_handler_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    logging.getLogger("trtops.test").addHandler(handler)
    try:
        with progress("Measuring", "layers") as bar:
            bar.update(2, 4)
            logging.getLogger("trtops.test").warning("a line of the log")
    finally:
        logging.getLogger("trtops.test").removeHandler(handler)

    assert handler.stream is terminal
    assert re.search(r"(^|\n|\x1b\[2K)a line of the log\n", terminal.getvalue())
