"""Reducing failing models: planted bugs are found, nothing else is left, and nothing is checked twice."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests import models
from trtops import errors, reduce
from trtops.backend.base import BaseRunner
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.comparator.report import Tolerances
from trtops.json import load_json
from trtops.ops.search.delta import Items, Mode, OutOfTestsError, Search, Step
from trtops.ops.search.reduce import ReduceConfig, ReduceResult
from trtops.ops.search.submodel import Check, ComparisonCheck, EngineRunner, onnxruntime_runner
from trtops.spec import BuildConfig
from trtops.tracking.memory import MemoryTracker


def branchy(count: int = 24) -> models.Case:
    """Three branches that are joined again and again; nodes are named ``n0``, ``n1`` ..."""
    lines, tail = [], "x"
    for start in range(0, count, 4):
        a, b, c, d = (f"t{start + i}" for i in range(4))
        lines += [
            f"[n{start}] {a} = Relu({tail})",
            f"[n{start + 1}] {b} = Sigmoid({tail})",
            f"[n{start + 2}] {c} = Tanh({tail})",
            f"[n{start + 3}] {d} = Sum({a}, {b}, {c})",
        ]
        tail = d
    proto = models.model(f"(float[8] x) => (float[8] {tail}) {{ {' '.join(lines)} }}")
    return models.Case(proto, {"x": models.random(8)}, name="branchy")


def names_in(part: SubModel) -> set[str]:
    return {node.name for node in part.proto.graph.node}


class Planted:
    """A check that fails if one of some sets of nodes is whole in the sub-model."""

    interrupt_after: int | None = None

    def __init__(self, *culprits: set[str]) -> None:
        self.culprits = culprits
        self.tested: list[tuple[int, ...]] = []

    def __call__(self, part: SubModel) -> bool:
        if len(self.tested) == self.interrupt_after:
            raise KeyboardInterrupt
        self.tested.append(part.nodes)
        return not any(culprit <= names_in(part) for culprit in self.culprits)


def reduced(check: Check, case: models.Case | None = None, *, progress: list[Step] | None = None, **options: object):
    """Reduce a model by a check, fed with its own inputs."""
    case = case or branchy()
    steps = [] if progress is None else progress
    return reduce(case.proto, check, ReduceConfig(**options), data=[case.feed], progress=steps.append)


def names(result: ReduceResult) -> list[set[str]]:
    return [{node.name for node in result.culprit.nodes}] if result.culprit else []


def wrong_back_end(*culprits: str, together: bool = False) -> ComparisonCheck:
    """ONNX Runtime with an error of 0.05 in the culprits' outputs; or only if it gets them together."""

    def runner(model: onnx.ModelProto) -> BaseRunner:
        whole = {node.name for node in model.graph.node}.issuperset(culprits)
        return onnxruntime_runner(models.off_by(model, 0.05, *culprits) if whole or not together else model)

    return ComparisonCheck(runner=runner)


@pytest.mark.parametrize("mode", ["bisect", "linear"])
@pytest.mark.parametrize("culprit", [{"n1"}, {"n23"}, {"n1", "n2"}, {"n4", "n18"}, {"n3", "n10", "n17", "n22"}])
def test_a_planted_culprit_is_found_alone(mode: str, culprit: set[str]):
    check = Planted(culprit)
    result = reduced(check, mode=mode)

    assert result.verdict == "bad" and names(result) == [culprit]
    assert result.culprit.minimal and result.nodes == 24
    kept_indices = {node.index for node in result.culprit.nodes}
    assert all(tuple(sorted(kept_indices - {index})) in check.tested for index in kept_indices if len(kept_indices) > 1)
    assert len(check.tested) == len(set(check.tested)) == result.checks


