"""Which nodes a back end supports, and the model in parts."""

from pathlib import Path

import numpy as np
import onnx

from tests import models
from trtops.ops.model.capability import CapabilityReport, capability


def test_unsupported_nodes_are_listed_and_separated() -> None:
    two_branches = models.model(
        """(float[4] x) => (float[4] y) {
            [a] a = Relu(x) [b] b = custom.Frobnicate(a) [c] c = Abs(b)
            [d] d = Neg(x) [e] e = custom.Frobnicate(d) [f] f = Exp(e)
            [g] y = Add(c, f)
        }"""
    )
    report = capability(two_branches, "onnxruntime")

    assert not report.supported
    [refusal] = report.refused
    assert (refusal.op, refusal.nodes) == ("custom.Frobnicate", ("b", "e"))
    assert [(part.supported, part.nodes) for part in report.parts] == [
        (True, ("a", "d")),
        (False, ("b", "e")),
        (True, ("c", "f", "g")),
    ]
    assert "refuses 2 of 7 nodes" in report.text()
    assert CapabilityReport.from_json(report.to_json()) == report


def test_parts_are_written_as_models(tmp_path: Path) -> None:
    case = models.conv_net()
    report = capability(case.proto, "onnxruntime", output_dir=tmp_path / "parts")
    [part] = report.parts
    assert report.supported and part.supported
    found, expected = (models.run(proto, case.feed) for proto in (onnx.load(part.path), case.proto))
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5)
    assert report.text().endswith("nodes.")


def test_onnx_runtime_supports_every_model_it_runs() -> None:
    assert all(capability(make().proto, "onnxruntime").supported for make in models.ALL)
