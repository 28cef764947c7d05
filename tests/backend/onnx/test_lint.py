"""Lint: every independent problem is found, and no node is blamed for another's."""

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import models
from tests.backend.onnx import fuzz
from trtops import errors
from trtops.backend.onnx import Model
from trtops.backend.onnx.lint import LintReport, _load_apart, lint
from trtops.cli.main import main
from trtops.ops.model.lint import lint as ops_lint


def messages(report: LintReport, level: str) -> str:
    return "\n".join(f"{e.level} {e.nodes}: {e.message}" for e in report.entries if e.level == level)


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_only_faulty_nodes_fail(make: Callable[[], models.Case]) -> None:
    case = make()

    report = lint(case.proto, case.feed)

    assert report.ok and report.failing == report.unchecked == ()
    assert len(report.passing) == len(case.proto.graph.node)
    for i, node in enumerate(case.proto.graph.node):
        faulty = onnx.ModelProto()
        faulty.CopyFrom(case.proto)
        faulty.graph.node[i].op_type = "NoSuchOperator"
        custom = node.domain not in ("", "com.microsoft")
        assert lint(faulty, case.feed).failing == (() if custom else (node.name or node.output[0],))


def test_several_faults_are_found_at_once() -> None:
    proto = models.model(
        """(float[2,3] x) => (float[2,3] y, float[3] z) {
            [good0] a = Relu(x)
            [bad0] b = Reshape(a, s)
            [good1] c = Abs(a)
            [bad1] d = MatMul(c, w)
            [good2] e = Neg(b)
            [bad2] f = NoSuchOperator(e)
            [good3] y = Identity(e)
            [good4] z = Identity(v)
            [behind] g = Neg(f)
        }""",
        {"s": np.array([4, 5]), "w": np.ones((7, 2), np.float32), "v": np.zeros(3, np.float32)},
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("b", 1, [2, 3]))

    report = lint(proto)

    assert report.failing == ("bad0", "bad1", "bad2") and report.unchecked == ("behind",)
    assert report.passing == ("good0", "good1", "good2", "good3", "good4")
    assert not report.ok and "1 nodes were not checked" in messages(report, "warning")


def test_sparse_weights_bodies_and_sequences_are_checked() -> None:
    sparse = fuzz.sparse()
    sparse.graph.node.append(helper.make_node("Frob", ["y"], ["q"], name="bad"))
    assert lint(sparse).failing == ("bad",) and lint(sparse).passing == ("y",)

    branch = models.branch().proto
    branch.graph.node.append(helper.make_node("NoSuchOperator", ["y"], ["q"], name="bad"))
    assert lint(branch).failing == ("bad",) and "choose" in lint(branch).passing

    sequences = models.model(
        """(float[4] x) => (float[4] y, float[2] z) {
            [make] s = SequenceConstruct(x, x)
            [take] y = SequenceAt(s, zero)
            [bad] z = MatMul(x, w)
        }""",
        {"zero": np.array(0), "w": np.ones((3, 2), np.float32)},
    )
    assert lint(sequences).failing == ("bad",) and lint(sequences).passing == ("make", "take")


def test_a_failure_while_running_is_an_exception() -> None:
    proto = models.model("(float[n,3] x, int64[2] s) => (float[a,b] y) { [r] y = Reshape(x, s) }")

    bad, good = (lint(proto, {"x": np.ones((2, 3), np.float32), "s": np.array(s)}) for s in ([4, 5], [3, 2]))

    assert bad.failing == ("r",) and [e.level for e in bad.entries] == ["exception"] and good.ok
    unsorted = "(float[4] x) => (float[1] y) { [bad] y = Gather(b, i) [c] j = Cast<to = 1>(i) [good] b = Add(x, j) }"
    assert lint(models.model(unsorted, {"i": np.array([9])})).failing == ("bad",)


def test_custom_operators_are_unchecked_with_a_warning() -> None:
    report = lint(models.no_kernel().proto)
    assert report.ok and report.passing == ("t",) and report.failing == ()
    assert report.unchecked == ("frob", "y")
    assert "no kernel for custom.Frobnicate" in messages(report, "warning")
    assert report.entries[-1].nodes == ("y",)
    assert LintReport.from_json(report.to_json()) == report
    layout = report.to_lint_json()
    assert set(layout) == {"summary", "lint_entries"}
    first, last = "trtops_unnamed_node_0", "trtops_unnamed_node_2"
    assert layout["summary"] == {"passing": [first, "frob"], "failing": [], "unchecked": [last]}
    assert set(layout["lint_entries"][0]) == {"level", "source", "message", "nodes"}  # type: ignore[index, call-overload, arg-type]

    without_domain = models.no_kernel().proto
    [index] = [i for i, opset in enumerate(without_domain.opset_import) if opset.domain == "custom"]
    del without_domain.opset_import[index]
    assert "imports no operator set of the domain 'custom'" in messages(lint(without_domain), "warning")