def test_checks_are_few_and_hidden_culprits_found():
    assert reduced(Planted({"n101"}), branchy(200)).checks <= 1 + 8 + 1  # the whole, log2(200), the node alone
    rounding = reduced(lambda part: len(part.nodes) < 30 and "n71" not in names_in(part), branchy(96))
    assert names(rounding) == [{"n71"}]
    hidden = reduced(lambda part: "n2" not in names_in(part) or 4 < len(part.nodes) < 24, mode="linear")
    assert names(hidden) == [{"n2"}]


def test_wrong_nodes_of_a_back_end_are_found():
    reduction = reduced(wrong_back_end("n14"))
    assert names(reduction) == [{"n14"}] and reduction.culprit.detail.startswith("accuracy: ")
    assert names(reduced(wrong_back_end("n5", "n14", together=True))) == [{"n5", "n14"}]


def test_gelu_approximation_is_pinned_to_the_fused_nodes():
    def approximating(model: onnx.ModelProto) -> BaseRunner:
        def session() -> ort.InferenceSession:
            options = ort.SessionOptions()
            options.add_session_config_entry("optimization.enable_gelu_approximation", "1")
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

        return OnnxrtRunner(session, "approximating")

    check = ComparisonCheck(runner=approximating, tolerances=Tolerances(atol=5e-5, rtol=1e-5))
    result = reduced(check, models.transformer())

    assert sorted(node.op for node in result.culprit.nodes) == ["Add", "Div", "Erf", "Mul", "Mul"]


def test_passing_models_and_other_failures_are_good():
    result = reduced(ComparisonCheck(runner=onnxruntime_runner))
    assert (result.verdict, result.culprit, result.checks) == ("good", None, 1)
    assert reduced(ComparisonCheck(runner=EngineRunner(BuildConfig())), models.conv_net()).verdict == "good"

    def refuses_n3(model: onnx.ModelProto) -> BaseRunner:
        if any(node.name == "n3" for node in model.graph.node):
            model = models.no_kernel().proto
        return onnxruntime_runner(model)

    accuracy = reduced(ComparisonCheck(runner=refuses_n3))
    assert accuracy.verdict == "good" and accuracy.detail.startswith("build: ")
    assert names(reduced(ComparisonCheck(runner=refuses_n3, failures=("build",)))) == [{"n3"}]


def test_a_check_that_raises():
    def picky(part: SubModel) -> bool:
        if len(part.nodes) in (12, 18):
            raise RuntimeError("no such size")
        return "n7" not in names_in(part)

    steps: list[Step] = []
    assert names(reduced(picky, progress=steps)) == [{"n7"}]
    assert any(s.verdict == "error" and "no such size" in s.detail for s in steps)

    def broken(part: SubModel) -> bool:
        raise ZeroDivisionError("the check itself is broken")

    with pytest.raises(ZeroDivisionError, match="broken"):  # for the whole model
        reduced(broken)
    with pytest.raises(errors.ConfigError, match="'maybe'"):
        reduced(lambda part: "maybe")  # type: ignore[arg-type, return-value]


def test_inputs_outputs_and_check_limit_stop_reduction():
    for options, expected in (
        ({"reduce_inputs": False}, {"n0", "n1", "n2", "n3", "n5"}),
        ({"reduce_outputs": False}, {"n5", "n7", "n8", "n9", "n10", "n11"}),
    ):
        assert names(reduced(Planted({"n5"}), branchy(12), **options)) == [expected]
    result = reduced(Planted({"n4", "n18"}), max_checks=9)
    assert result.checks == 9 and not result.culprit.minimal and {"n4", "n18"} < names(result)[0]


def test_unusable_models_and_options_are_refused():
    for options in ({"max_checks": 0}, {"reduce_inputs": False, "reduce_outputs": False}):
        with pytest.raises(errors.ConfigError):
            ReduceConfig(**options)
    for text, message in (
        ("(float[4] x) => (float[4] y) { a = Add(x, b)\n b = Relu(a)\n y = Neg(b) }", "cycle"),
        ("(float[4] x) => (float[1] y) { y = Constant<value = float[1] {1}>() }", "nothing to reduce"),
    ):
        with pytest.raises(errors.InvalidModelError, match=message):
            reduce(models.model(text), Planted({"n1"}))


