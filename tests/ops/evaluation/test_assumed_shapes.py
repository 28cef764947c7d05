"""A model that does not run on shapes that were assumed: every verb asks for shapes, and blames nothing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import gates, models
from trtops import ConvertConfig, OnnxRuntimeOptions, convert, errors
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import GateConfig
from trtops.ops.search.accuracy import accuracy
from trtops.ops.search.precision import PrecisionConfig, precision
from trtops.ops.search.reduce import engine_check, reduce
from trtops.ops.triaging.op import triage
from trtops.ops.triaging.result import TriageConfig
from trtops.spec import BuildConfig, Precision


def build(precision: Precision = "fp32") -> BuildConfig:
    return BuildConfig(precision=precision, options=OnnxRuntimeOptions(tactics=()))


VERBS: dict[str, Callable[[Path], object]] = {
    "convert": lambda path: convert(path, ConvertConfig(build=build())),
    "convert in FP16": lambda path: convert(path, ConvertConfig(build=build("fp16"))),
    "accuracy": lambda path: accuracy(path, build()),
    "reduce": lambda path: reduce(path, engine_check(build())),
    "precision": lambda path: precision(path, PrecisionConfig(to="fp16")),
    "triage": lambda path: triage(path, TriageConfig(build=build("fp16"))),
    "gate": lambda path: gate(path, GateConfig(build=build())),
}


@pytest.mark.parametrize("verb", VERBS)
def test_shapes_are_asked_for(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where runs are stored
    text = '(float[N] x) => (float[M] y) { p = Pad<mode = "reflect">(x, s) y = Relu(p) }'  # for more than 999 values
    path = gates.write(models.model(text, {"s": np.array([999, 0])}), tmp_path, "long")

    with pytest.raises(errors.InputError, match=r"long does not run on random data of the assumed shapes x:\[\d+\]"):
        VERBS[verb](path)