def test_structural_problems_are_errors(tmp_path: Path) -> None:
    names = models.conv_net().proto
    names.graph.node[2].input[0] = "n00"
    names.graph.node[4].output[0] = "r0"
    names.graph.output.append(helper.make_tensor_value_info("ghost", 1, [2]))
    report = lint(names)
    assert report.failing == ("relu0", "relu1", "pool")
    assert "reads 'n00', which no node produces. Did you mean 'n0'" in messages(report, "error")
    assert "produces 'r0', which is defined 2 times" in messages(report, "error")
    assert "No node produces output 'ghost'" in messages(report, "error")

    cycle = models.conv_net().proto
    cycle.graph.node[1].input[0] = "r1"
    assert lint(cycle).passing == () and "cycle" in messages(lint(cycle), "error")

    short = models.conv_net().proto
    short.graph.initializer[1].raw_data = b"123"
    assert "'b0' of shape (8,) has 3 bytes; expected 32" in messages(lint(short), "error")
    elsewhere = onnx.load(models.write_external(models.conv_net(), tmp_path), load_external_data=False)
    assert "'w0' has its data in another file" in messages(lint(elsewhere), "error")
    assert lint(Model.load(tmp_path / "conv_net.onnx")).ok

    twice = models.conv_net().proto
    twice.graph.node[1].name = twice.graph.node[0].name
    assert lint(twice).failing == (twice.graph.node[0].name,)
    assert f"Duplicate node name: '{twice.graph.node[0].name}'" in messages(lint(twice), "error")

    nameless, undated = models.conv_net().proto, models.conv_net().proto
    nameless.graph.name = ""
    del undated.opset_import[:]
    assert "name of graph" in messages(lint(nameless), "error").replace("'", "")
    assert not lint(undated).ok

    new = models.conv_net().proto
    new.opset_import[0].version = 2**31 - 1
    [finding] = lint(new).entries
    assert finding.nodes == lint(new).failing == tuple(node.name for node in new.graph.node) and finding.op == ""
    assert re.match("ONNX Runtime only .guarantees. .*official support for domain ai.onnx is till", finding.message)


def test_unused_parts_are_warnings() -> None:
    proto = models.identity().proto
    proto.graph.node.append(helper.make_node("Relu", ["x"], ["dead"], name="idle"))
    proto.graph.input.append(helper.make_tensor_value_info("spare", 1, [2]))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "unread"))
    proto.graph.node.append(helper.make_node("Relu", ["dead"], ["dead2"], name="idle2"))

    proto.ir_version = 3
    assert "ONNX Runtime refuses that before IR version 4" in messages(lint(proto), "error")
    proto.ir_version = 8
    report = lint(proto)

    assert report.ok
    assert "Input: 'spare' does not affect outputs, can be removed." in messages(report, "warning")
    assert "Weight: 'unread' does not affect outputs, can be removed." in messages(report, "warning")
    assert [e.nodes for e in report.entries if e.nodes] == [("idle",), ("idle2",)]
    del proto.graph.node[:]
    proto.graph.output.pop()
    proto.graph.output.append(proto.graph.input[0])
    assert lint(proto).ok and [e.message for e in lint(proto).entries] == ["ONNX model has no nodes"]
    proto.graph.output[0].name = "missing"
    assert not lint(proto).ok and "missing" in messages(lint(proto), "error")


@pytest.mark.parity
@pytest.mark.parametrize("fault", ["shapes", "no operator set", "unknown operator", "failing kernel"])
def test_failures_in_polygraphy_are_failures_here(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    polygraphy = pytest.importorskip("polygraphy.tools._main")
    proto = models.transformer().proto
    node = next(n for n in proto.graph.node if n.name == "mlp_in")
    if fault == "shapes":
        node.input[1] = "w_out"
    elif fault == "no operator set":
        proto = models.identity().proto
        proto.ir_version = 9
        del proto.opset_import[:]
        [node] = proto.graph.node
        node.name = "only"
        node.ClearField("domain")  # with it, Polygraphy takes operator set 1
    elif fault == "unknown operator":
        node.op_type = "Unknown"
    else:
        proto.graph.initializer.append(numpy_helper.from_array(np.array([7]), "seven"))
        node.op_type, node.input[1] = "Reshape", "seven"
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(proto.SerializeToString())

    reports = []
    for call in (polygraphy.main, main):
        with contextlib.suppress(SystemExit):
            call(["check", "lint", "m.onnx", "-o", "report.json"])
        reports.append(json.loads(Path("report.json").read_text()))

    theirs, ours = reports
    assert set(theirs["summary"]["failing"]) == {node.name} <= set(ours["summary"]["failing"])
    assert [entry for entry in theirs["lint_entries"] if entry not in ours["lint_entries"]] == []


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_only_weights_are_kept_apart(make: Callable[[], models.Case], tmp_path: Path) -> None:
    case = make()
    loaded, separate_weights = _load_apart(case.write(tmp_path), 0)

    count = len(separate_weights)
    assert [value.name for value in loaded.graph.input[len(loaded.graph.input) - count :]] == list(separate_weights)
    del loaded.graph.input[len(loaded.graph.input) - count :]
    for index, tensor in enumerate(case.proto.graph.initializer):
        if tensor.name in separate_weights:
            assert tensor.data_type != TensorProto.INT64
            np.testing.assert_array_equal(separate_weights[tensor.name], numpy_helper.to_array(tensor))
            loaded.graph.initializer.insert(index, tensor)
    assert loaded == case.proto


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.__setattr__("raw_data", t.raw_data[:-1]),
        lambda t: t.dims.append(2),
        lambda t: t.dims.extend((-1, -1)),
        lambda t: t.float_data.append(1),
        lambda t: t.__setattr__("name", "w1"),
        lambda t: t.__setattr__("data_type", TensorProto.INT32),
        lambda t: t.__setattr__("data_type", 99),
    ],
    ids=["short", "shape", "negative", "values twice", "name twice", "integers", "unknown type"],
)
def test_damaged_weights_are_not_kept_apart(damage: Callable[[TensorProto], None], tmp_path: Path) -> None:
    proto = models.conv_net().proto
    damage(proto.graph.initializer[0])
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())

    loaded, separate_weights = _load_apart(tmp_path / "model.onnx", 0)

    assert loaded.graph.initializer[0] == proto.graph.initializer[0]
    assert "w0" not in separate_weights and "w2" in separate_weights