def test_models_without_shapes_and_with_subgraphs():
    for make in (models.branch, models.loop, models.data_dependent, models.foldable, models.transformer):
        case = make()
        del case.proto.graph.value_info[:]
        last = case.proto.graph.node[-1].output[0]

        def check(part: SubModel, last: str = last) -> bool:
            return not any(last in node.output for node in part.proto.graph.node)

        assert [last in node.outputs for node in reduced(check, case).culprit.nodes] == [True]


def test_saved_models_run_and_fail_again(tmp_path: Path):
    case = branchy()
    path = case.write(tmp_path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    config = ReduceConfig(output=str(tmp_path / "small.onnx"), min_good=str(tmp_path / "good.onnx"))

    result = reduce(path, wrong_back_end("n14"), config, data=[case.feed])

    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    culprit = result.culprit
    saved = onnx.load(tmp_path / "small.onnx")
    assert saved == culprit.model and [node.name for node in saved.graph.node] == ["n14"]
    [feed] = load_json(culprit.inputs_path)
    assert ort.InferenceSession(saved.SerializeToString()).run(None, feed)[0].shape == (8,)
    assert "n14" not in {n.name for n in onnx.load(tmp_path / "good.onnx").graph.node}
    with pytest.raises(errors.ConfigError, match="would overwrite"):
        reduce(path, Planted({"n1"}), ReduceConfig(output=str(path)))


def test_an_interrupted_reduction_resumes(tmp_path: Path, caplog):
    replay = str(tmp_path / "replay.json")
    check = Planted({"n4", "n18"})
    check.interrupt_after = 5
    with pytest.raises(KeyboardInterrupt):
        reduced(check, save_replay=replay)
    assert f"Interrupted after 5 answers, which are kept in {replay}" in caplog.text

    again = Planted({"n4", "n18"})
    result = reduced(again, load_replay=replay, save_replay=replay)
    assert names(result) == [{"n4", "n18"}] and result.resumed == 5 and result.checks == len(again.tested)
    assert not set(again.tested) & set(check.tested)
    assert reduced(Planted(), load_replay=replay).checks == 0  # which is complete now


def test_replay_of_another_failure_is_removed(tmp_path: Path):
    replay = tmp_path / "replay.json"

    assert reduced(lambda part: "error", save_replay=str(replay)).whole == "error"

    assert not replay.exists()


def test_a_replay_of_another_search_is_refused(tmp_path: Path):
    replay = tmp_path / "replay.json"
    check = Planted({"n1"})
    check.interrupt_after = 3
    with pytest.raises(KeyboardInterrupt):
        reduce(branchy().proto, check, ReduceConfig(save_replay=str(replay)))
    config = ReduceConfig(load_replay=str(replay))
    for label, proto, other, feeds in (
        ("model", branchy(20).proto, Planted({"n1"}), None),
        ("check", branchy().proto, wrong_back_end("n1"), None),
        ("data", branchy().proto, Planted({"n1"}), [{"x": np.zeros(8, np.float32)}]),
    ):
        with pytest.raises(errors.ConfigError, match=f"begun with {label}"):
            reduce(proto, other, config, data=feeds)
    text = replay.read_text()
    assert '"0-23"' in text
    for nodes in ('"0-99999999999"', '"x"', "7", "[]"):
        replay.write_text(text.replace('"0-23"', nodes))
        with pytest.raises(errors.FormatError):
            reduce(branchy().proto, Planted({"n1"}), config)


def test_a_run_gets_numbers_steps_and_culprits():
    case, tracker, steps = branchy(), MemoryTracker(), []
    logged = {"tracker": tracker, "file": "b.onnx", "progress": steps.append}
    result = reduce(case.proto, Planted({"n4", "n18"}), data=[case.feed], **logged)

    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert steps[0].stage == "whole" and steps[0].items == "0-23" and steps[0].size == 24
    assert {step.stage for step in steps} == {"whole", "halves", "outputs", "inputs", "nodes"}
    stored = tracker.load(result.run_id)
    assert (stored.info.experiment, stored.info.name, stored.info.verdict) == ("b", "b reduce", "bad")
    assert stored.info.metrics["reduce", "culprit_nodes"] == 2 and stored.info.params["mode"] == "bisect"
    assert len(stored.read_bytes("reduce/steps.jsonl").splitlines()) == result.checks == len(steps)
    assert onnx.load_from_string(stored.read_bytes("reduce/culprit.onnx")) == result.culprit.model
    assert names(ReduceResult.from_json(stored.read_bytes("reduce/result.json"))) == [{"n4", "n18"}]


def test_dynamic_inputs_get_the_requested_shapes():
    proto, shapes = models.conv_net().proto, set()

    def look(part: SubModel) -> bool:
        shapes.update(feed["image"].shape for feed in part.feeds if "image" in feed)
        return "bn0" not in names_in(part)

    assert names(reduce(proto, look, ReduceConfig(input_shapes={"image": (3, 3, 8, 8)}))) == [{"bn0"}]
    assert shapes == {(3, 3, 8, 8)}
    with pytest.raises(errors.InputError, match="'imge'"):
        reduce(proto, look, ReduceConfig(input_shapes={"imge": (3, 3, 8, 8)}))


def test_unrunnable_models_are_reduced_without_data():
    model = models.model(
        """(float[4] x) => (float[2,2] y) {
            [a] t = Relu(x) [frob] u = custom.Frobnicate(t) [c] v = Relu(u)
            [d] w = Sigmoid(x) [e] z = Add(v, w) [f] y = Reshape(z, s)
        }""",
        {"s": np.array([2, 2])},
    )
    with pytest.raises(errors.ConfigError, match="Sub-models have no values"):
        reduce(model, lambda part: bool(part.feeds), ReduceConfig(inputs="declared"))
    model.graph.value_info.append(helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, [4]))

    with pytest.raises(errors.BackendError, match="Frobnicate"):
        reduce(model, Planted({"frob"}), data=[{"x": models.random(4)}])
    for config in (ReduceConfig(inputs="declared"), ReduceConfig()):
        result = reduce(model, Planted({"frob", "e"}), config)

        assert names(result) == [{"frob", "e"}]
        inputs = {v.name: v.type.tensor_type.shape.dim[0].dim_value for v in result.culprit.model.graph.input}
        assert inputs == {"t": 4, "v": 4, "w": 4}


