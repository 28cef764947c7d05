"""Scripts to start from: each runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.metadata import TensorMetadata, check_feed
from trtops.ops.evaluation.feeds import open_feeds
from trtops.ops.model.template import KINDS, template


@pytest.mark.parametrize("make", [models.conv_net, models.multi_output, models.branch])
def test_data_loader_template_fits_the_model(tmp_path: Path, make: models.Callable[[], models.Case]) -> None:
    path = make().write(tmp_path)
    template("data-loader", tmp_path / "loader.py", model=path)
    inputs = TensorMetadata.of(Model.load(path).info.inputs)
    feeds = list(open_feeds(str(tmp_path / "loader.py"), inputs))
    assert len(feeds) == 8
    for feed in feeds:
        check_feed(inputs, feed)


def test_a_graph_surgeon_script_writes_the_model_again(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path)
    template("onnx-gs", tmp_path / "change.py", model=path)
    done = subprocess.run([sys.executable, "change.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(onnx.load(tmp_path / f"{path.stem}_updated.onnx").graph.node) == len(onnx.load(path).graph.node)


@pytest.mark.parametrize("kind", KINDS)
def test_every_template_is_python(tmp_path: Path, kind: str) -> None:
    text = template(kind, model=models.conv_net().write(tmp_path))  # type: ignore[arg-type]
    compile(text, kind, "exec")


def test_profiles_are_made_of_the_models_dynamic_inputs(tmp_path: Path) -> None:
    text = template("trt-config", model=models.conv_net().write(tmp_path))
    assert ".add('image', min=(1, 3, 8, 8), opt=(1, 3, 8, 8), max=(8, 3, 8, 8))" in text


def test_changed_scripts_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "loader.py"
    template("data-loader", path)
    template("data-loader", path)  # the same again is fine
    path.write_text("# mine")
    with pytest.raises(errors.ConfigError, match="exists with other content"):
        template("data-loader", path)


def test_unknown_kinds_and_missing_models_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match="trt-network"):
        template("trt-networks")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="give one"):
        template("onnx-gs")


def test_config_template_without_a_model() -> None:
    assert "profiles = " not in template("trt-config") and "CreateConfig())" in template("trt-config")