def test_external_data_is_mapped_and_checked(tmp_path: Path) -> None:
    path = models.write_external(models.conv_net(), tmp_path, threshold=0)
    proto, data = onnx.load(path), tmp_path / "weights.bin"
    loaded, separate_weights = _load_apart(path, 1000)
    assert separate_weights.keys() == {t.name for t in proto.graph.initializer if len(t.raw_data) > 1000} != set()
    small = {tensor.name: tensor.raw_data for tensor in loaded.graph.initializer}
    for original in proto.graph.initializer:
        array = separate_weights.get(original.name)
        assert (small[original.name] if array is None else array.tobytes()) == original.raw_data

    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    with pytest.raises(errors.InvalidModelError, match="truncated"):
        _load_apart(path, 1000)
    data.unlink()
    with pytest.raises(errors.InvalidModelError, match="does not exist"):
        _load_apart(path, 1000)
    (tmp_path.parent / "outside.bin").write_bytes(whole)
    data.symlink_to(tmp_path.parent / "outside.bin")
    with pytest.raises(errors.InvalidModelError, match="outside"):
        _load_apart(path, 1000)


def calling(inputs: list[str], outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """A model that calls its function of two inputs and one output."""
    operators = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("local", 1)]
    add = onnx.helper.make_node("Add", ["a", "b"], ["o"])
    function = onnx.helper.make_function("local", "F", ["a", "b"], ["o"], [add], operators[:1])
    call = onnx.helper.make_node("F", inputs, list(outputs), domain="local", name="call")
    x, z, y = (onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xzy")
    graph = onnx.helper.make_graph([call], "g", [x, z], [y])
    return onnx.helper.make_model(graph, functions=[function], opset_imports=operators, ir_version=8)


@pytest.mark.parametrize(
    ("model", "failing"),
    [
        (calling(["x", "z"]), ()),
        (calling(["x"]), ("call",)),
        (calling(["x", "z", "x"]), ("call",)),
        (calling(["x", "z"], ("y", "w")), ("call",)),
    ],
)
def test_wrong_calls_of_functions_fail(model: onnx.ModelProto, failing: tuple[str, ...]) -> None:
    report = lint(model)
    assert report.ok == (not failing) and report.failing == failing


def test_unsorted_nodes_are_a_warning() -> None:
    model = models.conv_net().proto
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    report = lint(model)
    assert report.ok and len(report.passing) == len(nodes)
    assert [entry.message[:36] for entry in report.entries] == ["Nodes are not in topological order; "]


def test_nothing_checked_is_not_a_pass() -> None:
    model = models.identity().proto
    model.graph.node[0].domain = "of.a.plugin"
    model.opset_import.add(domain="of.a.plugin", version=1)
    report = lint(model)
    assert not report.ok and not report.passing and {entry.level for entry in report.entries} == {"warning"}


def test_failures_on_assumed_sizes_say_so() -> None:
    proto = models.model(
        "(float[n,6] x) => (float[4,c] y) { s = Constant<value = int64[2] {4,-1}>() y = Reshape(x, s) }"
    )
    report = ops_lint(proto)
    assert not report.ok and report.assumed == {"x": (1, 6)}
    assert "ran with 1 for each: x (1, 6)" in report.text()
    assert ops_lint(proto, input_shapes={"x": ("n", 6)}).assumed == {"x": (1, 6)}
    assert ops_lint(proto, input_shapes={"x": (2, 6)}).ok
    assert ops_lint(proto, feed={"x": np.ones((3, 5), np.float32)}).assumed == {}
