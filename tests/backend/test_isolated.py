from __future__ import annotations

import itertools

from tests import models
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend
from trtops.spec import BuildConfig


def test_endless_calibration_data_is_cut() -> None:
    case = models.conv_net()
    backend = IsolatedBackend("onnxruntime", timeout=120)

    try:
        build = backend.build(
            Model.from_proto(case.proto),
            BuildConfig(precision="int8", calibration_samples=2),
            calibration_data=itertools.repeat(case.feed),
        )
    finally:
        backend.worker.close()

    assert build.calibration_cache is not None
