"""Loaders of ONNX models: lazy, composable, and careful with the caller's models; and inferred shapes."""

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from tests import models
from tests.models import run
from trtops import errors
from trtops.backend import onnx as loaders
from trtops.backend.common import BytesFromPath
from trtops.backend.onnx import Model, shapes
from trtops.backend.onnx.hostile import can_propagate_values
from trtops.backend.onnx.model import model_digest
from trtops.metadata import TensorMetadata

BOUNDED = models.model("(float[n] x, int64[1] reps) => (float[m] y) { r = Abs(reps) t = Tile(x, r) y = Relu(t) }")


def names(values: object) -> list[str]:
    return [value.name for value in values]  # type: ignore[attr-defined]


def test_loaders_are_lazy_and_compose(tmp_path: Path) -> None:
    load = loaders.OnnxFromBytes(BytesFromPath(tmp_path / "identity.onnx"))
    out = tmp_path / "deep" / "er" / "out.onnx"
    save = loaders.SaveOnnx(loaders.ModifyOutputs(load, outputs=["y"]), out, size_threshold=7)
    copy = pickle.loads(pickle.dumps(save))
    assert copy == save and "size_threshold=7" in repr(copy)

    models.identity().write(tmp_path)
    save()

    models.identity().check(lambda feed: run(onnx.load(out), feed))


def test_values_are_copied_and_results_of_callables_changed(tmp_path: Path) -> None:
    case = models.conv_net()
    before = model_digest(case.proto)

    assert loaders.modify_outputs(case.proto, ["c0"]) is not case.proto
    loaders.fold_constants(case.proto)
    loaders.infer_shapes(case.proto)
    loaders.convert_to_fp16(case.proto)
    loaders.extract_subgraph(case.proto, None, TensorMetadata().add("r0"))
    assert model_digest(case.proto) == before

    assert loaders.modify_outputs(lambda: case.proto, ["n0"], copy=True) is not case.proto
    assert loaders.modify_outputs(lambda: case.proto, ["n0"]) is case.proto
    assert loaders.modify_outputs(case.proto, ["c0"], copy=False) is case.proto
    assert names(case.proto.graph.output) == ["c0"]
    model = Model.load(models.conv_net().write(tmp_path))
    assert names(loaders.modify_outputs(model, ["c0"]).graph.output) == ["c0"]
    assert isinstance(loaders.bytes_from_onnx(model), bytes)


def test_external_data_is_loaded_from_the_given_folder(tmp_path: Path) -> None:
    case = models.conv_net()
    path = models.write_external(case, tmp_path / "model")

    case.check(lambda feed: run(loaders.onnx_from_path(path), feed))

    (tmp_path / "data").mkdir()
    (tmp_path / "model" / "weights.bin").rename(tmp_path / "data" / "weights.bin")
    case.check(lambda feed: run(loaders.onnx_from_path(path, external_data_dir=tmp_path / "data"), feed))
    with pytest.raises(errors.InvalidModelError, match="does not exist"):
        loaders.onnx_from_path(path)
    assert loaders.onnx_from_path(path, ignore_external_data=True).graph.initializer[0].external_data


def test_bytes_and_graphs_are_converted() -> None:
    data = loaders.bytes_from_onnx(models.identity().proto)
    models.identity().check(lambda feed: run(loaders.onnx_from_bytes(data), feed))
    with pytest.raises(errors.InvalidModelError):
        loaders.onnx_from_bytes(data[:-3])

    graph = loaders.gs_from_onnx(models.conv_net().proto)
    part = loaders.extract_subgraph(graph, None, TensorMetadata().add("r0", np.float32))
    assert isinstance(graph, gs.Graph) and len(graph.nodes) == 9
    assert isinstance(part, gs.Graph) and [node.op for node in part.nodes] == ["Conv", "BatchNormalization", "Relu"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"outputs": ["r*", "scores", "r0"]}, ["r0", "r1", "scores"]),
        ({"outputs": ["image", "c[01]"]}, ["image", "c0", "c1"]),
        ({"mark_types": ["relu", "Conv"]}, ["r0", "r1", "c0", "c1"]),
        ({"outputs": "mark-all", "exclude_outputs": ["c*", "f"]}, ["n0", "r0", "r1", "p", "logits", "scores"]),
        ({"outputs": ["score"]}, "no tensor 'score'. Did you mean 'scores'"),
        ({"outputs": ["z*"]}, r"no tensor 'z\*'"),
        ({"outputs": []}, "No outputs were selected"),
        ({"mark_types": ["Cnv"]}, "no 'Cnv' nodes. Did you mean 'Conv'"),
        ({"exclude_outputs": ["scores"]}, "leave at least one"),
        ({"exclude_outputs": ["ghost"]}, "no tensor 'ghost'"),
    ],
)
def test_outputs_are_chosen_by_name_pattern_or_type(options: dict[str, Any], expected: list[str] | str) -> None:
    refused = pytest.raises(errors.ConfigError, match=expected) if isinstance(expected, str) else nullcontext()
    with refused:
        assert names(loaders.modify_outputs(models.conv_net().proto, **options).graph.output) == expected


