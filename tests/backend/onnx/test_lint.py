"""Lint: every root of trouble in one go, and nothing said of what is fine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests import models
from trtops.backend.onnx import Model, save_onnx
from trtops.backend.onnx.lint import LintReport, lint


def messages(report: LintReport, level: str | None = None) -> str:
    return "\n".join(f"{e.level} {e.nodes}: {e.message}" for e in report.entries if level in (None, e.level))


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_sound_models_pass_whole(make: Callable[[], models.Case]) -> None:
    case = make()

    report = lint(case.proto, case.feed)

    assert report.ok and report.failing == report.unchecked == ()
    assert len(report.passing) == len(case.proto.graph.node)


def test_all_roots_are_found_in_one_go_and_what_is_behind_them_is_still_checked() -> None:
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
        }""",
        {"s": np.array([4, 5]), "w": np.ones((7, 2), np.float32), "v": np.zeros(3, np.float32)},
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("b", 1, [2, 3]))

    report = lint(proto)

    assert report.failing == ("bad0", "bad1", "bad2")
    assert report.passing == ("good0", "good1", "good2", "good3", "good4")
    assert not report.ok


def test_roots_behind_a_root_are_found_where_no_shape_is_known() -> None:
    proto = models.model(
        """(float[1,3,8,8] x) => (float[n] y) {
            [bad0] a = Conv<strides = [1, 1, 1]>(x, w0)
            [norm] b = BatchNormalization(a, v, v, v, v)
            [relu] c = Relu(b)
            [good] d = Conv(c, w1)
            [bad1] e = Conv<strides = [2]>(d, w1)
            [bad2] y = Gemm(d, w2)
        }""",
        {"w0": np.ones((4, 3, 3, 3), np.float32), "w1": np.ones((4, 4, 3, 3), np.float32)}
        | {"w2": np.ones((4, 2), np.float32), "v": np.ones(4, np.float32)},
    )

    report = lint(proto)

    assert report.failing == ("bad0", "bad1", "bad2") and report.unchecked == ()


def test_roots_behind_a_root_that_show_only_in_a_run_are_found_where_shapes_are_known() -> None:
    proto = models.model(
        """(float[n,5,8,8] x) => (float[n,4,4,4] z, float[n,4,4,4] c) {
            [bad0] a = Conv(x, w)
            [relu] b = Relu(a)
            [bad1] c = Conv(b, w)
            [bad2] z = Conv(a, v)
        }""",
        {"w": np.ones((4, 3, 3, 3), np.float32), "v": np.ones((4, 7, 3, 3), np.float32)},
    )

    report = lint(proto)

    assert report.failing == ("bad0", "bad1", "bad2") and report.passing == ("relu",)
    assert [entry.level for entry in report.entries] == ["exception"] * 3


def test_no_node_is_blamed_for_zeros_in_place_of_what_another_did_not_make() -> None:
    proto = models.model(
        """(float[2,3] x, int64[1] i) => (float[1,3] y, int64[1] q, int64[1] m, float[a] r) {
            [bad] a = MatMul(x, w)
            [index] k = NoSuchOperator(x)
            [take] y = Gather(x, k)
            [one] t = NoSuchOperator(i)
            [divide] q = Div(i, t)
            [modulo] m = Mod(i, t)
            [relu] r = Relu(a)
        }""",
        {"w": np.ones((4, 2), np.float32)},
    )
    for name in ("k", "t"):
        proto.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1]))

    report = lint(proto)

    assert report.failing == ("bad", "index", "one")
    assert report.passing == ("take", "divide", "modulo", "relu")


def test_nodes_with_sparse_weights_are_checked_one_by_one_too() -> None:
    proto = models.model(
        "(float[n,4] x) => (float[n,4] y) { [mm] a = MatMul(x, w) [bad] b = Frob(a) [re] y = Relu(a) }"
    )
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 5]), "w_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 4]))

    report = lint(proto)

    assert report.failing == ("bad",) and report.passing == ("mm", "re")


def test_a_node_that_fails_only_when_it_runs_is_an_exception() -> None:
    proto = models.model("(float[n,3] x, int64[2] s) => (float[a,b] y) { [r] y = Reshape(x, s) }")

    bad = lint(proto, {"x": np.ones((2, 3), np.float32), "s": np.array([4, 5])})
    good = lint(proto, {"x": np.ones((2, 3), np.float32), "s": np.array([3, 2])})

    assert bad.failing == ("r",) and [e.level for e in bad.entries] == ["exception"]
    assert good.ok


