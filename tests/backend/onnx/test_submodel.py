"""Sub-models and the values observed for them: every cut must run and compute what the whole does."""

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import models
from trtops import errors
from trtops.backend.onnx.submodel import Cutter, SubModel
from trtops.backend.onnxrt.observe import Observed, observe
from trtops.backend.onnxrt.runner import reference_outputs


def analyze(case: models.Case, **options: int) -> tuple[Cutter, Observed]:
    cutter = Cutter(case.proto)
    return cutter, observe(cutter, [dict(case.feed)], **options)


def assert_equals_whole(part: SubModel) -> None:
    onnx.checker.check_model(part.proto)
    for outputs, golden in zip(reference_outputs(part.proto, part.feeds), part.golden):
        assert list(outputs) == list(golden) == list(part.outputs)
        for name, array in golden.items():
            np.testing.assert_array_equal(outputs[name], array)


def sets_to_try(cutter: Cutter) -> list[list[int]]:
    """Every single node, every beginning and end, and a few disconnected sets."""
    order = cutter.order
    sets = [[i] for i in order] + [order[:n] for n in range(1, len(order) + 1)] + [order[n:] for n in range(len(order))]
    return [*sets, order[::2], order[1::2] or order, order[::3]]


@pytest.mark.parametrize("make", models.ALL, ids=lambda make: make.__name__)
def test_every_cut_computes_what_the_whole_does(make: Callable[[], models.Case]):
    case = make()
    before = case.proto.SerializeToString(deterministic=True)
    cutter, values = analyze(case)

    for nodes in sets_to_try(cutter):
        assert_equals_whole(cutter.cut(nodes, values))
    assert case.proto.SerializeToString(deterministic=True) == before


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


def test_observed_shapes_become_weights_or_inputs():
    cutter, values = analyze(shape_chain())
    part = cutter.cut([5], values)  # Reshape alone
    assert part.inputs == ("r",)
    [target] = [t for t in part.proto.graph.initializer if t.name == "target"]
    assert numpy_helper.to_array(target).tolist() == [2, -1]
    assert_equals_whole(part)
    # A node that reads only shapes gets inputs, or back ends would compute it while loading.
    assert cutter.cut([2], values).inputs == ("s",)

    cutter = Cutter(shape_chain().proto)
    values = observe(cutter, [{"x": np.ones((n, 3, 4), np.float32)} for n in (1, 5)])
    part = cutter.cut([5], values)
    assert part.inputs == ("r", "target")
    shape = part.proto.graph.input[0].type.tensor_type.shape
    assert not shape.dim[0].HasField("dim_value") and shape.dim[1].dim_value == 3
    assert [feed["r"].shape[0] for feed in part.feeds] == [1, 5]
    assert_equals_whole(part)


@pytest.mark.parametrize(
    ("outputs", "body", "cuts"),
    [
        ("y", "a = Relu(x)\n b = Sigmoid(a)\n c = Add(a, b)\n y = Mul(a, c)", {(0, 1): "b", (0, 1, 2): "c"}),
        ("a y", "a = Relu(x)\n y = Sigmoid(a)", {(0, 1): "a y"}),
        ("y", "y = Relu(x)\n dead = Sigmoid(x)", {(0, 1): "y", (1,): "dead"}),
    ],
    ids=["read inside", "outputs of the whole", "dead ends"],
)
def test_outputs_allow_fusions(outputs: str, body: str, cuts: dict[tuple[int, ...], str]):
    declared = ", ".join(f"float[4] {name}" for name in outputs.split())
    proto = models.model(f"(float[4] x) => ({declared}) {{ {body} }}")
    cutter, values = analyze(models.Case(proto, {"x": models.random(4)}))

    assert {nodes: " ".join(cutter.cut(list(nodes), values).outputs) for nodes in cuts} == cuts


def test_nodes_that_exchange_sequences_stay_together():
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
    cutter, values = analyze(models.Case(proto, {"x": models.random(6)}))

    assert frozenset({1, 3, 4}) in cutter.parts
    assert sorted(i for part in cutter.parts for i in part) == list(range(6))
    for count in range(1, 4):
        for chosen in itertools.combinations(cutter.parts, count):
            assert_equals_whole(cutter.cut(frozenset().union(*chosen), values))


def test_values_above_the_memory_limit_use_files():
    text = "(float[64] x) => (float[64] y) { a = Relu(x) h = Cast<to = 16>(a) b = Cast<to = 1>(h) y = Add(b, x) }"
    case = models.Case(models.model(text), {"x": models.random(64)})
    _, in_memory = analyze(case)
    cutter, in_files = analyze(case, limit_bytes=0)

    assert in_files._folder is not None and in_memory._folder is None
    for name in ("x", "a", "h", "b", "y"):
        [left], [right] = in_memory.arrays(name), in_files.arrays(name)
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
    assert_equals_whole(cutter.cut([1, 2], in_files))
    in_files.close()


def test_impossible_cuts_are_refused():
    cutter = Cutter(models.identity().proto)
    with pytest.raises(errors.InvalidModelError, match="at least one node"):
        cutter.cut([], Observed())
    with pytest.raises(errors.InvalidModelError, match="'x'"):
        cutter.cut([0], Observed())
    with pytest.raises(errors.BackendError, match="Frobnicate"):
        analyze(models.no_kernel())