def test_other_branches_are_frozen_or_inputs(tmp_path: Path) -> None:
    case = branchy()
    check = Planted({"n5", "n7"})
    plain = reduce(case.proto, check).culprit.model
    reduction = reduced(check, output=str(tmp_path / "small.onnx"))
    several = reduce(case.proto, check, data=[case.feed, {"x": models.random(8, seed=5)}]).culprit.model

    for model in (plain, several):  # values that differ between feeds cannot be frozen
        assert {value.name for value in model.graph.input} == {"t3", "t4", "t6"}
    frozen = reduction.culprit.model
    assert [value.name for value in frozen.graph.input] == ["t3"]
    case.proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("t3", "t4", "t6"))
    seen = models.run(case.proto, case.feed)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in frozen.graph.initializer}
    assert all(np.array_equal(weights[name], seen[name]) for name in ("t4", "t6"))
    (feed,) = load_json(Path(reduction.culprit.inputs_path))
    assert list(feed) == ["t3"] and np.array_equal(feed["t3"], seen["t3"])


class Oracle:
    """A test that holds for sets that contain one of some sets; records what it is asked."""

    def __init__(self, *needed: Iterable[int]) -> None:
        self.needed = [frozenset(indices) for indices in needed]
        self.tested: list[Items] = []

    def holds(self, items: Items) -> bool:
        return any(indices <= items for indices in self.needed)

    def __call__(self, items: Items) -> bool:
        self.tested.append(items)
        return self.holds(items)


