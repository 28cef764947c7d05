"""A model is known by its content: what changes the digest, what does not, and which files are refused."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests import models
from trtops import errors
from trtops.backend.onnx import Model
from trtops.backend.onnx.model import model_digest
from trtops.metadata import DataType

Change = Callable[[onnx.ModelProto], object]


def changed(proto: onnx.ModelProto, change: Change) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    change(copy)
    return copy


def test_a_loaded_model_knows_its_inputs_outputs_opset_and_nodes(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path)

    model = Model.load(path)

    assert model.path == path
    assert model.info.name == "conv_net"
    assert [str(spec) for spec in model.info.inputs] == ["image [dtype=float32, shape=('batch', 3, 8, 8)]"]
    assert [str(spec) for spec in model.info.outputs] == ["scores [dtype=float32, shape=('batch', 10)]"]
    assert (model.info.opset, model.info.nodes) == (17, 9)


def test_dimensions_of_minus_one_are_dynamic_without_a_name() -> None:
    info = Model.from_proto(models.dynamic_identity().proto).info

    assert info.inputs[0].shape == (1, 2, None, None)


def test_initializers_listed_as_inputs_are_no_inputs() -> None:
    proto = models.conv_net().proto
    proto.graph.input.append(helper.make_tensor_value_info("w0", onnx.TensorProto.FLOAT, [8, 3, 3, 3]))

    assert [spec.name for spec in Model.from_proto(proto).info.inputs] == ["image"]


def test_sequences_and_unknown_types_have_no_dtype() -> None:
    proto = models.model("(seq(float[2]) s) => (int64 n) { n = SequenceLength(s) }")

    info = Model.from_proto(proto).info

    assert info.inputs[0].dtype is None
    assert info.outputs[0].dtype is DataType.INT64


def test_the_digest_is_the_same_inside_and_outside_the_file_and_wherever_the_file_lies(tmp_path: Path) -> None:
    case = models.transformer()
    inside = Model.load(case.write(tmp_path, "renamed"))
    outside = Model.load(models.write_external(case, tmp_path / "other" / "place"))
    in_memory = Model.from_proto(case.proto, "third")

    assert inside.info.sha256 == outside.info.sha256 == in_memory.info.sha256
    assert outside.files() == (outside.path, tmp_path / "other" / "place" / "weights.bin")
    assert inside.files() == (inside.path,)


def test_the_digest_counts_values_not_the_field_they_are_stored_in() -> None:
    typed, raw = models.conv_net().proto, models.conv_net().proto
    for tensor in typed.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, array.flatten().tolist()))
    assert typed.graph.initializer[0].float_data

    assert model_digest(typed) == model_digest(raw)


@pytest.mark.parametrize("element", ["INT4", "UINT4", "BFLOAT16", "FLOAT16", "FLOAT8E4M3FN", "BOOL", "DOUBLE", "UINT8"])
def test_the_digest_is_the_same_for_typed_and_raw_storage_of_every_kind(element: str) -> None:
    kind = onnx.TensorProto.DataType.Value(element)
    typed = helper.make_tensor("w", kind, [3], [1, 0, 1])
    raw = numpy_helper.from_array(numpy_helper.to_array(typed), "w")
    assert not typed.HasField("raw_data") and raw.HasField("raw_data")

    digests = set()
    for tensor in (typed, raw):
        proto = models.model("(float[1] x) => (float[1] y) { y = Identity(x) }")
        proto.graph.initializer.append(tensor)
        digests.add(model_digest(proto))

    assert len(digests) == 1


def test_string_tensors_count_element_by_element() -> None:
    def digest(*texts: str) -> str:
        proto = models.model("(float[1] x) => (float[1] y) { y = Identity(x) }")
        proto.graph.initializer.append(numpy_helper.from_array(np.array(texts, object), "s"))
        return model_digest(proto)

    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab", "c") == digest("ab", "c")


def _document(proto: onnx.ModelProto) -> None:
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "text"
    proto.graph.node[0].attribute[0].doc_string = proto.graph.input[0].doc_string = "text"
    proto.graph.initializer[0].doc_string = "text"


def _produce(proto: onnx.ModelProto) -> None:
    proto.producer_name, proto.producer_version, proto.model_version, proto.domain = "me", "2", 3, "here"


def _annotate(proto: onnx.ModelProto) -> None:
    proto.metadata_props.add(key="exported", value="at noon, from /home/me")
    proto.graph.node[0].metadata_props.add(key="stack", value="/home/me/train.py:7")


@pytest.mark.parametrize("change", [_document, _produce, _annotate], ids=lambda f: f.__name__)
def test_the_digest_does_not_depend_on(change: Change) -> None:
    proto = models.conv_net().proto

    assert model_digest(changed(proto, change)) == model_digest(proto)


def test_the_digest_does_not_depend_on_the_order_of_attributes() -> None:
    def add(proto: onnx.ModelProto, names: list[str]) -> None:
        proto.graph.node[0].attribute.extend(helper.make_attribute(name, 1) for name in names)

    one = changed(models.conv_net().proto, lambda p: add(p, ["group", "extra"]))
    other = changed(models.conv_net().proto, lambda p: add(p, ["extra", "group"]))

    assert model_digest(one) == model_digest(other)


def _weight(proto: onnx.ModelProto) -> None:
    array = numpy_helper.to_array(proto.graph.initializer[3]).copy()
    array[-1] = np.nextafter(array[-1], np.float32(9))
    proto.graph.initializer[3].CopyFrom(numpy_helper.from_array(array, proto.graph.initializer[3].name))


def _attribute(proto: onnx.ModelProto) -> None:
    next(a for n in proto.graph.node for a in n.attribute if a.name == "strides").ints[0] = 1


def _rename_node(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].name = "first"


def _shape(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def _opset(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 18


def _operator(proto: onnx.ModelProto) -> None:
    next(n for n in proto.graph.node if n.op_type == "Relu").op_type = "Sigmoid"


def _rename_output(proto: onnx.ModelProto) -> None:
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "probabilities"


@pytest.mark.parametrize(
    "change",
    [_weight, _attribute, _rename_node, _shape, _opset, _operator, _rename_output],
    ids=lambda f: f.__name__,
)
def test_the_digest_changes_with(change: Change) -> None:
    proto = models.conv_net().proto

    assert model_digest(changed(proto, change)) != model_digest(proto)


def test_the_digest_covers_weights_in_attributes_and_bodies() -> None:
    def bump(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            for attribute in node.attribute:
                if attribute.name == "then_branch":
                    attribute.g.initializer.append(numpy_helper.from_array(np.float32(1), "inner"))

    proto = models.branch().proto
    with_weight = changed(proto, bump)
    assert model_digest(with_weight) != model_digest(proto)

    def other_value(proto: onnx.ModelProto) -> None:
        for attribute in proto.graph.node[1].attribute:
            for tensor in attribute.g.initializer:
                tensor.raw_data = np.float32(2).tobytes()

    assert model_digest(changed(with_weight, other_value)) != model_digest(with_weight)


def test_a_proto_is_new_at_every_call_and_whole(tmp_path: Path) -> None:
    case = models.conv_net()
    for model in (Model.from_proto(case.proto), Model.load(models.write_external(case, tmp_path))):
        first = model.proto()
        del first.graph.node[:]

        assert model_digest(model.proto()) == model.info.sha256
        assert all(not t.external_data for t in model.proto().graph.initializer)


def test_a_model_in_memory_does_not_follow_changes_of_the_message_it_was_made_from() -> None:
    proto = models.identity().proto
    model = Model.from_proto(proto)
    proto.graph.node[0].op_type = "Neg"

    assert model.proto().graph.node[0].op_type == "Identity"


def test_a_file_that_changed_since_it_was_loaded_is_noticed(tmp_path: Path) -> None:
    case = models.conv_net()
    path = models.write_external(case, tmp_path)
    model = Model.load(path)
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[100] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)

    with pytest.raises(errors.InvalidModelError, match="changed since it was loaded"):
        model.proto()


def test_models_can_be_pickled(tmp_path: Path) -> None:
    for model in (Model.from_proto(models.conv_net().proto), Model.load(models.conv_net().write(tmp_path))):
        copy = pickle.loads(pickle.dumps(model))

        assert copy == model
        assert model_digest(copy.proto()) == model.info.sha256


def test_what_is_no_model_file_is_refused_by_name(tmp_path: Path) -> None:
    good = models.conv_net().write(tmp_path).read_bytes()
    for name, content in {
        "empty.onnx": b"",
        "text.onnx": b"This is a README, long enough to be something.",
        "zeros.onnx": bytes(64),
        "plan.engine": b"ptrt\0\0\0\0" + bytes(100),
        "ort.onnx": b"\x18\0\0\0ORTM" + bytes(100),
        "half.onnx": good[: len(good) // 2],
        "nearly.onnx": good[:-1],
    }.items():
        path = tmp_path / name
        path.write_bytes(content)

        with pytest.raises(errors.InvalidModelError, match=name):
            Model.load(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidModelError, match="does not exist"):
        Model.load(tmp_path / "none.onnx")
    with pytest.raises(errors.InvalidModelError, match="is a folder"):
        Model.load(tmp_path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    good = models.conv_net().write(tmp_path).read_bytes()
    path = tmp_path / "cut.onnx"

    for length in range(0, len(good), 61):
        path.write_bytes(good[:length])
        with pytest.raises(errors.ModelError):
            Model.load(path)


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


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_model_that_contradicts_itself_is_refused(what: str) -> None:
    change, message = CONTRADICTIONS[what]

    with pytest.raises(errors.InvalidModelError, match=message):
        Model.from_proto(changed(models.conv_net().proto, change))


def test_nodes_in_any_order_that_can_be_sorted_are_fine() -> None:
    def reverse(proto: onnx.ModelProto) -> None:
        nodes = list(proto.graph.node)[::-1]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)

    assert Model.from_proto(changed(models.conv_net().proto, reverse)).info.nodes == 9


def _relocate(path: Path, **entries: str) -> None:
    """Rewrite where a model's first external tensor says its data lies."""
    proto = onnx.load(path, load_external_data=False)
    tensor = next(t for t in proto.graph.initializer if t.external_data)
    for key, value in entries.items():
        found = [e for e in tensor.external_data if e.key == key]
        (found[0] if found else tensor.external_data.add(key=key)).value = value
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    "location",
    ["../weights.bin", "sub/../../weights.bin", "/etc/hostname", "", "C:\\weights.bin", "*/_ORT_MEM_ADDR_/*"],
)
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    path = models.write_external(models.conv_net(), tmp_path / "model")
    (tmp_path / "weights.bin").write_bytes((tmp_path / "model" / "weights.bin").read_bytes())
    _relocate(path, location=location)

    with pytest.raises(errors.ExternalDataError, match="'w0'"):
        Model.load(path)