def test_extracted_parts_compute_the_same() -> None:
    case = models.transformer()
    whole = run(loaders.modify_outputs(case.proto, "mark-all"), case.feed)
    start, end = TensorMetadata().add("s0").add("v2"), TensorMetadata().add("a1", np.float32)
    part = loaders.extract_subgraph(case.proto, start, end)
    assert names(part.graph.node) == ["", "softmax", "", ""] and names(part.graph.initializer) == ["depth"]
    np.testing.assert_array_equal(run(part, {"s0": whole["s0"], "v2": whole["v2"]})["a1"], whole["a1"])

    branch = models.branch()
    part = loaders.extract_subgraph(branch.proto, TensorMetadata().add("t").add("flag"), TensorMetadata().add("y"))
    assert names(part.graph.initializer) == ["w"]
    t = branch.feed["x"] * numpy_helper.to_array(branch.proto.graph.initializer[0])
    output = run(part, {"t": t, "flag": np.array(True)})["y"]
    np.testing.assert_allclose(output, branch.expected["y"], rtol=1e-6)

    split = "(float[4] x) => (float[2] y) { a, b = Split<axis = 0>(x)\n c = Add(a, b)\n y = Relu(c) }"
    proto, start = models.model(split, opset=13), TensorMetadata().add("x").add("a")
    part = loaders.extract_subgraph(proto, start, TensorMetadata().add("c", np.float32))
    feed = {"x": np.arange(4, dtype=np.float32), "a": np.full(2, 10, np.float32)}
    assert run(part, feed)["c"].tolist() == [12, 13]


def test_extracted_parts_have_given_or_inferred_types() -> None:
    start, end = TensorMetadata().add("n0", None, (2, 8, "height", None)), TensorMetadata().add("c1", np.float32, None)
    info = Model.from_proto(loaders.extract_subgraph(models.conv_net().proto, start, end)).info
    assert info.inputs[0].shape == (2, 8, "height", None)
    assert info.outputs[0].shape[:2] == (2, 16)  # the batch was dynamic
    assert not any(isinstance(size, int) for size in info.outputs[0].shape[2:])

    listed = models.conv_net()
    for tensor in listed.proto.graph.initializer:
        listed.proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims)))
    part = loaders.extract_subgraph(listed.proto, None, TensorMetadata().add("r0"))
    assert [spec.name for spec in Model.from_proto(part).info.inputs] == ["image"]
    assert run(part, listed.feed)["r0"].shape == (2, 8, 8, 8)


def test_extract_lists_missing_inputs() -> None:
    proto = models.transformer().proto
    with pytest.raises(errors.ConfigError, match=r"also needs 'x' \(for LayerNormalization 'norm0'\)"):
        loaders.extract_subgraph(proto, TensorMetadata().add("s2"), TensorMetadata().add("a0"))
    with pytest.raises(errors.ConfigError, match=r"no tensor 's22'\. Did you mean 's2'"):
        loaders.extract_subgraph(proto, TensorMetadata().add("s22"))


def test_shapes_are_inferred_from_models_and_files(tmp_path: Path) -> None:
    inferred = loaders.infer_shapes(models.transformer().proto)
    assert len(inferred.graph.value_info) == len(inferred.graph.node) - 1

    case = models.conv_net()
    inferred = loaders.infer_shapes(str(models.write_external(case, tmp_path)))
    case.check(lambda feed: run(inferred, feed))
    assert inferred.graph.value_info

    proto = models.model("(float[2,3] x) => (float[2,5] y) { y = Reshape(x, s) }", {"s": np.array([2, 4])})
    assert loaders.infer_shapes(proto).graph.node[0].op_type == "Reshape"
    with pytest.raises(errors.InvalidModelError, match="Shape inference failed"):
        loaders.infer_shapes(proto, error_ok=False)


