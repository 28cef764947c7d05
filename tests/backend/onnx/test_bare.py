"""Reading model files without their large weights: the same model but for what was left out, and never a worse verdict."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx import bare, copying, wire
from trtops.backend.onnx.bare import Bare, load_external_data, read_bare
from trtops.backend.onnx.save import model_bytes


@pytest.fixture(autouse=True)
def every_size_counts_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare, "SMALL_FILE", 0)
    monkeypatch.setattr(bare, "LARGE", 0)


def filled(found: Bare, original: onnx.ModelProto) -> onnx.ModelProto:
    """What was read, with the values that were left out put back."""
    whole = onnx.ModelProto()
    whole.CopyFrom(found.model)
    values = {tensor.name: tensor for tensor in original.graph.initializer}
    for tensor in whole.graph.initializer:
        if tensor.name in found.left_out:
            tensor.CopyFrom(values[tensor.name])
    return whole


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_what_is_read_is_the_model_but_for_its_weights(make: Callable[[], models.Case], tmp_path: Path) -> None:
    case = make()

    found = read_bare(case.write(tmp_path))

    assert filled(found, case.proto) == case.proto
    weights = [t for t in case.proto.graph.initializer if t.data_type in bare.WEIGHT_TYPES and t.dims]
    assert found.left_out == {tensor.name for tensor in weights}
    left = [tensor for tensor in found.model.graph.initializer if tensor.name in found.left_out]
    assert all(not tensor.raw_data and tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in left)
    assert found.left_out.isdisjoint(tensor.name for tensor in found.tensors())


def test_files_and_weights_that_are_small_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.conv_net().write(tmp_path)

    monkeypatch.setattr(bare, "LARGE", 100)
    assert read_bare(path).left_out == {"w0", "w1", "w2"}
    monkeypatch.setattr(bare, "SMALL_FILE", 1 << 20)
    assert read_bare(path) == Bare(models.conv_net().proto)


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
def test_a_weight_that_is_not_plainly_one_keeps_its_values(
    damage: Callable[[onnx.TensorProto], None], tmp_path: Path
) -> None:
    proto = models.conv_net().proto
    assert proto.graph.initializer[0].name == "w0"
    damage(proto.graph.initializer[0])
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())

    found = read_bare(tmp_path / "model.onnx")

    assert found.model.graph.initializer[0] == proto.graph.initializer[0]
    assert "w0" not in found.left_out


def test_a_message_that_comes_in_parts_is_put_together_as_protobuf_does(tmp_path: Path) -> None:
    first, second = models.conv_net().proto, onnx.ModelProto()
    second.graph.initializer.extend(first.graph.initializer[1:])
    del first.graph.initializer[1:]
    data = first.SerializeToString() + second.SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)

    found = read_bare(tmp_path / "model.onnx")

    assert {"w0", "w1", "w2"} <= found.left_out
    assert filled(found, models.conv_net().proto) == onnx.ModelProto.FromString(data)


def test_a_damaged_file_is_told_as_any_reader_tells_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = models.conv_net().proto.SerializeToString()
    for seed in range(400):
        random = Random(seed)
        broken = bytearray(data)
        for _ in range(random.randrange(1, 4)):
            broken[random.randrange(len(broken))] = random.randrange(256)
        path.write_bytes(broken[: random.choice((len(broken), random.randrange(len(broken))))])
        try:
            whole = bare.read_proto(path)
        except errors.InvalidModelError as exc:
            with pytest.raises(errors.InvalidModelError) as told:
                read_bare(path)
            assert str(told.value) == str(exc)
        else:
            found = read_bare(path)
            assert filled(found, whole).SerializeToString(deterministic=True) == whole.SerializeToString(
                deterministic=True
            )


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x3a\x05ab", b"\xff" * 12, b"\x0b\x00", b"\x39abc", b"\x3d", b"\x3a\xff\xff\xff\xff\x0f"]
)
def test_fields_that_do_not_end_within_their_message_are_refused(data: bytes) -> None:
    with pytest.raises(errors.FormatError):
        list(wire.fields(io.BytesIO(data), 0, len(data)))


def test_fields_are_found_where_protobuf_wrote_them() -> None:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[2**40], double_data=[1.5], raw_data=b"x" * 300)
    data = tensor.SerializeToString()

    found = {f.number: data[f.content : f.stop] for f in wire.fields(io.BytesIO(data), 0, len(data))}

    assert found[wire.number(onnx.TensorProto, "raw_data")] == b"x" * 300
    assert found[wire.number(onnx.TensorProto, "name")] == b"w"
    assert found[wire.number(onnx.TensorProto, "dims")] == wire.varint(2**40)
    assert wire.sized(8, 1) + b"w" in data


def test_large_external_data_is_left_where_it_is_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare, "LARGE", 1000)
    path = models.write_external(models.conv_net(), tmp_path, threshold=0)
    proto = onnx.load(path)

    found = load_external_data(read_bare(path), tmp_path)

    assert found.left_out == {t.name for t in proto.graph.initializer if len(t.raw_data) > 1000} != set()
    kept = {t.name: t.raw_data for t in found.tensors()}
    assert kept == {t.name: t.raw_data for t in proto.graph.initializer if t.name not in found.left_out}


def test_external_data_that_is_missing_short_or_outside_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = models.write_external(models.conv_net(), tmp_path)
    data = tmp_path / "weights.bin"
    whole = data.read_bytes()

    data.write_bytes(whole[:-1])
    with pytest.raises(errors.ExternalDataError, match="cut short"):
        load_external_data(read_bare(path), tmp_path)
    data.unlink()
    with pytest.raises(errors.ExternalDataError, match="does not exist"):
        load_external_data(read_bare(path), tmp_path)
    (tmp_path.parent / "outside.bin").write_bytes(whole)
    data.symlink_to(tmp_path.parent / "outside.bin")
    with pytest.raises(errors.ExternalDataError, match="outside"):
        load_external_data(read_bare(path), tmp_path)


class Unmeasurable:
    """A message as protobuf 6 has them beyond 2 GiB."""

    def ByteSize(self) -> int:
        raise copying.EncodeError("too large")


def test_a_message_that_protobuf_cannot_measure_counts_as_too_large() -> None:
    assert copying.message_bytes(Unmeasurable()) == 1 << 31
    proto = models.conv_net().proto
    assert abs(model_bytes(proto) - proto.ByteSize()) < 1000
    values = [-1] * 5000
    proto.graph.initializer.append(onnx.helper.make_tensor("v", onnx.TensorProto.INT64, [5000], values))
    assert abs(model_bytes(proto) - proto.ByteSize()) < 1000
    assert np.prod([5000]) * 8 < proto.ByteSize() < model_bytes(proto) + 1000
