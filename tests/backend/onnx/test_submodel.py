"""Cutting sub-models, and the values observed for them: every cut of every model must run and give what the whole gave."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import models
from trtops import errors
from trtops.backend.onnx.submodel import Cutter, SubModel
from trtops.backend.onnxrt.observe import Observed, RandomInputs, observe
from trtops.backend.onnxrt.reference import SessionFromMemory, reference_outputs


def take_apart(case: models.Case, **options: int) -> tuple[Cutter, Observed]:
    cutter = Cutter(case.proto)
    return cutter, observe(cutter, [dict(case.feed)], **options)


def assert_gives_what_the_whole_gave(part: SubModel) -> None:
    onnx.checker.check_model(part.proto)
    for outputs, golden in zip(reference_outputs(part.proto, part.feeds), part.golden):
        assert list(outputs) == list(golden) == list(part.outputs)
        for name, array in golden.items():
            np.testing.assert_array_equal(outputs[name], array)


def sets_to_try(cutter: Cutter) -> list[list[int]]:
    """Every single node, every beginning and end, and a few sets that hang together nowhere."""
    order = cutter.order
    sets = [[i] for i in order] + [order[:n] for n in range(1, len(order) + 1)] + [order[n:] for n in range(len(order))]
    return [*sets, order[::2], order[1::2] or order, order[::3]]


@pytest.mark.parametrize("make", models.ALL, ids=lambda make: make.__name__)
def test_every_cut_of_every_model_runs_on_its_own_and_gives_what_the_whole_gave(make: Callable[[], models.Case]):
    cutter, values = take_apart(make())

    for nodes in sets_to_try(cutter):
        assert_gives_what_the_whole_gave(cutter.cut(nodes, values))


def shape_chain() -> models.Case:
    proto = models.model(
        """(float[batch,3,4] x) => (float[batch,n] y) {
            r = Relu(x)
            s = Shape(r)
            first = Gather(s, zero)
            one = Unsqueeze(first, zero_axis)
            target = Concat<axis = 0>(one, rest)
            flat = Reshape(r, target)
            y = Sqrt(flat)
        }""",
        {"zero": np.array(0), "zero_axis": np.array([0]), "rest": np.array([-1])},
    )
    return models.Case(proto, {"x": np.abs(models.random(2, 3, 4))})


def test_a_cut_through_a_shape_chain_makes_the_shape_a_weight_with_its_observed_value():
    cutter, values = take_apart(shape_chain())

    part = cutter.cut([5], values)  # Reshape alone

    assert part.inputs == ("r",)
    [target] = [t for t in part.proto.graph.initializer if t.name == "target"]
    assert numpy_helper.to_array(target).tolist() == [2, -1]
    assert_gives_what_the_whole_gave(part)


def test_a_node_that_reads_shapes_only_gets_them_as_inputs_so_that_it_is_computed_at_run_time():
    cutter, values = take_apart(shape_chain())

    part = cutter.cut([2], values)  # Gather alone

    assert part.inputs == ("s",)


def test_shapes_that_differ_between_feeds_stay_inputs_and_their_dimensions_dynamic():
    case = shape_chain()
    cutter = Cutter(case.proto)
    values = observe(cutter, [{"x": np.ones((n, 3, 4), np.float32)} for n in (1, 5)])

    part = cutter.cut([5], values)

    assert part.inputs == ("r", "target")
    shape = part.proto.graph.input[0].type.tensor_type.shape
    assert not shape.dim[0].HasField("dim_value") and shape.dim[1].dim_value == 3
    assert [feed["r"].shape[0] for feed in part.feeds] == [1, 5]
    assert_gives_what_the_whole_gave(part)


def test_what_depends_on_weights_alone_becomes_a_weight():
    cutter, values = take_apart(models.qdq_net())
    matmul = next(i for i in cutter.order if cutter.model.graph.node[i].op_type == "MatMul")

    part = cutter.cut([matmul], values)

    assert part.inputs == ("x_d",)
    assert "w_d" in {t.name for t in part.proto.graph.initializer}


def test_tensors_read_inside_a_sub_model_are_no_outputs_of_it_so_that_fusions_stay_possible():
    proto = models.model(
        "(float[4] x) => (float[4] y) { a = Relu(x)\n b = Sigmoid(a)\n c = Add(a, b)\n y = Mul(a, c) }"
    )
    cutter, values = take_apart(models.Case(proto, {"x": models.random(4)}))

    assert cutter.cut([0, 1], values).outputs == ("b",)
    assert cutter.cut([0, 1, 2], values).outputs == ("c",)


def test_outputs_of_the_whole_model_stay_outputs_wherever_their_node_is_kept():
    proto = models.model("(float[4] x) => (float[4] a, float[4] y) { a = Relu(x)\n y = Sigmoid(a) }")
    cutter, values = take_apart(models.Case(proto, {"x": models.random(4)}))

    assert cutter.cut([0, 1], values).outputs == ("a", "y")


def test_only_the_outputs_that_something_reads_are_exposed_and_optional_inputs_may_be_left_out():
    proto = models.model(
        """(float[8] x, float upper) => (float[3] y) {
            t = Clip(x, , upper)
            top, index = TopK(t, k)
            y = Neg(top)
        }""",
        {"k": np.array([3])},
    )
    cutter, values = take_apart(models.Case(proto, {"x": models.random(8), "upper": np.float32(0.5)}))

    assert cutter.cut([1], values).outputs == ("top",)
    for nodes in ([0], [1], [0, 1], [2]):
        assert_gives_what_the_whole_gave(cutter.cut(nodes, values))


def test_nodes_that_lead_nowhere_are_there_but_not_shown_unless_alone():
    proto = models.model("(float[4] x) => (float[4] y) { y = Relu(x)\n dead = Sigmoid(x) }")
    cutter, values = take_apart(models.Case(proto, {"x": models.random(4)}))

    assert cutter.cut([0, 1], values).outputs == ("y",)
    assert cutter.cut([1], values).outputs == ("dead",)


def test_names_and_types_of_weights_do_not_matter_sparse_ones_and_every_kind_of_constant_are_carried_over():
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "sparse")
    indices = numpy_helper.from_array(np.array([0, 3]), "sparse_indices")
    sparse = helper.make_sparse_tensor(values, indices, [4])
    nodes = [
        helper.make_node("Constant", [], ["c_sparse"], sparse_value=sparse),
        helper.make_node("Constant", [], ["c_float"], value_float=2.0),
        helper.make_node("Constant", [], ["c_floats"], value_floats=[1.0, 2.0, 3.0, 4.0]),
        helper.make_node("Add", ["x", "c_sparse"], ["a"]),
        helper.make_node("Mul", ["a", "c_float"], ["b"]),
        helper.make_node("Sub", ["b", "c_floats"], ["c"]),
        helper.make_node("Add", ["c", "sparse"], ["y"]),
    ]
    spec = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [spec("x", TensorProto.FLOAT, [4])], [spec("y", TensorProto.FLOAT, [4])])
    graph.sparse_initializer.append(sparse)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    cutter, observed = take_apart(models.Case(proto, {"x": models.random(4)}))

    assert len(cutter.order) == 4
    for nodes_ in sets_to_try(cutter):
        part = cutter.cut(nodes_, observed)
        for outputs, golden in zip(reference_outputs(part.proto, part.feeds), part.golden):
            for name in golden:
                np.testing.assert_array_equal(outputs[name], golden[name])


def test_old_models_whose_weights_are_inputs_too_are_cut_with_the_weights_as_constants():
    proto = models.model(
        "(float[4] x, float[4] w) => (float[4] y) { a = Add(x, w)\n y = Relu(a) }", opset=7, ir_version=3
    )
    proto.graph.initializer.append(numpy_helper.from_array(models.random(4), "w"))
    cutter, values = take_apart(models.Case(proto, {"x": models.random(4, seed=1)}))

    part = cutter.cut([0], values)

    assert part.inputs == ("x",)
    assert_gives_what_the_whole_gave(part)


def test_functions_of_the_model_go_with_the_nodes_that_call_them():
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    function = helper.make_function(
        "local", "Twice", ["v"], ["r"], [helper.make_node("Add", ["v", "v"], ["r"])], opsets[:1]
    )
    spec = helper.make_tensor_value_info
    nodes = [helper.make_node("Twice", ["x"], ["t"], domain="local"), helper.make_node("Neg", ["t"], ["y"])]
    graph = helper.make_graph(nodes, "g", [spec("x", TensorProto.FLOAT, [4])], [spec("y", TensorProto.FLOAT, [4])])
    proto = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
    cutter, values = take_apart(models.Case(proto, {"x": models.random(4)}))

    for nodes_ in ([0], [1], [0, 1]):
        assert_gives_what_the_whole_gave(cutter.cut(nodes_, values))


def test_nodes_that_hand_each_other_sequences_are_never_parted():
    proto = models.model(
        """(float[6] x) => (float[6] y) {
            r = Relu(x)
            parts = SplitToSequence<axis = 0>(r, two)
            n = Neg(r)
            last = SequenceAt(parts, minus_one)
            joined = ConcatFromSequence<axis = 0>(parts)
            y = Add(joined, n)
        }""",
        {"two": np.array(2), "minus_one": np.array(-1)},
    )
    cutter, values = take_apart(models.Case(proto, {"x": models.random(6)}))

    assert frozenset({1, 3, 4}) in cutter.parts
    assert sorted(i for part in cutter.parts for i in part) == list(range(6))
    for count in range(1, 4):
        for chosen in itertools.combinations(cutter.parts, count):
            assert_gives_what_the_whole_gave(cutter.cut(frozenset().union(*chosen), values))


def test_values_beyond_the_memory_limit_wait_in_files_and_are_the_same_bfloat16_too():
    proto = models.model(
        """(float[64] x) => (float[64] y) {
            a = Relu(x)
            h = Cast<to = 16>(a)
            b = Cast<to = 1>(h)
            y = Add(b, x)
        }"""
    )
    case = models.Case(proto, {"x": models.random(64)})
    _, in_memory = take_apart(case)
    cutter, in_files = take_apart(case, limit_bytes=0)

    assert in_files._folder is not None and in_memory._folder is None
    for name in ("x", "a", "h", "b", "y"):
        [left], [right] = in_memory.arrays(name), in_files.arrays(name)
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
    assert_gives_what_the_whole_gave(cutter.cut([1, 2], in_files))
    in_files.close()


def test_observing_piece_by_piece_gives_what_one_run_of_the_whole_gives():
    proto = models.model(
        "(float[4] x) => (float[4] t200) { t0 = Relu(x)\n"
        + "\n".join(f"t{i} = {'Sigmoid' if i % 2 else 'Neg'}(t{i - 1})" for i in range(1, 201))
        + "}"
    )
    case = models.Case(proto, {"x": models.random(4)})
    _, values = take_apart(case)  # the first piece has 64 nodes

    [expected] = reference_outputs(proto, [case.feed])

    np.testing.assert_array_equal(values.arrays("t200")[0], expected["t200"])
    assert len(values.arrays("t100")) == 1


def test_random_inputs_replace_floats_keep_indices_and_come_with_golden_outputs_of_their_own():
    proto = models.model(
        "(float[8,2] x, int64[3] i) => (float[3,2] y) { a = Neg(x)\n j = Identity(i)\n g = Gather(a, j)\n y = Relu(g) }"
    )
    cutter, observed = take_apart(models.Case(proto, {"x": models.random(8, 2), "i": np.array([7, 0, 3])}))

    part = cutter.cut([2], RandomInputs(observed, seed=5))

    [feed] = part.feeds
    assert feed["j"].tolist() == [7, 0, 3]
    assert not np.array_equal(feed["a"], observed.arrays("a")[0]) and 0 <= feed["a"].min() <= feed["a"].max() <= 1
    np.testing.assert_array_equal(part.golden[0]["g"], feed["a"][[7, 0, 3]])


def test_large_models_pass_through_a_temporary_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    case = models.conv_net()
    monkeypatch.setattr("trtops.backend.onnxrt.reference.is_large", lambda model: True)

    session = SessionFromMemory(case.proto, optimized=False)()

    [expected] = reference_outputs(case.proto, [case.feed])
    np.testing.assert_array_equal(session.run(None, dict(case.feed))[0], expected["scores"])
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_onnxruntime_does_not_have_is_named():
    with pytest.raises(errors.BackendError, match="Frobnicate"):
        take_apart(models.no_kernel())


def test_an_empty_set_and_an_unknown_tensor_are_refused_by_name():
    case = models.identity()
    cutter = Cutter(case.proto)

    with pytest.raises(errors.InvalidModelError, match="at least one node"):
        cutter.cut([], Observed())
    with pytest.raises(errors.InvalidModelError, match="'x'"):
        cutter.cut([0], Observed())


def test_the_model_taken_apart_is_not_changed():
    case = models.transformer()
    before = case.proto.SerializeToString(deterministic=True)
    cutter, values = take_apart(case)

    for nodes in sets_to_try(cutter):
        cutter.cut(nodes, values)

    assert case.proto.SerializeToString(deterministic=True) == before