def test_a_node_that_stands_before_what_it_reads_is_run_all_the_same() -> None:
    proto = models.model(
        """(float[4] x) => (float[1] y) {
            [bad] y = Gather(b, i)
            [cast] j = Cast<to = 1>(i)
            [good] b = Add(x, j)
        }""",
        {"i": np.array([9])},
    )

    assert lint(proto).failing == ("bad",)


def test_custom_operators_are_left_unchecked_with_a_warning_and_so_is_what_reads_them() -> None:
    report = lint(models.no_kernel().proto)

    assert report.ok
    assert report.passing == ("t",) and report.failing == ()
    assert report.unchecked == ("frob", "y")
    assert "no kernel for custom.Frobnicate" in messages(report, "warning")
    assert report.entries[-1].nodes == ("y",) and "1 nodes were not checked" in report.entries[-1].message


def test_names_defined_twice_or_never_are_named_with_their_nodes() -> None:
    proto = models.conv_net().proto
    proto.graph.node[2].input[0] = "n00"
    proto.graph.node[4].output[0] = "r0"
    proto.graph.output.append(helper.make_tensor_value_info("ghost", 1, [2]))

    report = lint(proto)

    assert report.failing == ("relu0", "relu1", "pool")
    assert "reads 'n00', which nothing makes. Did you mean 'n0'" in messages(report, "error")
    assert "makes 'r0', which is defined 2 times" in messages(report, "error")
    assert "Output 'ghost' is made by nothing" in messages(report, "error")


def test_a_circle_ends_the_check_and_is_named() -> None:
    proto = models.conv_net().proto
    proto.graph.node[1].input[0] = "r1"

    report = lint(proto)

    assert not report.ok and report.passing == ()
    assert "circle" in messages(report, "error")


def test_weights_that_are_short_or_elsewhere_are_errors(tmp_path: Path) -> None:
    short = models.conv_net().proto
    short.graph.initializer[1].raw_data = b"123"
    elsewhere = onnx.load(models.write_external(models.conv_net(), tmp_path), load_external_data=False)

    assert "'b0' of shape (8,) has 3 bytes; expected 32" in messages(lint(short), "error")
    assert "'w0' has its data in another file" in messages(lint(elsewhere), "error")
    assert lint(Model.load(tmp_path / "conv_net.onnx")).ok


def test_what_is_not_used_is_a_warning() -> None:
    proto = models.identity().proto
    proto.graph.node.append(helper.make_node("Relu", ["x"], ["dead"], name="idle"))
    proto.graph.input.append(helper.make_tensor_value_info("spare", 1, [2]))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "unread"))
    proto.graph.node.append(helper.make_node("Relu", ["dead"], ["dead2"], name="idle2"))

    proto.ir_version = 3
    assert "ONNX Runtime refuses such models of IR version 3" in messages(lint(proto), "error")
    proto.ir_version = 8
    report = lint(proto)

    assert report.ok
    text = messages(report, "warning")
    for found in (
        "Input: 'spare' does not affect outputs, can be removed.",
        "Weight: 'unread' does not affect outputs, can be removed.",
    ):
        assert found in text
    assert [e.nodes for e in report.entries if e.nodes] == [("idle",), ("idle2",)]


def test_names_of_nodes_and_values_that_come_twice_are_errors() -> None:
    twice = models.conv_net().proto
    twice.graph.node[1].name = twice.graph.node[0].name
    values = models.identity().proto
    values.graph.input.append(values.graph.input[0])

    report = lint(twice)
    assert not report.ok and report.failing == (twice.graph.node[0].name,)
    assert f"Duplicate node name: '{twice.graph.node[0].name}'" in messages(report, "error")
    found = lint(values)
    assert not found.ok and [e.source for e in found.entries] == ["onnx_checker"]


def test_what_is_missing_of_the_model_itself_is_told() -> None:
    nameless, undated = models.conv_net().proto, models.conv_net().proto
    nameless.graph.name = ""
    del undated.opset_import[:]

    assert "'name' of 'graph'" in messages(lint(nameless), "error").replace("name of graph", "'name' of 'graph'")
    assert not lint(undated).ok


