"""Which nodes must stay in FP32: planted sensitive nodes are found, and only those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import models
from trtops import errors
from trtops.backend.base import BaseRunner
from trtops.backend.onnx import emulate
from trtops.backend.onnx import precision as rewriting
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.submodel import onnxruntime_runner
from trtops.ops.search.precision import Candidate, PrecisionConfig, PrecisionResult, PrecisionStep, precision
from trtops.tracking.memory import MemoryTracker


def overflowing(blocks: int = 6, bad: tuple[int, ...] = (3,)) -> onnx.ModelProto:
    """Blocks of harmless nodes; in some, values are squared beyond FP16's range and brought back by a root."""
    lines, tail = [], "x"
    for i in range(blocks):
        factor = "big" if i in bad else "one"
        lines += [
            f"[b{i}__scale] s{i} = Mul({tail}, {factor})",
            f"[b{i}__square] q{i} = Mul(s{i}, s{i})",
            f"[b{i}__root] r{i} = Sqrt(q{i})",
            f"[b{i}__back] t{i} = Div(r{i}, {factor})",
            f"[b{i}__act] u{i} = Tanh(t{i})",
        ]
        tail = f"u{i}"
    text = "(float[2,8] x) => (float[2,8] y) {\n" + "\n".join(lines) + f"\n[end] y = Identity({tail})\n}}"
    weights = {"big": np.float32(1000), "one": np.float32(1)}
    proto = models.model(text, weights)
    for node in proto.graph.node:
        node.name = node.name.replace("__", "/")  # which the text syntax does not take
    return proto


def fast(**options: object) -> PrecisionConfig:
    return PrecisionConfig(tolerances=Tolerances(atol=0.02, rtol=0.02), latency_runs=0, **options)  # type: ignore[arg-type]


def test_the_one_node_that_overflows_is_found_with_the_node_that_reads_it() -> None:
    result = precision(overflowing(), fast())
    assert result.outcome == "mixed"
    assert result.keep == ("b3/square", "b3/root")
    assert result.minimal
    assert result.checks < 60


def test_leaving_out_any_node_of_the_answer_is_too_much() -> None:
    model = overflowing(5, bad=(1, 4))
    result = precision(model, fast())
    assert {name.split("/")[0] for name in result.keep} == {"b1", "b4"}
    for left_out in result.keep:
        rest = [name for name in result.keep if name != left_out]
        again = precision(model, fast(exclude=tuple(rest)))
        assert again.keep == (left_out,)


def test_a_model_that_is_fine_in_fp16_keeps_nothing() -> None:
    result = precision(overflowing(bad=()), fast())
    assert (result.verdict, result.keep, result.checks) == ("good", (), 1)


def test_a_back_end_that_is_wrong_in_fp32_too_is_said_to_be() -> None:
    def wrong(candidate: Candidate) -> BaseRunner:
        shifted = onnx.ModelProto()
        shifted.CopyFrom(candidate.rewritten.model)
        next(node for node in shifted.graph.node if node.name == "a" or "a" in node.output).op_type = "Neg"
        return onnxruntime_runner(shifted)

    result = precision(
        models.model("(float[8] x) => (float[8] y) { a = Exp(x) y = Identity(a) }"), fast(), runner=wrong
    )
    assert (result.verdict, result.keep) == ("bad", ("a", "y"))


def test_the_model_that_is_written_has_casts_and_runs(tmp_path: Path) -> None:
    config = fast(output=str(tmp_path / "mixed.onnx"), exclude_list=str(tmp_path / "keep.txt"))
    result = precision(overflowing(), config)

    written = onnx.load(tmp_path / "mixed.onnx")
    kinds = {t.name: t.type.tensor_type.elem_type for t in onnx.shape_inference.infer_shapes(written).graph.value_info}
    assert kinds["q3"] == onnx.TensorProto.FLOAT
    assert kinds["q2"] == onnx.TensorProto.FLOAT16
    assert (tmp_path / "keep.txt").read_text().splitlines() == list(result.keep)
    ort.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])


def test_what_is_excluded_alike_is_named_by_its_type() -> None:
    model = models.model(
        "(float[2,8] x) => (float[2,8] y) { [p] a = Exp(x) [q] b = Exp(x) [r] c = Add(a, b) [s] d = Log(c) [t] y = Neg(d) }"
    )
    feeds = [{"x": np.full((2, 8), 15, np.float32)}]
    result = precision(model, fast(), feeds=feeds)
    assert set(result.keep) >= {"p", "q"}
    lowered = rewriting.lower_precision(model, "fp16", exclude=result.exclude).lowered
    assert not set(lowered) & set(result.keep)


@pytest.mark.parametrize(("mode", "direction", "kept"), [("bisect", "forward", 18), ("linear", "reverse", 15)])
def test_bisect_and_linear_keep_all_nodes_from_one_end(mode: str, direction: str, kept: int) -> None:
    result = precision(overflowing(), fast(mode=mode, direction=direction))
    assert len(result.keep) == kept
    assert not result.minimal