def test_symbolic_inference_finds_ranks_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = models.model("(float[batch,4] x) => (float[n,m] y) { g = com.microsoft.Gelu(x) y = Relu(g) }")
    monkeypatch.chdir(tmp_path)

    assert "g" not in names(loaders.infer_shapes(proto, allow_onnxruntime=False).graph.value_info)
    assert "g" in names(loaders.infer_shapes(proto).graph.value_info)
    loaders.infer_shapes(models.no_kernel().proto)
    assert list(tmp_path.iterdir()) == []


def test_upper_bounds_insert_min() -> None:
    inferred = loaders.infer_shapes(BOUNDED)
    feed = {"x": np.ones(2, np.float32), "reps": np.array([9])}
    bounded = loaders.set_upper_bound(inferred, 3)
    assert [node.op_type for node in bounded.graph.node] == ["Abs", "Min", "Tile", "Relu"]
    assert run(bounded, feed)["y"].shape == (6,) and run(BOUNDED, feed)["y"].shape == (18,)
    assert len(loaders.set_upper_bound(loaders.infer_shapes(bounded), 2).graph.node) == 4

    assert [len(loaders.set_upper_bound(inferred, b).graph.node) for b in ({"r": 5}, {"": 5}, {})] == [4, 4, 3]
    with pytest.raises(errors.ConfigError, match="No node produces a tensor 'reps'"):
        loaders.set_upper_bound(inferred, {"reps": 5})
    twice = loaders.set_upper_bound(loaders.infer_shapes(loaders.set_upper_bound(inferred, {"r": 5})), {"r": 2})
    onnx.checker.check_model(twice)
    assert run(twice, feed)["y"].shape == (4,)


@pytest.mark.parametrize("one_file", [True, False])
def test_external_weights_are_saved_and_loaded(tmp_path: Path, one_file: bool) -> None:
    case = models.transformer()
    path = tmp_path / "m.onnx"
    for proto in (models.conv_net().proto, case.proto):
        returned = loaders.save_onnx(
            proto, path, external_data_path="", size_threshold=0, all_tensors_to_one_file=one_file
        )

    assert returned is case.proto and not case.proto.graph.initializer[0].external_data
    assert Model.load(path).info.sha256 == model_digest(case.proto)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, dict(case.feed))[0], run(case.proto, case.feed)["y"])
    outside = [t for t in case.proto.graph.initializer if t.name not in ("split", "join")]  # which are shapes
    assert len(Model.load(path).files()) == (2 if one_file else 1 + len(outside))


def test_small_tensors_stay_inside(tmp_path: Path) -> None:
    loaders.save_onnx(models.transformer().proto, tmp_path / "m.onnx", external_data_path="w/eights.bin")

    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    outside = {t.name for t in stored.graph.initializer if t.external_data}
    assert outside == {"w_q", "w_k", "w_v", "w_o", "w_in", "w_out"}
    assert (tmp_path / "w" / "eights.bin").stat().st_size % 64 == 0
    for location in ("../w.bin", str(tmp_path.parent / "w.bin")):
        with pytest.raises(errors.InvalidModelError, match="leads out"):
            loaders.save_onnx(models.conv_net().proto, tmp_path / "m.onnx", external_data_path=location)


def test_failed_saves_keep_the_old_file(tmp_path: Path) -> None:
    path = models.identity().write(tmp_path)
    before = path.read_bytes()
    broken = models.conv_net().proto
    broken.graph.initializer[0].raw_data = b"short"
    with pytest.raises(errors.InvalidModelError):
        loaders.save_onnx(broken, path, external_data_path="", size_threshold=0)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parity
def test_results_equal_polygraphys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polygraphy.backend import onnx as theirs
    from polygraphy.common import TensorMetadata as TheirMetadata
    from polygraphy.constants import MARK_ALL

    monkeypatch.chdir(tmp_path)  # its shape inference may write a file to the working folder
    for make in models.ALL:
        for outputs in (MARK_ALL, [make().proto.graph.output[0].name]):
            marked = loaders.modify_outputs(make().proto, outputs)
            assert names(marked.graph.output) == names(theirs.modify_outputs(make().proto, outputs).graph.output)

    proto = models.transformer().proto
    start, end = (TensorMetadata().add("h", np.float32, (2, 5, 16)), TensorMetadata().add("s2", np.float32))
    ours = loaders.extract_subgraph(proto, start, end)
    start, end = (TheirMetadata().add("h", np.float32, (2, 5, 16)), TheirMetadata().add("s2", np.float32, None))
    its = theirs.extract_subgraph(proto, start, end)
    assert sorted(n.output[0] for n in ours.graph.node) == sorted(n.output[0] for n in its.graph.node)
    assert sorted(names(ours.graph.initializer)) == sorted(names(its.graph.initializer))

    ours = loaders.set_upper_bound(loaders.infer_shapes(BOUNDED), 3)
    its = theirs.set_upper_bound(theirs.infer_shapes(BOUNDED), 3)
    assert sorted(n.op_type for n in ours.graph.node) == sorted(n.op_type for n in its.graph.node)


