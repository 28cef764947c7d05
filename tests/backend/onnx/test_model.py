"""Models are identified by their content: what changes the digest, what does not, and which files are refused."""

import os
import pickle
import shutil
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import helper, numpy_helper

from tests import models
from trtops import errors
from trtops.backend.onnx import Model, copying, save
from trtops.backend.onnx.model import model_digest
from trtops.metadata import DataType

Change = Callable[[onnx.ModelProto], object]


def changed(proto: onnx.ModelProto, change: Change) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    change(copy)
    return copy


def test_info_describes_inputs_outputs_opset_and_nodes(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path)
    model = Model.load(path)
    assert model.path == path and model.info.name == "conv_net"
    assert [str(spec) for spec in model.info.inputs] == ["image [dtype=float32, shape=('batch', 3, 8, 8)]"]
    assert [str(spec) for spec in model.info.outputs] == ["scores [dtype=float32, shape=('batch', 10)]"]
    assert (model.info.opset, model.info.nodes) == (17, 9)
    assert Model.from_proto(models.dynamic_identity().proto).info.inputs[0].shape == (1, 2, None, None)
    listed = models.conv_net().proto
    listed.graph.input.append(helper.make_tensor_value_info("w0", onnx.TensorProto.FLOAT, [8, 3, 3, 3]))
    assert [spec.name for spec in Model.from_proto(listed).info.inputs] == ["image"]
    info = Model.from_proto(models.model("(seq(float[2]) s) => (int64 n) { n = SequenceLength(s) }")).info
    assert info.inputs[0].dtype is None and info.outputs[0].dtype is DataType.INT64


def test_digest_does_not_depend_on_storage(tmp_path: Path) -> None:
    case = models.transformer()
    inside = Model.load(case.write(tmp_path, "renamed"))
    (tmp_path / "other" / "data").mkdir(parents=True)
    outside = Model.load(models.write_external(case, tmp_path / "other", location="data/weights.bin"))

    assert inside.info.sha256 == outside.info.sha256 == Model.from_proto(case.proto, "third").info.sha256
    assert outside.files() == (outside.path, tmp_path / "other" / "data" / "weights.bin")
    assert inside.files() == (inside.path,)


@pytest.mark.parametrize(
    "element", ["INT4", "UINT4", "BFLOAT16", "FLOAT16", "FLOAT8E4M3FN", "BOOL", "DOUBLE", "UINT8", "FLOAT"]
)
def test_digest_is_equal_for_typed_and_raw_data(element: str) -> None:
    kind = onnx.TensorProto.DataType.Value(element)
    typed = helper.make_tensor("w", kind, [3], [1, 0, 1])
    raw = numpy_helper.from_array(numpy_helper.to_array(typed), "w")
    assert not typed.HasField("raw_data") and raw.HasField("raw_data")

    proto = models.model("(float[1] x) => (float[1] y) { y = Identity(x) }")
    typed_proto, raw_proto = (
        changed(proto, lambda p, t=tensor: p.graph.initializer.append(t)) for tensor in (typed, raw)
    )
    assert model_digest(typed_proto) == model_digest(raw_proto) != model_digest(proto)


def _document(proto: onnx.ModelProto) -> None:
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "text"
    proto.graph.node[0].attribute[0].doc_string = proto.graph.input[0].doc_string = "text"
    proto.graph.initializer[0].doc_string = "text"
    proto.producer_name, proto.producer_version, proto.model_version, proto.domain = "me", "2", 3, "here"
    proto.metadata_props.add(key="exported", value="at noon, from /home/me")
    proto.graph.node[0].metadata_props.add(key="stack", value="/home/me/train.py:7")


def test_digest_ignores_comments_and_attribute_order() -> None:
    proto, group_first, extra_first = (models.conv_net().proto for _ in range(3))
    assert model_digest(changed(proto, _document)) == model_digest(proto)
    for extended, names in ((group_first, ("group", "extra")), (extra_first, ("extra", "group"))):
        extended.graph.node[0].attribute.extend(helper.make_attribute(name, 1) for name in names)
    assert model_digest(group_first) == model_digest(extra_first)


def _weight(proto: onnx.ModelProto) -> None:
    array = numpy_helper.to_array(proto.graph.initializer[3]).copy()
    array[-1] = np.nextafter(array[-1], np.float32(9))
    proto.graph.initializer[3].CopyFrom(numpy_helper.from_array(array, proto.graph.initializer[3].name))