def test_a_search_that_runs_out_of_checks_gives_the_best_so_far() -> None:
    result = precision(overflowing(), fast(max_checks=4))
    assert (result.outcome, result.minimal, result.checks) == ("mixed", False, 4)


def test_a_runner_of_ones_own_sees_the_rewritten_model() -> None:
    seen = []

    def plain(candidate: Candidate) -> BaseRunner:
        seen.append(len(candidate.rewritten.kept))
        return onnxruntime_runner(candidate.rewritten.model)

    # ONNX Runtime does not round between two nodes on the CPU, so nothing overflows there.
    assert precision(overflowing(), fast(), runner=plain).verdict == "good"
    assert seen == [0]


def test_many_small_errors_take_no_more_checks_than_a_few_per_node() -> None:
    body = "\n".join(f"t{i + 1} = Mul(t{i}, k)" for i in range(40))
    model = models.model(
        f"(float[8] x) => (float[8] y) {{ t0 = Abs(x)\n{body}\ny = Identity(t40) }}", {"k": np.float32(1.1)}
    )
    tight = Tolerances(atol=6e-4, rtol=6e-4)
    result = precision(model, PrecisionConfig(tolerances=tight, latency_runs=0))
    assert result.outcome == "mixed" and result.minimal
    assert len(result.keep) > 5
    assert result.checks < 5 * result.nodes


def test_everything_is_logged_and_the_picture_is_drawn() -> None:
    tracker = MemoryTracker()
    config = PrecisionConfig(tolerances=Tolerances(atol=0.02), latency_runs=2)
    result = precision(overflowing(4), config, tracker=tracker)
    assert {entry.path for entry in tracker.load(result.run_id).manifest.artifacts} >= {"precision/result.json"}
    assert {point.label for point in result.points} >= {"all FP16", "all FP32", "found"}
    assert all(point.latency_ms is not None for point in result.points)
    assert PrecisionResult.from_json(result.to_json()).keep == result.keep


def test_each_step_is_told() -> None:
    steps: list[PrecisionStep] = []
    result = precision(overflowing(3, bad=(1,)), fast(), progress=steps.append)
    assert tuple(steps) == result.steps
    assert steps[0].excess > 1


def test_an_unknown_node_to_exclude_is_refused() -> None:
    with pytest.raises(errors.ConfigError):
        precision(overflowing(), fast(exclude=("nowhere",)))


@pytest.mark.parametrize("make", [models.conv_net, models.transformer, models.branch, models.loop])
def test_emulated_models_give_what_rounding_each_result_gives(make: models.Callable[[], models.Case]) -> None:
    case = make()
    low = rewriting.convert_to_fp16(case.proto)
    emulate.emulate_low_precision(low)
    names = [value.name for value in low.graph.output]
    session = ort.InferenceSession(low.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, array in zip(names, session.run(None, dict(case.feed))):
        if case.expected is not None and array.dtype == np.float32:
            np.testing.assert_allclose(array, case.expected[name], rtol=0.02, atol=0.02)


def test_emulation_overflows_where_fp16_does() -> None:
    low = rewriting.convert_to_fp16(models.model("(float[2] x) => (float[2] y) { a = Mul(x, x) y = Sqrt(a) }"))
    emulate.emulate_low_precision(low)
    session = ort.InferenceSession(low.SerializeToString(), providers=["CPUExecutionProvider"])
    [array] = session.run(None, {"x": np.array([300, 2], np.float32)})
    assert array.tolist() == [np.inf, 2.0]


def test_nodes_inside_functions_are_found_and_kept_one_by_one() -> None:
    text = """(float[4] x) => (float[4] y) {
        [scale] a = Mul(x, k)
        [first] b = custom.Norm(x)
        [second] c = custom.Norm(a)
        [add] y = Add(b, c)
    }
    <domain: "custom", opset_import: ["" : 17]>
    Norm (v) => (n) { [square] s = Mul(v, v) [root] r = Sqrt(s) [divide] n = Div(v, r) }"""
    model = models.model(text, {"k": np.float32(1000)})
    feed = {"x": np.ones(4, np.float32)}

    result = precision(model, fast(), feeds=[feed])

    assert result.outcome == "mixed" and len(result.keep) == 2
    assert {name.split("__")[0] for name in result.keep} == {"square", "root"}
    assert len({name.split("__")[1] for name in result.keep}) == 1
    assert set(result.keep) <= {node.name for node in result.model.graph.node}


def test_a_check_that_passes_whatever_it_is_given_is_broken() -> None:
    case = models.transformer()
    with pytest.raises(errors.ConfigError, match=r"The check is broken.*outputs set to 0"):
        precision(case.proto, evaluate=lambda candidate: True)


def test_a_check_that_compares_is_not() -> None:
    case = models.transformer()
    golden = reference_outputs(case.proto, [case.feed])[0]["y"]

    def evaluate(candidate: Candidate) -> bool:
        found = reference_outputs(candidate.rewritten.model, [case.feed])[0]["y"]
        return bool(np.abs(found - golden).max() < 0.05)

    assert precision(case.proto, evaluate=evaluate).outcome == "good"
