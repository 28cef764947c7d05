"""Models near 2 GiB keep their weights in files. The limit is lowered here, so that small models count as large."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx import copying, external
from trtops.backend.onnx.emulation import emulate_low_precision
from trtops.backend.onnx.model import Model, is_lean, model_digest, raw_bytes
from trtops.backend.onnx.precision import lower_precision
from trtops.backend.onnx.save import save_model, serialize
from trtops.backend.onnxrt.calibration import fold
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.cli.main import main
from trtops.ops.model import surgeon


def written(case: models.Case, folder: Path) -> Path:
    return models.write_external(case, folder, threshold=1)


def assert_same_outputs(actual: onnx.ModelProto, expected: onnx.ModelProto, feed: models.Arrays) -> None:
    np.testing.assert_equal(reference_outputs(actual, [feed])[0], reference_outputs(expected, [feed])[0])


def test_lean_model_equals_its_source(large_models: None, tmp_path: Path) -> None:
    case = models.transformer()
    model = Model.load(written(case, tmp_path / "model"))
    lean = model.proto(lean=True)

    assert is_lean(lean) and not is_lean(model.proto())
    assert model_digest(lean) == model.info.sha256
    assert serialize(lean) == serialize(lean) and len(serialize(lean)) > len(lean.SerializeToString())
    for name, folder in (("inside.onnx", None), ("next_to.onnx", "")):
        save_model(lean, tmp_path / name, external_data_path=folder)
        assert Model.load(tmp_path / name).info.sha256 == model.info.sha256
    inside = {tensor.name: tensor for tensor in case.proto.graph.initializer}
    for tensor in lean.graph.initializer:
        assert raw_bytes(tensor) == raw_bytes(inside[tensor.name])
    assert_same_outputs(lean, case.proto, case.feed)


def test_missing_weight_file_is_reported(large_models: None, tmp_path: Path) -> None:
    path = written(models.transformer(), tmp_path / "model")
    lean = Model.load(path).proto(lean=True)
    (path.parent / "weights.bin").unlink()

    for use in (lambda: model_digest(lean), lambda: reference_outputs(lean, [])):
        with pytest.raises(errors.InvalidModelError, match="is gone"):
            use()


def test_anchor_in_a_file_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    path = written(models.transformer(), tmp_path / "model")
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        if external.is_external(tensor):
            external.put_place(tensor, f"anchor-{'0' * 32}:{secret}", 0, copying.expected_bytes(tensor) or 0)
    path.write_bytes(proto.SerializeToString())

    with pytest.raises(errors.InvalidModelError, match=r"Refused|does not exist"):
        Model.load(path)


@pytest.mark.parametrize("large_weight", [0, 1 << 40])
def test_lean_16_bit_weights_are_rounded_alike(
    large_weight: int, large_models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtops.backend.onnx.emulation._LARGE_WEIGHT", large_weight)
    case = models.transformer()
    expected = lower_precision(case.proto, "fp16").model
    with tempfile.TemporaryDirectory() as folder:
        lean = Model.load(written(case, tmp_path / "model")).proto(lean=True)
        lowered = lower_precision(lean, "fp16", weights=Path(folder)).model
        assert is_lean(lowered) and model_digest(lowered) == model_digest(expected)
        for model in (lowered, expected):
            emulate_low_precision(model)
        assert_same_outputs(lowered, expected, case.feed)


@pytest.mark.parametrize(
    "change",
    [
        lambda path, output: surgeon.extract(path, output),
        lambda path, output: surgeon.sanitize(path, output, fold_constants=True, cleanup=True),
        lambda path, output: surgeon.prune(path, output),
        lambda path, output: surgeon.strip_weights(path, output),
    ],
)
def test_surgeon_writes_the_same_with_weights_in_files(
    change: Callable[[Path, Path], object], large_models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(models.transformer(), tmp_path / "model")
    change(path, tmp_path / "lean.onnx")
    monkeypatch.undo()  # the model is small again
    change(path, tmp_path / "plain.onnx")
    lean, plain = (onnx.load(tmp_path / name) for name in ("lean.onnx", "plain.onnx"))
    for model in (lean, plain):
        for tensor in model.graph.initializer:  # how values are stored does not matter
            array = onnx.numpy_helper.to_array(tensor) if not external.is_stripped(tensor) else None
            if array is not None:
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    assert lean == plain


def test_conversion_to_fp16_reads_one_weight_at_a_time(
    large_models: None, temporary_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = models.transformer()
    path, converted = written(case, tmp_path / "model"), tmp_path / "fp16.onnx"
    load = external.load

    def load_small(tensor: onnx.TensorProto, folder: Path | None = None) -> None:
        assert (copying.expected_bytes(tensor) or 0) <= 64
        load(tensor, folder)

    monkeypatch.setattr(external, "load_external_data", None)
    monkeypatch.setattr(external, "load", load_small)

    assert main(["convert", str(path), "--fp-to-fp16", "-o", str(converted)]) == 0

    assert model_digest(onnx.load(converted)) == model_digest(lower_precision(case.proto, "fp16").model)


def test_large_model_is_quantized_without_folding(large_models: None, tmp_path: Path) -> None:
    model = Model.load(written(models.transformer(), tmp_path / "model"))

    assert model_digest(fold(model.proto(lean=True), SessionLog())) == model.info.sha256