def numbered(number: int) -> Items:
    return frozenset([number])


def least(holds: Callable[[int], bool], high: int, mode: Mode = "bisect") -> tuple[int, int]:
    """The number found, and how many tests it took."""
    search = Search(lambda items: holds(*items))
    return search.least(numbered, high, mode), search.tests


@given(st.integers(1, 300))
def test_least_finds_the_threshold_with_few_tests(high: int):
    for threshold in {1, (high + 1) // 2, high}:
        lowest, tests = least(lambda n, t=threshold: n >= t, high)
        assert lowest == threshold and tests <= math.ceil(math.log2(high)) + 1
        assert least(lambda n, t=threshold: n >= t, high, "linear")[0] == threshold


def test_least_of_a_test_that_is_not_monotone():
    holding = {3, 4, 9, 10, 11, 15}
    lowest, _ = least(lambda n: n in holding, 15)
    assert lowest in holding and lowest - 1 not in holding
    assert least(lambda n: n in {3, 15}, 15, "linear")[0] == 3


def test_tests_are_limited_and_never_repeated():
    oracle = Oracle({2})
    search = Search(oracle)
    assert [search.holds([i]) for i in (1, 2, 1)] == [False, True, False]
    assert search.holds([2]) and not search.holds([]) and len(oracle.tested) == search.tests == 2

    search = Search(Oracle({0, 50, 99}), max_tests=7)
    with pytest.raises(OutOfTestsError):
        search.smallest(range(100))
    assert search.tests == 7


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_halving_ends_at_the_needed_number(case: tuple[int, int]):
    length, needed = case
    search = Search(Oracle({needed}))

    assert search.halve(range(length)) == (needed, needed + 1)
    assert search.tests <= math.ceil(math.log2(length)) + 1


@given(st.sets(st.integers(0, 63), min_size=2, max_size=5))
def test_halving_ends_where_neither_half_holds(needed: set[int]):
    oracle = Oracle(needed)
    low, high = Search(oracle).halve(range(64))

    middle = (low + high) // 2
    halves = [frozenset(range(*ends)) for ends in ((low, high), (low, middle), (middle, high))]
    assert list(map(oracle.holds, halves)) == [True, False, False]


def test_halving_finds_a_number_in_long_ranges():
    assert Search(lambda items: 133 in items or len(items) > 110).halve(range(202)) == (133, 134)


@given(st.sets(st.integers(0, 59), min_size=1, max_size=6), st.integers(1, 20))
def test_smallest_finds_exactly_what_is_needed(needed: set[int], padding: int):
    assert Search(Oracle(needed)).smallest(range(max(needed) + padding)) == sorted(needed)


@given(st.sets(st.frozensets(st.integers(0, 6)), max_size=40))
def test_smallest_is_minimal_for_any_test(holding: set[Items]):
    def holds(items: Items) -> bool:
        return items in holding or len(items) == 7

    smallest_set = frozenset(Search(holds).smallest(range(7)))

    assert holds(smallest_set)
    assert not any(holds(smallest_set - {item}) for item in smallest_set if len(smallest_set) > 1)


@pytest.mark.parametrize(
    ("needed", "max_tests"), [({3, 90, 199}, 60), (set(range(0, 200, 4)), 500), (set(range(200)), 820)]
)
def test_smallest_takes_few_tests(needed: set[int], max_tests: int):
    search = Search(Oracle(needed))
    assert search.smallest(range(200)) == sorted(needed)
    assert search.tests < max_tests