CHANGES: dict[str, Change] = {
    "weight": _weight,
    "attribute": lambda p: next(a for n in p.graph.node for a in n.attribute if a.name == "strides").ints.append(1),
    "node name": lambda p: setattr(p.graph.node[0], "name", "first"),
    "shape": lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1),
    "opset": lambda p: setattr(p.opset_import[0], "version", 18),
    "operator": lambda p: setattr(next(n for n in p.graph.node if n.op_type == "Relu"), "op_type", "Sigmoid"),
    "output name": lambda p: setattr(p.graph.output[0], "name", "probabilities"),
}


def test_digest_changes_with_content() -> None:
    proto = models.conv_net().proto
    same = [label for label, change in CHANGES.items() if model_digest(changed(proto, change)) == model_digest(proto)]
    assert not same


def test_digest_covers_function_attributes_and_weights() -> None:
    proto = models.model("(float[2] x) => (float[2] y) { y = Relu(x) }")
    value = numpy_helper.from_array(np.array([1, 2], np.float32), "v")
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Add", ["a", "c"], ["b"])]
    function = helper.make_function("own", "f", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)], ["alpha"])
    whole = changed(proto, lambda p: p.functions.append(function))
    other = changed(whole, lambda p: p.functions[0].attribute.__setitem__(0, "beta"))
    weight = changed(whole, lambda p: setattr(p.functions[0].node[0].attribute[0].t, "raw_data", bytes(8)))

    assert len({model_digest(variant) for variant in (proto, whole, other, weight)}) == 4


def test_protos_are_new_and_complete(tmp_path: Path) -> None:
    case = models.conv_net()
    for model in (Model.from_proto(case.proto), Model.load(models.write_external(case, tmp_path))):
        first = model.proto()
        del first.graph.node[:]

        assert model_digest(model.proto()) == model.info.sha256
        assert all(not t.external_data for t in model.proto().graph.initializer)
        copy = pickle.loads(pickle.dumps(model))
        assert copy == model and model_digest(copy.proto()) == model.info.sha256
        assert [node.op_type for node in model.structure().graph.node] == [n.op_type for n in case.proto.graph.node]
    in_memory = Model.from_proto(case.proto)
    case.proto.graph.node[0].op_type = "Neg"
    assert in_memory.proto().graph.node[0].op_type == "Conv"


@pytest.mark.parametrize("age", [0, 10], ids=["new files", "files older than the clock's steps"])
def test_changed_files_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: int) -> None:
    path, weights, now = models.write_external(models.conv_net(), tmp_path), tmp_path / "weights.bin", time.time
    monkeypatch.setattr(time, "time", lambda: now() + age)
    model = Model.load(path)
    assert model.is_unchanged() == (age > 0)
    digests = unittest.mock.Mock(side_effect=model_digest)
    monkeypatch.setattr("trtops.backend.onnx.model.model_digest", digests)
    model.proto()
    assert digests.called == (age == 0)

    time.sleep(0.05)  # the system's clock for files has steps of milliseconds
    shutil.copy(weights, tmp_path / "copy.bin")
    (tmp_path / "copy.bin").replace(weights)
    assert not model.is_unchanged() and model.proto() is not None

    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    with pytest.raises(errors.InvalidModelError, match="changed since it was loaded"):
        model.proto()


def test_files_that_are_not_models_are_refused(tmp_path: Path) -> None:
    good = models.conv_net().write(tmp_path).read_bytes()
    for name, content in {
        "empty.onnx": b"",
        "text.onnx": b"This is a README, long enough to be something.",
        "zeros.onnx": bytes(64),
        "plan.engine": b"ptrt\0\0\0\0" + bytes(100),
        "ort.onnx": b"\x18\0\0\0ORTM" + bytes(100),
        **{f"cut{length}.onnx": good[:length] for length in (*range(0, len(good), 61), len(good) - 1)},
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(errors.InvalidModelError, match=name):
            Model.load(path)
    with pytest.raises(errors.InvalidModelError, match="does not exist"):
        Model.load(tmp_path / "none.onnx")
    with pytest.raises(errors.InvalidModelError, match="is a folder"):
        Model.load(tmp_path)


CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "no outputs": (lambda p: p.graph.ClearField("output"), "no outputs"),
    "dangling input": (lambda p: p.graph.node[2].input.__setitem__(0, "ghost"), "Relu 'relu0' reads 'ghost'"),
    "two makers": (lambda p: p.graph.node[1].output.__setitem__(0, "c0"), "'c0', which is defined twice"),
    "output from nowhere": (lambda p: setattr(p.graph.output[0], "name", "nothing"), "output 'nothing'"),
    "short weight": (lambda p: setattr(p.graph.initializer[0], "raw_data", b"1234"), "'w0'.*expected 864"),
    "two inputs": (lambda p: p.graph.input.append(p.graph.input[0]), "two inputs named 'image'"),
    "no operator": (lambda p: p.graph.node[0].ClearField("op_type"), "without an operator type"),
    "cycle": (lambda p: p.graph.node[1].input.__setitem__(0, "r1"), "cycle: .*Relu 'relu1'"),
}


