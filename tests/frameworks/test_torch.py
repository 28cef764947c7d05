"""Torch tensors in and out; runs where torch is installed, as in ``tests/matrix.py``."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.comparator import Comparator, CompareFunc, DataLoader, RunResults

torch = pytest.importorskip("torch")


def runner(path: Path, name: str = "runner") -> OnnxrtRunner:
    return OnnxrtRunner(SessionFromOnnx(str(path)), name=name)


def identity_of(dtype: str, folder: Path) -> Path:
    text = f"({dtype}[2,3] x) => ({dtype}[2,3] y) {{ y = Identity(x) }}"
    onnx.save(models.model(text, opset=21), folder / "same.onnx")
    return folder / "same.onnx"


def test_tensors_in_give_tensors_out(tmp_path: Path) -> None:
    case = models.conv_net()
    with runner(case.write(tmp_path)) as active:
        expected = active.infer(case.feed)["scores"]
        image = torch.from_numpy(case.feed["image"])
        turned = image.transpose(2, 3).contiguous().transpose(2, 3).requires_grad_(True)

        for tensor in (image, turned):
            actual = active.infer({"image": tensor})["scores"]
            assert isinstance(actual, torch.Tensor) and not actual.requires_grad
            np.testing.assert_array_equal(actual.numpy(), expected)
        with pytest.raises(errors.InputError, match=r"unexpected dtype: torch.float64. Expected float32"):
            active.infer({"image": image.double()})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int8", "bool"])
def test_types_without_numpy_are_passed_bitwise(dtype: str, tmp_path: Path) -> None:
    tensor = (torch.arange(6).reshape(2, 3) % 2).to(getattr(torch, dtype))
    with runner(identity_of(dtype.replace("_", ""), tmp_path)) as active:
        output = active.infer({"x": tensor})["y"]
    assert output.dtype == tensor.dtype and torch.equal(output.view(torch.uint8), tensor.view(torch.uint8))


def test_strings_stay_arrays(tmp_path: Path) -> None:
    text = "(float[2] x, string[2] t) => (float[2] y, string[2] u) { y = Neg(x) u = Identity(t) }"
    onnx.save(models.model(text), tmp_path / "strings.onnx")

    with runner(tmp_path / "strings.onnx") as active:
        outputs = active.infer({"x": torch.ones(2), "t": np.array(["a", "b"], object)})

    assert isinstance(outputs["y"], torch.Tensor) and outputs["u"].tolist() == ["a", "b"]


def test_random_tensors_are_compared_and_saved(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path)
    loader = DataLoader(iterations=2, data_loader_backend_module="torch")

    results = Comparator.run([runner(path, "one"), runner(path, "two")], data_loader=loader)
    results.save(str(tmp_path / "results.json"))
    back = RunResults.load(str(tmp_path / "results.json"))

    for held in (results, back):
        assert isinstance(held[0][1][0]["scores"], torch.Tensor)
        for check in (CompareFunc.simple(), CompareFunc.distance_metrics(), CompareFunc.quality_metrics()):
            assert bool(Comparator.compare_accuracy(held, compare_func=check))
    back[1][1][1]["scores"] = back[1][1][1]["scores"] + 1
    assert not bool(Comparator.compare_accuracy(back))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8e4m3fn", "float16", "int64", "bool"])
def test_random_tensors_have_the_input_type(dtype: str, tmp_path: Path) -> None:
    loader = DataLoader(iterations=1, data_loader_backend_module="torch", val_range=(0, 1))
    results = Comparator.run([runner(identity_of(dtype, tmp_path))], data_loader=loader)
    output = results[0][1][0]["y"]
    assert isinstance(output, torch.Tensor) and str(output.dtype).replace("_", "") == f"torch.{dtype}"
    assert 0 <= float(output.float().min()) <= float(output.float().max()) <= 1