def test_a_model_without_nodes_is_a_warning() -> None:
    proto = models.identity().proto
    del proto.graph.node[:]

    report = lint(proto)
    assert report.ok and [e.message for e in report.entries] == ["ONNX model has no nodes"]


def test_what_only_loading_the_whole_model_shows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from trtops.backend.onnx import checker

    monkeypatch.setattr(checker, "complaint", lambda *_: "")
    proto = models.identity().proto
    proto.graph.input.append(proto.graph.input[0])

    [entry] = lint(proto).entries
    assert (entry.level, entry.source, entry.nodes) == ("error", "onnxruntime", ()) and "uplicate" in entry.message


def test_inputs_of_another_type_are_cast_and_blamed_on_no_node(caplog: pytest.LogCaptureFixture) -> None:
    case = models.conv_net()
    doubled = {name: array.astype(np.float64) for name, array in case.feed.items()}

    assert lint(case.proto, doubled).ok
    assert "cast from float64 to float32" in caplog.text


def test_the_checker_leaves_the_package_to_be_imported_later() -> None:
    code = (
        "import sys\nfrom trtops.backend.onnx import checker\nfrom trtops.backend.onnx.messages import ModelProto\n"
        "print(bool(checker.complaint(ModelProto())), 'onnx' in sys.modules)\n"
        "import onnx, onnx.checker, onnx.shape_inference, onnx.defs\nprint(onnx.defs.get_schema('Add').name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "Add"], done.stderr


def test_bodies_and_sequences_are_checked_node_by_node_too() -> None:
    proto = models.branch().proto
    proto.graph.node.append(helper.make_node("NoSuchOperator", ["y"], ["q"], name="bad"))

    report = lint(proto)

    assert report.failing == ("bad",) and "choose" in report.passing

    sequences = models.model(
        """(float[4] x) => (float[4] y, float[2] z) {
            [make] s = SequenceConstruct(x, x)
            [take] y = SequenceAt(s, zero)
            [bad] z = MatMul(x, w)
        }""",
        {"zero": np.array(0), "w": np.ones((3, 2), np.float32)},
    )
    report = lint(sequences)

    assert report.failing == ("bad",) and report.passing == ("make", "take")


def test_types_that_numpy_lacks_are_loaded_and_not_run() -> None:
    proto = models.model(
        "(bfloat16[4] x) => (float[4] y) { [a] b = Identity(x)\n [c] d = Cast<to = 1>(b)\n [e] y = Relu(d) }"
    )

    report = lint(proto)

    assert report.ok and report.failing == ()


def test_the_report_survives_json_and_has_polygraphys_layout() -> None:
    report = lint(models.no_kernel().proto)

    assert LintReport.from_json(report.to_json()) == report
    layout = report.to_lint_json()
    assert set(layout) == {"summary", "lint_entries"}
    assert set(layout["lint_entries"][0]) == {"level", "source", "message", "nodes", "kind", "op"}  # type: ignore[index, call-overload, arg-type]


@pytest.mark.parity
def test_what_fails_with_polygraphy_fails_here(tmp_path: Path) -> None:
    proto = models.transformer().proto
    next(n for n in proto.graph.node if n.name == "mlp_in").input[1] = "w_out"
    save_onnx(proto, tmp_path / "m.onnx")

    subprocess.run(
        [
            sys.executable,
            "-c",
            "from polygraphy.tools import main; main()",
            "check",
            "lint",
            "m.onnx",
            "-o",
            "theirs.json",
        ],
        cwd=tmp_path,
        capture_output=True,
    )
    theirs = json.loads((tmp_path / "theirs.json").read_text())["summary"]["failing"]

    assert set(theirs) <= set(lint(proto).failing) and lint(proto).failing == ("mlp_in",)


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_no_node_is_blamed_for_what_another_did(make: Callable[[], models.Case]) -> None:
    case = make()
    for i, node in enumerate(case.proto.graph.node):
        faulty = onnx.ModelProto()
        faulty.CopyFrom(case.proto)
        faulty.graph.node[i].op_type = "NoSuchOperator"
        custom = node.domain not in ("", "com.microsoft")

        assert lint(faulty, case.feed).failing == (() if custom else (node.name or node.output[0],))
