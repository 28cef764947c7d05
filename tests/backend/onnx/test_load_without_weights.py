"""Models without large weights, and zeros instead of them where no value can affect what fails."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx import load_without_weights, walk, zero_weights
from trtops.backend.onnx.save import model_bytes

load = load_without_weights.load_without_weights
W = {"w": np.ones((4, 4), np.float32)}


@pytest.fixture(autouse=True)
def every_size_counts_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_without_weights, "LARGE", 0)


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_only_weights_are_left_out(make: Callable[[], models.Case], tmp_path: Path) -> None:
    case = make()

    found = load(case.write(tmp_path))

    left = [tensor for tensor in found.model.graph.initializer if tensor.name in found.left_out]
    assert all(not tensor.raw_data and tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in left)
    assert found.left_out.isdisjoint(tensor.name for tensor in found.tensors())
    assert all(t.data_type != onnx.TensorProto.INT64 for t in left)
    values = {tensor.name: tensor for tensor in case.proto.graph.initializer}
    for tensor in left:
        tensor.CopyFrom(values[tensor.name])
    assert found.model == case.proto


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.__setattr__("raw_data", t.raw_data[:-1]),
        lambda t: t.dims.append(2),
        lambda t: t.dims.extend((-1, -1)),
        lambda t: t.float_data.append(1),
        lambda t: t.__setattr__("name", "w1"),
        lambda t: t.__setattr__("data_type", onnx.TensorProto.INT32),
        lambda t: t.__setattr__("data_type", 99),
    ],
    ids=["short", "shape", "negative", "values twice", "name twice", "integers", "unknown type"],
)
def test_damaged_weights_keep_their_values(damage: Callable[[onnx.TensorProto], None], tmp_path: Path) -> None:
    proto = models.conv_net().proto
    damage(proto.graph.initializer[0])
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())

    found = load(tmp_path / "model.onnx")

    assert found.model.graph.initializer[0] == proto.graph.initializer[0]
    assert "w0" not in found.left_out and "w2" in found.left_out


def test_large_external_data_is_checked_but_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_without_weights, "LARGE", 1000)
    path = models.write_external(models.conv_net(), tmp_path, threshold=0)
    proto, data = onnx.load(path), tmp_path / "weights.bin"
    found = load(path)
    assert found.left_out == {t.name for t in proto.graph.initializer if len(t.raw_data) > 1000} != set()
    kept = {t.name: t.raw_data for t in found.tensors()}
    assert kept == {t.name: t.raw_data for t in proto.graph.initializer if t.name not in found.left_out}

    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    with pytest.raises(errors.InvalidModelError, match="truncated"):
        load(path)
    data.unlink()
    with pytest.raises(errors.InvalidModelError, match="does not exist"):
        load(path)
    (tmp_path.parent / "outside.bin").write_bytes(whole)
    data.symlink_to(tmp_path.parent / "outside.bin")
    with pytest.raises(errors.InvalidModelError, match="outside"):
        load(path)


def test_model_bytes_estimate_the_serialized_size() -> None:
    class TooLarge:  # as messages of protobuf 6 are above 2 GiB
        def ByteSize(self) -> int:
            raise walk.EncodeError("too large")

    assert walk.message_bytes(TooLarge()) == 1 << 31
    proto = models.conv_net().proto
    assert abs(model_bytes(proto) - proto.ByteSize()) < 1000
    proto.graph.initializer.append(onnx.helper.make_tensor("v", onnx.TensorProto.INT64, [5000], [-1] * 5000))
    assert 5000 * 8 < proto.ByteSize() < model_bytes(proto) + 1000


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w)",
        "m = MatMul(x, w) s = Shape(m) t = Cast<to = 1>(s) n = Div(t, t) k = Cast<to = 7>(n) y = Reshape(x, k)",
        "g = Gather(w, i) y = Relu(g)",
        "y = Where(b, w, x)",
        "m = Greater(x, x) n = NonZero(m) y = Mul(x, w)",
        "h = Cast<to = 10>(w) y = Cast<to = 1>(h)",
        "y = Reshape(w, i)",
        "y = Div(x, w)",
        "!n = NonZero(w) y = Cast<to = 1>(n)",
        "!m = MatMul(x, w) k = Cast<to = 7>(m) y = Reshape(x, k)",
        "!m = Relu(w) k = ArgMax(m) y = Gather(x, k)",
        "!y, j = TopK(w, i)",
        "!g = Greater(x, w) y = Compress(x, g)",
        "!y = custom.Frobnicate(x, w)",
        "!q = QuantizeLinear(w, x) y = Div(q, q)",
        "!y = Resize(x, e, w)",
        "!p, j = MaxPool<kernel_shape = [1]>(w) y = MaxUnpool(x, j)",
        "!a = Identity(w) c = ReduceMax<keepdims = 0>(x) f = Cast<to = 9>(c) "
        "y = If(f) <then_branch = t () => (z) { z = Relu(a) }, else_branch = e () => (z) { z = Relu(x) }>",
    ],
)
def test_indices_sizes_conditions_and_custom_operators_need_values(body: str) -> None:
    # An exclamation mark stands for the bodies that need values; the others only do arithmetic.
    text = f"(float[4,4] x, int64[2] i, bool[4,4] b) => (float[a,c] y) {{ {body.removeprefix('!')} }}"
    assert zero_weights.can_run_on_zero_weights(models.model(text, W), {"w"}) is not body.startswith("!")


def test_redefined_operators_and_weights_as_inputs_need_values() -> None:
    proto = models.model("(float[4,4] x) => (float[4,4] y) { y = MatMul(x, w) }", W)
    assert zero_weights.can_run_on_zero_weights(proto, {"w"})
    proto.functions.add(name="MatMul", domain="")
    assert not zero_weights.can_run_on_zero_weights(proto, {"w"})
    del proto.functions[:]
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [4, 5]))
    assert not zero_weights.can_run_on_zero_weights(proto, {"w"})
