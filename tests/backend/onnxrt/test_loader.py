from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnxrt import SessionFromOnnx, session_from_onnx


def outputs_of(session: ort.InferenceSession) -> np.ndarray:
    return session.run(None, dict(models.identity().feed))[0]


@pytest.fixture(params=["bytes", "path text", "path", "message"])
def source(request, tmp_path):
    case = models.identity()
    path = case.write(tmp_path)
    return {
        "bytes": case.proto.SerializeToString(),
        "path text": str(path),
        "path": path,
        "message": case.proto,
    }[request.param]


def test_session_from_every_source(source):
    for session in (SessionFromOnnx(source)(), SessionFromOnnx(lambda: source)(), session_from_onnx(source)):
        np.testing.assert_array_equal(outputs_of(session), models.identity().feed["x"])


def test_external_data_is_found(tmp_path):
    case = models.conv_net()
    path = models.write_external(case, tmp_path)

    session = session_from_onnx(path)

    expected = session_from_onnx(case.proto).run(None, dict(case.feed))[0]
    np.testing.assert_array_equal(session.run(None, dict(case.feed))[0], expected)


def test_missing_providers_are_refused():
    with pytest.raises(errors.BackendUnavailableError, match=r"'gaudi'.*CPUExecutionProvider"):
        session_from_onnx(models.identity().proto, ["gaudi"])
    with pytest.raises(errors.ConfigError, match="at least one"):
        session_from_onnx(models.identity().proto, [])


def test_optimization_level_is_passed_on():
    case = models.transformer()
    kept = []
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, None):
        session = session_from_onnx(case.proto, graph_optimization_level=level)
        kept.append(session.get_session_options().graph_optimization_level)

    assert kept == [ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL]


def test_unusable_models_are_refused(tmp_path):
    with pytest.raises(errors.InvalidModelError, match=r"none\.onnx is not a file"):
        session_from_onnx(tmp_path / "none.onnx")
    for content in (b"", b"hello", models.conv_net().proto.SerializeToString()[:500]):
        with pytest.raises(errors.InvalidModelError):
            session_from_onnx(content)
    with pytest.raises(errors.UnsupportedFeatureError, match="Frobnicate"):
        session_from_onnx(models.no_kernel().proto)
