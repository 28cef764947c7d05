"""Linting model files, with a report in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests import models
from trtops import errors
from trtops.ops.lint import LintConfig, lint, text


def test_a_file_that_runs_has_no_errors(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path)
    report = lint(path)
    assert report.ok
    assert f"{len(report.passing)} nodes pass" in text(report)


def test_a_file_that_is_no_model_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    report = lint(tmp_path / "broken.onnx", LintConfig(output=str(tmp_path / "report.json")))
    assert not report.ok
    [entry] = json.loads((tmp_path / "report.json").read_text())["lint_entries"]
    assert entry["level"] == "exception"
    assert "not an ONNX model" in entry["message"]


def test_two_roots_are_found_in_one_go(tmp_path: Path) -> None:
    proto = models.model(
        "(float[2,3] x) => (float[2,4] y) { [a] a = MatMul(x, w) [b] b = Relu(x) [c] c = Frob(b) [d] y = Identity(a) }",
        {"w": np.ones((5, 4), np.float32)},
    )
    report = lint(proto)
    assert {"a", "c"} <= set(report.failing)
    assert "b" in report.passing


def test_given_data_and_shapes_are_used() -> None:
    proto = models.model("(float[n,4] x) => (float[2,2] y) { y = Reshape(x, s) }", {"s": np.array([2, 2])})
    assert lint(proto).ok
    assert not lint(proto, LintConfig(input_shapes={"x": (3, 4)})).ok
    assert not lint(proto, feed={"x": np.ones((5, 4), np.float32)}).ok
    with pytest.raises(errors.ConfigError, match="no input 'z'"):
        lint(proto, LintConfig(input_shapes={"z": (3, 4)}))