def test_a_link_to_outside_the_folder_is_refused_and_one_inside_is_not(tmp_path: Path) -> None:
    path = models.write_external(models.conv_net(), tmp_path / "model")
    data = tmp_path / "model" / "weights.bin"

    data.rename(tmp_path / "model" / "real.bin")
    os.symlink("real.bin", data)
    assert Model.load(path).files()[1].name == "real.bin"

    data.unlink()
    (tmp_path / "model" / "real.bin").rename(tmp_path / "real.bin")
    os.symlink("../real.bin", data)
    with pytest.raises(errors.ExternalDataError, match="link to outside"):
        Model.load(path)


def test_external_data_in_a_sub_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = models.write_external(models.conv_net(), tmp_path, location="data/weights.bin")

    assert Model.load(path).info.sha256 == model_digest(models.conv_net().proto)


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
    ],
)
def test_external_data_that_cannot_be_there_is_refused(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    path = models.write_external(models.conv_net(), tmp_path)
    _relocate(path, **entries)

    with pytest.raises(errors.ExternalDataError, match=message):
        Model.load(path)


def test_a_data_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = models.write_external(models.conv_net(), tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-1])

    with pytest.raises(errors.ExternalDataError, match="truncated"):
        Model.load(path)


def test_a_model_in_memory_with_external_data_says_how_to_load_it(tmp_path: Path) -> None:
    path = models.write_external(models.conv_net(), tmp_path)

    with pytest.raises(errors.ExternalDataError, match="Load the model by its path"):
        Model.from_proto(onnx.load(path, load_external_data=False))