@pytest.mark.parametrize(("change", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_inconsistent_models_are_refused(change: Change, message: str) -> None:
    with pytest.raises(errors.InvalidModelError, match=message):
        Model.from_proto(changed(models.conv_net().proto, change))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "gone.bin"}, "does not exist"),
        ({"location": "."}, "not a file"),
        ({"offset": "99999999"}, "truncated"),
        ({"offset": "-4"}, "offset '-4'"),
        ({"offset": "1e3"}, "offset '1e3'"),
        ({"length": "3"}, "expected 864"),
        ({"length": "9" * 30}, "length"),
        *[({"location": name}, "'w0'") for name in ("../weights.bin", "sub/../../weights.bin", "/etc/hostname", "")],
        *[({"location": name}, "'w0'") for name in ("C:\\weights.bin", "*/_ORT_MEM_ADDR_/*")],
    ],
)
def test_impossible_external_data_is_refused(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    path = models.write_external(models.conv_net(), tmp_path / "model")
    (tmp_path / "weights.bin").write_bytes((tmp_path / "model" / "weights.bin").read_bytes())
    proto = onnx.load(path, load_external_data=False)
    tensor = next(t for t in proto.graph.initializer if t.external_data)
    for key, value in entries.items():
        matching = [e for e in tensor.external_data if e.key == key]
        (matching[0] if matching else tensor.external_data.add(key=key)).value = value
    path.write_bytes(proto.SerializeToString())

    with pytest.raises(errors.InvalidModelError, match=message):
        Model.load(path)


def test_endless_external_data_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.write_external(models.conv_net(), tmp_path)
    proto = onnx.load(path, load_external_data=False)
    tensor = next(t for t in proto.graph.initializer if t.external_data)
    tensor.dims[:] = [1 << 38]
    del tensor.external_data[1:]
    path.write_bytes(proto.SerializeToString())
    os.truncate(tmp_path / tensor.external_data[0].value, 1 << 40)  # sparse: it takes no room
    monkeypatch.setenv("TRTOPS_TIME_LIMIT", "0.2")

    with pytest.raises(errors.InvalidModelError, match=r"external data of tensor 'w0' did not finish within 0\.2 s"):
        Model.load(path)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    path = models.write_external(models.conv_net(), tmp_path / "model")
    data = tmp_path / "model" / "weights.bin"
    with pytest.raises(errors.InvalidModelError, match="Load the model by its path"):
        Model.from_proto(onnx.load(path, load_external_data=False))

    data.rename(tmp_path / "model" / "real.bin")
    os.symlink("real.bin", data)
    assert Model.load(path).files()[1].name == "real.bin"

    data.unlink()
    (tmp_path / "model" / "real.bin").rename(tmp_path / "real.bin")
    os.symlink("../real.bin", data)
    with pytest.raises(errors.InvalidModelError, match="link to outside"):
        Model.load(path)


def test_models_of_many_bytes_are_measured_and_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "_MANY_BYTES", 0)

    class TooLarge:  # as messages of protobuf 6 are above 2 GiB
        def ByteSize(self) -> int:
            raise EncodeError("too large")

    assert copying.message_bytes(TooLarge()) == 1 << 31
    proto = models.conv_net().proto
    assert abs(save.model_bytes(proto) - proto.ByteSize()) < 1000
    proto.graph.initializer.append(onnx.helper.make_tensor("v", onnx.TensorProto.INT64, [5000], [-1] * 5000))
    assert 5000 * 8 < proto.ByteSize() < save.model_bytes(proto) + 1000
    weight = numpy_helper.from_array(np.arange(1000.0), "w")
    weight.doc_string = "from 0"
    proto.graph.initializer.append(weight)
    save.save_model(proto, tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx") == proto