def test_computed_shapes_of_deep_models_are_known() -> None:
    """Sizes must not add up from block to block: a Gather has the length of its indices, a Shape the rank."""
    # As exporters write it: a Reshape, whose target is computed from its input's shape.
    lines = " ".join(
        f"s{i} = Shape(x{i}) "
        f"g{i} = Gather<axis=0>(s{i}, first) u{i} = Unsqueeze(g{i}, zero) "
        f"h{i} = Gather<axis=0>(s{i}, second) v{i} = Unsqueeze(h{i}, zero) "
        f"t{i} = Concat<axis=0>(u{i}, v{i}, width) x{i + 1} = Reshape(x{i}, t{i})"
        for i in range(40)
    )
    constants = "zero = Constant<value_ints=[0]>() width = Constant<value_ints=[32]>()"
    numbers = {"first": np.array(0), "second": np.array(1)}
    proto = models.model(f"(float[1,16,32] x0) => (float[1,16,32] x40) {{ {constants} {lines} }}", numbers)

    shapes.infer_shapes(proto)

    inferred_shapes = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.value_info}
    assert [dim.dim_value for dim in inferred_shapes["x39"]] == [1, 16, 32]


@pytest.mark.parametrize(
    "first", ["t0 = Shape(x)", "t0 = Abs(x)", "t0 = Gather(x, x)", "t0 = Constant<value_ints=[1]>()"]
)
def test_repeatedly_joined_vectors_are_not_propagated(first: str) -> None:
    joined = " ".join(f"t{i + 1} = Concat<axis=0>(t{i}, t{i})" for i in range(20))
    proto = models.model(f"(int64[4] x) => (int64[n] y) {{ {first} {joined} y = Identity(t20) }}")

    assert not can_propagate_values(proto)


def test_joined_feature_maps_are_propagated() -> None:
    joined = " ".join(f"r{i} = Relu(t{i}) t{i + 1} = Concat<axis=1>(r{i}, r{i})" for i in range(20))

    assert can_propagate_values(models.model(f"(float[4,1] t0) => (float[4,n] y) {{ {joined} y = Relu(t20) }}"))


def test_nodes_without_inputs_are_accepted() -> None:
    for op in ("Unsqueeze", "Gather", "Reshape", "Expand", "Shape", "Concat", "Constant", "ConstantOfShape"):
        nodes, outputs = [helper.make_node(op, [], ["y"])], [helper.make_empty_tensor_value_info("y")]
        assert can_propagate_values(helper.make_model(helper.make_graph(nodes, "g", [], outputs))), op


def test_vectors_of_bodies_have_their_own_lengths() -> None:
    # The second branch reads the long vector of the graph around it, whose name the first branch uses again.
    text = """(int64[70000] t, bool c) => (int64[n] y) {
        y = If(c) <
            then_branch = yes () => (int64[1] u) { t = Constant<value_ints = [1]>() u = Identity(t) },
            else_branch = no () => (int64[n] v) { v = Concat<axis = 0>(t, t) }
        >
    }"""

    assert not can_propagate_values(models.model(text))
    assert can_propagate_values(models.model(text.replace("70000", "7")))


def test_long_vectors_of_functions_are_not_propagated() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[9223372036854775807] x) => (float[n] y) { y = own.twice(x) }
    <domain: "own", opset_import: ["" : 17]> twice (v) => (r) { r = Add(v, v) }"""

    assert not can_propagate_values(onnx.parser.parse_model(text))


def test_unused_recursive_functions_are_refused() -> None:
    proto = models.model("(float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.opset_import.add(domain="circle", version=1)
    for name, other in (("f", "g"), ("g", "f")):
        call = helper.make_node(other, ["a"], ["b"], domain="circle")
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("circle", 1)]
        proto.functions.append(helper.make_function("circle", name, ["a"], ["b"], [call], opsets))

    with pytest.raises(errors.InvalidModelError, match="Shape inference failed"):
        shapes.infer_shapes(proto)
