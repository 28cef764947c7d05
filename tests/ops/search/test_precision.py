"""Which nodes must stay in FP32: planted sensitive nodes are found, and only those."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import models
from trtops import errors, precision
from trtops.backend.base import BaseRunner
from trtops.comparator.report import Tolerances
from trtops.ops.search.delta import Step
from trtops.ops.search.precision import Candidate, PrecisionConfig, PrecisionResult
from trtops.ops.search.submodel import onnxruntime_runner
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact


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
    proto = models.model(text, {"big": np.float32(1000), "one": np.float32(1)})
    for node in proto.graph.node:
        node.name = node.name.replace("__", "/")  # which the text syntax does not accept
    return proto


def fast(**options: object) -> PrecisionConfig:
    return PrecisionConfig(tolerances=Tolerances(atol=0.02, rtol=0.02), **options)  # type: ignore[arg-type]


def test_only_the_overflowing_node_and_its_reader_are_kept() -> None:
    steps: list[Step] = []
    result = precision(overflowing(), fast(), progress=steps.append)
    assert (result.outcome, result.keep, result.minimal) == ("mixed", ("b3/square", "b3/root"), True)
    assert "| `b3/square` | Mul | - | - | yes |" in [section.text for section in result.sections()][-1]
    assert tuple(steps) == result.steps and result.checks == len(steps) < 60
    assert steps[0].size == 0 and steps[0].excess > 1

    model = overflowing(5, bad=(1, 4))
    result = precision(model, fast())
    assert {name.split("/")[0] for name in result.keep} == {"b1", "b4"}
    for left_out in result.keep:
        rest = tuple(name for name in result.keep if name != left_out)
        assert precision(model, fast(exclude=rest)).keep == (left_out,)

    result = precision(overflowing(bad=()), fast())
    assert (result.verdict, result.keep, result.checks) == ("good", (), 1)


def test_hopeless_back_ends_and_lenient_checks_are_named() -> None:
    def wrong(candidate: Candidate) -> BaseRunner:
        return onnxruntime_runner(models.off_by(candidate.rewritten.model, 3, "a"))

    model = models.model("(float[8] x) => (float[8] y) { [a] a = Exp(x) y = Identity(a) }")
    result = precision(model, fast(), runner=wrong)
    assert (result.verdict, result.keep) == ("bad", ("a", "y"))
    assert "Even with every node in FP32" in result.because[0]

    def unbuildable(candidate: Candidate) -> BaseRunner:
        raise errors.EngineBuildError("TensorRT cannot parse the ONNX model.")

    result = precision(model, fast(), runner=unbuildable)
    assert result.verdict == "bad"
    assert result.because[0].startswith("The model does not run, even with every node in FP32: TensorRT cannot parse")
    passing = precision(models.transformer().proto, evaluate=lambda candidate: True)
    assert passing.outcome == "good" and passing.because[1].startswith("The check has not failed once")


def test_random_models_are_refused() -> None:
    proto = models.model("(float[2,8] x) => (float[2,8] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    with pytest.raises(errors.InputError, match="the model is random: RandomNormalLike 'r'"):
        precision(proto, fast())


def test_the_written_model_has_casts_and_runs(tmp_path: Path) -> None:
    precision(overflowing(), fast(output=str(tmp_path / "mixed.onnx")))

    written = onnx.load(tmp_path / "mixed.onnx")
    kinds = {t.name: t.type.tensor_type.elem_type for t in onnx.shape_inference.infer_shapes(written).graph.value_info}
    assert (kinds["q3"], kinds["q2"]) == (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    ort.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])


def test_modes_keep_one_end_and_checks_are_limited() -> None:
    for mode, direction, kept_count in (("bisect", "forward", 18), ("linear", "reverse", 15)):
        result = precision(overflowing(), fast(mode=mode, direction=direction))
        assert len(result.keep) == kept_count and not result.minimal
    result = precision(overflowing(), fast(max_checks=4))
    assert (result.outcome, result.minimal, result.checks) == ("mixed", False, 4)


def test_everything_is_logged() -> None:
    tracker = MemoryTracker()
    result = precision(overflowing(4), PrecisionConfig(tolerances=Tolerances(atol=0.02)), tracker=tracker)
    report = tracker.load(result.run_id).read_bytes(Artifact.REPORT).decode()
    assert "nodes kept in FP32" in report and "<svg" in report
    assert result.excess is not None and result.excess <= 1 and "times what is allowed" in result.figures
    assert PrecisionResult.from_json(result.to_json()).keep == result.keep


def test_an_unknown_node_to_keep_is_an_error() -> None:
    with pytest.raises(errors.ConfigError):
        precision(overflowing(), fast(exclude=("nowhere",)))


def test_nodes_inside_functions_are_kept_one_by_one(tmp_path: Path) -> None:
    text = """(float[4] x) => (float[4] y) {
        [scale] a = Mul(x, k)
        [first] b = custom.Norm(x)
        [second] c = custom.Norm(a)
        [add] y = Add(b, c)
    }
    <domain: "custom", opset_import: ["" : 17]>
    Norm (v) => (n) { [square] s = Mul(v, v) [root] r = Sqrt(s) [divide] n = Div(v, r) }"""
    model, config = models.model(text, {"k": np.float32(1000)}), fast(output=str(tmp_path / "mixed.onnx"))
    result = precision(model, config, data=[{"x": np.ones(4, np.float32)}])

    assert result.outcome == "mixed" and len(result.keep) == 2
    assert {name.split("__")[0] for name in result.keep} == {"square", "root"}
    assert len({name.split("__")[1] for name in result.keep}) == 1
    assert set(result.keep) <= {node.name for node in onnx.load(tmp_path / "mixed.onnx").graph.node}


def test_a_replay_resumes_only_the_same_search(tmp_path: Path) -> None:
    replay, steps = str(tmp_path / "replay.json"), list[Step]()
    first = precision(overflowing(), fast(save_replay=replay))
    again = precision(overflowing(), fast(load_replay=replay), progress=steps.append)
    assert again.keep == first.keep and again.steps == first.steps and not steps
    with pytest.raises(errors.ConfigError, match="begun with precision"):
        precision(overflowing(), fast(load_replay=replay, to="bf16"))
