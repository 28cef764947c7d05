"""Faults inside of what is fused: the fewest marks that take them away, and the smallest window that shows them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests import models
from tests.ops.search.test_triage import TIGHT, chain, off_by
from trtops.backend.base import BaseRunner
from trtops.ops.evaluation.submodel import onnxruntime_runner
from trtops.ops.search.isolation.marking import IsolationConfig, find_marks
from trtops.ops.search.isolation.window import isolate
from trtops.ops.search.triage.sides import MakeRunner
from trtops.spec import BuildConfig, OnnxRuntimeOptions

CONFIG = IsolationConfig(tolerances=TIGHT)


def wrongly_fused(*names: str) -> MakeRunner:
    """A back end that fuses nodes wrongly: only where all are there, and none of the tensors between them is an output."""

    def make(model: onnx.ModelProto) -> BaseRunner:
        there = {node.name: node for node in model.graph.node}
        inner = {there[name].output[0] for name in names[:-1] if name in there}
        if not set(names) <= there.keys() or inner & {value.name for value in model.graph.output}:
            return onnxruntime_runner(model)
        wrong = onnx.ModelProto()
        wrong.CopyFrom(model)
        [last] = [node for node in wrong.graph.node if node.name == names[-1]]
        result, last.output[0] = last.output[0], f"{last.output[0]}_right"
        wrong.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "amount"))
        place = list(wrong.graph.node).index(last) + 1
        wrong.graph.node.insert(place, helper.make_node("Add", [f"{result}_right", "amount"], [result]))
        return onnxruntime_runner(wrong)

    return make


def test_one_mark_inside_a_bad_fusion_takes_the_error_away() -> None:
    result = find_marks(chain(), wrongly_fused("n4", "n5", "n6"), CONFIG)
    assert result.vanishes and result.minimal and len(result.marked) == 1
    assert set(result.marked) <= {"t5", "t6"}


def test_what_is_wrong_without_any_fusion_is_not_mended_by_marks() -> None:
    result = find_marks(chain(), off_by("n5", 0.5), CONFIG)
    assert (result.verdict, result.vanishes, result.marked) == ("bad", False, ())


def test_the_window_is_what_is_fused_wrongly() -> None:
    counted: list[int] = []
    result = isolate(
        chain(), wrongly_fused("n4", "n5", "n6"), CONFIG, progress=lambda done, total: counted.append(done)
    )
    assert (result.how, result.minimal) == ("own", True) and counted[-1] == max(counted) > 2
    assert [node.name for node in result.nodes] == ["n4", "n5", "n6"]


def test_a_fault_that_needs_what_is_around_it_is_kept_apart() -> None:
    def make(model: onnx.ModelProto) -> BaseRunner:
        whole = {"first", "last"} <= {node.name for node in model.graph.node}
        return (off_by("n5", 0.5, unless_observed=True) if whole else onnxruntime_runner)(model)

    # With "first" and "last" both there every window of its own is right but the whole.
    result = isolate(chain(), make, CONFIG)
    assert (result.how, result.marked) == ("apart", ("t6",)) or [n.name for n in result.nodes] == ["n5"]
    assert len(result.nodes) <= 2


def test_a_real_fusion_is_isolated() -> None:
    case = models.transformer()
    options = OnnxRuntimeOptions(tactics=("GeluApproximation",), allow_approximation=True, tactic_seed=0)
    result = isolate(case.proto, BuildConfig(options=options), feeds=[dict(case.feed)])
    assert result.how == "own" and len(result.nodes) <= 6
    assert "erf" in {node.name for node in result.nodes}


def test_sides_that_agree_have_nothing_to_isolate() -> None:
    assert isolate(chain(), onnxruntime_runner, CONFIG).verdict == "good"
    assert find_marks(chain(), onnxruntime_runner, CONFIG).verdict == "good"
