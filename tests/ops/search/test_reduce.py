"""Reducing failing models: planted bugs are found, nothing more is left, and nothing is asked twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from tests import models
from tests.waiting import until
from trtops import errors
from trtops.backend.base import BaseRunner
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.comparator.report import Tolerances
from trtops.json import load_json
from trtops.ops.evaluation.submodel import CheckOutcome, ComparisonCheck, EngineRunner, onnxruntime_runner
from trtops.ops.search.reduce import ReduceResult, reduce
from trtops.ops.search.reduce_journal import Step
from trtops.ops.search.reduce_search import ReduceConfig
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


class Planted:
    """A check that fails iff one of some sets of nodes is whole in the sub-model."""

    def __init__(self, *culprits: set[str]) -> None:
        self.culprits = culprits
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, part: SubModel) -> bool:
        self.asked.append(part.nodes)
        names = {node.name for node in part.proto.graph.node}
        return not any(culprit <= names for culprit in self.culprits)


def names(result: ReduceResult) -> list[set[str]]:
    return [{node.name for node in culprit.nodes} for culprit in result.culprits]


def wrong_back_end(*culprits: str, together: bool = False) -> ComparisonCheck:
    """ONNX Runtime with an error of 0.05 planted into the culprits' outputs; or only where it gets them together."""

    def runner(model: onnx.ModelProto) -> BaseRunner:
        wrong = onnx.ModelProto()
        wrong.CopyFrom(model)
        found = [node for node in wrong.graph.node if node.name in culprits]
        if not together or len(found) == len(culprits):
            for node in found:
                right = node.output[0]
                node.output[0] = right + "_right"
                wrong.graph.initializer.append(numpy_helper.from_array(np.float32(0.05), right + "_error"))
                wrong.graph.node.append(helper.make_node("Add", [right + "_right", right + "_error"], [right]))
        return onnxruntime_runner(wrong)

    return ComparisonCheck(runner=runner)


@pytest.mark.parametrize("mode", ["bisect", "linear"])
@pytest.mark.parametrize("culprit", [{"n0"}, {"n9"}, {"n23"}, {"n1", "n2"}, {"n4", "n18"}, {"n3", "n10", "n17", "n22"}])
def test_a_planted_culprit_is_found_whole_and_alone(mode: str, culprit: set[str]):
    case = branchy()

    result = reduce(case.proto, Planted(culprit), ReduceConfig(mode=mode), feeds=[case.feed])

    assert result.verdict == "bad" and names(result) == [culprit]
    assert result.culprits[0].minimal and result.nodes == 24


def test_every_result_is_1_minimal_and_every_set_without_one_node_was_really_checked():
    case, culprit = branchy(), {"n2", "n7", "n8", "n20"}
    check = Planted(culprit)

    result = reduce(case.proto, check, feeds=[case.feed])

    kept = {node.index for node in result.culprits[0].nodes}
    for index in kept:
        assert tuple(sorted(kept - {index})) in check.asked


def test_bisecting_asks_a_logarithmic_number_of_questions_and_none_of_them_twice():
    case, check = branchy(200), Planted({"n101"})

    result = reduce(case.proto, check, feeds=[case.feed])

    assert len(check.asked) == len(set(check.asked)) == result.checks
    assert result.checks <= 1 + 8 + 1  # the whole, log2(200), the node alone


def test_rounding_that_adds_up_along_a_deep_model_does_not_hide_the_one_wrong_node():
    case = branchy(96)

    def sums_up(part: SubModel) -> bool:
        return len(part.nodes) < 30 and "n71" not in {node.name for node in part.proto.graph.node}

    result = reduce(case.proto, sums_up, feeds=[case.feed])

    assert names(result) == [{"n71"}]


@pytest.mark.parametrize("culprit", ["n5", "n14"])
def test_a_node_that_a_back_end_computes_wrongly_is_found_by_comparing_with_the_real_values(culprit: str):
    case = branchy()

    result = reduce(case.proto, wrong_back_end(culprit), feeds=[case.feed])

    assert names(result) == [{culprit}]
    assert result.culprits[0].detail.startswith("accuracy: ")


def test_two_nodes_that_are_wrong_only_together_are_found_though_they_lie_on_different_branches():
    case = branchy()

    result = reduce(case.proto, wrong_back_end("n5", "n14", together=True), feeds=[case.feed])

    assert names(result) == [{"n5", "n14"}]


@pytest.mark.parametrize(
    "culprits",
    [
        [{"n5"}, {"n14"}],
        [{"n0"}, {"n23"}, {"n11"}],
        [{"n1", "n9"}, {"n1", "n20"}],
        [{"n2", "n3"}, {"n3", "n4"}, {"n15"}],
    ],
)
def test_every_culprit_is_found_where_all_are_asked_for_also_where_they_share_nodes(culprits: list[set[str]]):
    case = branchy()

    result = reduce(case.proto, Planted(*culprits), ReduceConfig(find="all"), feeds=[case.feed])

    assert sorted(map(sorted, names(result))) == sorted(map(sorted, culprits))


def test_independent_wrong_nodes_are_all_found_since_right_values_go_in_behind_those_found_before():
    case = branchy()

    result = reduce(case.proto, wrong_back_end("n5", "n14"), ReduceConfig(find="all"), feeds=[case.feed])

    assert sorted(map(sorted, names(result))) == [["n14"], ["n5"]]


def test_gelu_approximation_of_onnxruntime_is_pinned_to_the_nodes_that_it_fuses():
    case = models.transformer()

    def approximating(model: onnx.ModelProto) -> BaseRunner:
        def session() -> ort.InferenceSession:
            options = ort.SessionOptions()
            options.add_session_config_entry("optimization.enable_gelu_approximation", "1")
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

        return OnnxrtRunner(session, "approximating")

    check = ComparisonCheck(runner=approximating, tolerances=Tolerances(atol=5e-5, rtol=1e-5))
    result = reduce(case.proto, check, feeds=[case.feed])

    ops = sorted(node.op for node in result.culprits[0].nodes)
    assert ops == ["Add", "Div", "Erf", "Mul", "Mul"]


def test_a_model_that_does_not_fail_is_a_result_and_not_an_error():
    case = branchy()

    result = reduce(case.proto, ComparisonCheck(runner=onnxruntime_runner), feeds=[case.feed])

    assert (result.verdict, result.culprits, result.checks) == ("good", (), 1)


def test_failures_of_another_kind_than_the_one_meant_do_not_count():
    case = branchy()

    def refuses_n3(model: onnx.ModelProto) -> BaseRunner:
        if any(node.name == "n3" for node in model.graph.node):
            model = models.no_kernel().proto
        return onnxruntime_runner(model)

    accuracy = reduce(case.proto, ComparisonCheck(runner=refuses_n3), feeds=[case.feed])
    build = reduce(case.proto, ComparisonCheck(runner=refuses_n3, failures=("build",)), feeds=[case.feed])

    assert accuracy.verdict == "good" and accuracy.detail.startswith("build: ")
    assert names(build) == [{"n3"}]


def test_a_check_that_raises_for_a_part_answers_error_and_one_that_raises_for_the_whole_is_heard():
    case = branchy()

    def picky(part: SubModel) -> bool:
        if len(part.nodes) in (12, 18):
            raise RuntimeError("no such size")
        return not any(node.name == "n7" for node in part.proto.graph.node)

    steps: list[Step] = []
    result = reduce(case.proto, picky, feeds=[case.feed], progress=steps.append)
    assert names(result) == [{"n7"}]
    assert any(s.verdict == "error" and "no such size" in s.detail for s in steps)

    def broken(part: SubModel) -> bool:
        raise ZeroDivisionError("the check itself is broken")

    with pytest.raises(ZeroDivisionError, match="broken"):
        reduce(case.proto, broken, feeds=[case.feed])


def test_a_check_may_answer_in_words_and_nothing_else_than_the_known_ones():
    assert CheckOutcome.of("error").verdict == "error"
    with pytest.raises(errors.ConfigError, match="'maybe'"):
        reduce(branchy().proto, lambda part: "maybe")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"reduce_inputs": False}, {"n0", "n1", "n2", "n3", "n5"}),
        ({"reduce_outputs": False}, {"n5", "n7", "n8", "n9", "n10", "n11"}),
    ],
)
def test_the_models_own_inputs_or_outputs_stay_where_asked(options: dict[str, bool], expected: set[str]):
    case = branchy(12)

    result = reduce(case.proto, Planted({"n5"}), ReduceConfig(**options), feeds=[case.feed])

    assert names(result) == [expected]


def test_linear_search_finds_a_small_failure_that_larger_sub_models_hide():
    case = branchy()

    def hidden(part: SubModel) -> bool:
        return "n2" not in {n.name for n in part.proto.graph.node} or 4 < len(part.nodes) < 24

    linear = reduce(case.proto, hidden, ReduceConfig(mode="linear"), feeds=[case.feed])

    assert names(linear) == [{"n2"}]


def test_what_is_saved_runs_and_fails_again_and_the_model_file_is_untouched(tmp_path: Path):
    case = branchy()
    path = case.write(tmp_path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    config = ReduceConfig(output=str(tmp_path / "small.onnx"), min_good=str(tmp_path / "good.onnx"), find="all")

    result = reduce(path, wrong_back_end("n5", "n14"), config, feeds=[case.feed])

    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [Path(c.path or "").name for c in result.culprits] == ["small.onnx", "small_2.onnx"]
    for culprit in result.culprits:
        saved = onnx.load(culprit.path)
        assert saved == culprit.model and len(saved.graph.node) == 1
        [feed] = load_json(culprit.inputs_path)
        session = ort.InferenceSession(saved.SerializeToString())
        assert session.run(None, feed)[0].shape == (8,)
    assert not {n.name for n in onnx.load(tmp_path / "good.onnx").graph.node} & {"n5", "n14"}


def test_the_model_itself_is_never_taken_as_an_output_path(tmp_path: Path):
    path = branchy().write(tmp_path)

    with pytest.raises(errors.ConfigError, match="the model itself"):
        reduce(path, Planted({"n1"}), ReduceConfig(output=str(path)))


def test_several_sub_models_are_checked_at_a_time_with_the_same_result():
    case, at_once, most, lock, asked = branchy(), 0, 0, threading.Lock(), []
    two_met = threading.Event()

    def slow(part: SubModel) -> bool:
        nonlocal at_once, most
        with lock:
            asked.append(part.nodes)
            at_once += 1
            most = max(most, at_once)
            if at_once == 2:
                two_met.set()
        if len(asked) > 1:  # the first check, of the whole model, is alone
            two_met.wait()
        time.sleep(0.01 * (len(part.nodes) % 3))
        with lock:
            at_once -= 1
        return not {"n3", "n13"} <= {node.name for node in part.proto.graph.node}

    result = reduce(case.proto, slow, ReduceConfig(width=3), feeds=[case.feed])

    assert names(result) == [{"n3", "n13"}]
    assert 1 < most <= 3
    assert len(asked) == len(set(asked))


def test_a_flow_may_bring_its_own_way_to_check_several_at_a_time():
    case, batches = branchy(), []

    with ThreadPoolExecutor(2) as pool:

        def evaluate(function, candidates):
            batches.append(len(candidates))
            return pool.map(function, candidates)

        result = reduce(case.proto, Planted({"n6", "n19"}), ReduceConfig(width=2), feeds=[case.feed], evaluate=evaluate)

    assert names(result) == [{"n6", "n19"}]
    assert max(batches) == 2


def test_a_search_that_may_ask_no_more_gives_the_smallest_failing_part_so_far_and_says_so():
    case = branchy()

    result = reduce(case.proto, Planted({"n4", "n18"}), ReduceConfig(max_checks=9), feeds=[case.feed])

    [culprit] = result.culprits
    assert result.checks == 9 and not culprit.minimal
    assert {"n4", "n18"} < {node.name for node in culprit.nodes}


def test_a_finished_reduction_is_read_from_its_journal_without_asking_anything(tmp_path: Path):
    case, config = branchy(), ReduceConfig(journal=str(tmp_path / "journal.jsonl"))
    first = reduce(case.proto, Planted({"n4", "n18"}), config, feeds=[case.feed])
    again = Planted({"n4", "n18"})

    second = reduce(case.proto, again, config, feeds=[case.feed])

    assert again.asked == [] and second.checks == 0 and second.resumed == first.checks
    assert names(second) == names(first)


class Interrupted(Planted):
    """A check during which somebody presses Ctrl-C, once it has answered so often."""

    after: int | None = None

    def __call__(self, part: SubModel) -> bool:
        if len(self.asked) == self.after:
            raise KeyboardInterrupt
        return super().__call__(part)


def test_answers_are_kept_beside_the_output_until_a_reduction_ends(tmp_path: Path, caplog):
    case, journal = branchy(), tmp_path / "small_journal.jsonl"
    config = ReduceConfig(output=str(tmp_path / "small.onnx"))
    for _ in range(2):  # the second begins anew
        check = Interrupted({"n4", "n18"})
        check.after = 5
        with pytest.raises(KeyboardInterrupt):
            reduce(case.proto, check, config, feeds=[case.feed])
        assert journal.read_text().count('"verdict"') == 5
        assert f"Interrupted after 5 answers, which are kept in {journal}" in caplog.text
    aside = tmp_path / "small_journal_before.jsonl"
    assert f"interrupted after 5 answers, which are now in {aside}" in caplog.text
    assert (
        reduce(case.proto, Interrupted({"n4", "n18"}), ReduceConfig(journal=str(aside)), feeds=[case.feed]).resumed == 5
    )

    going_on = ReduceConfig(output=config.output, journal=str(journal))
    assert reduce(case.proto, Interrupted({"n4", "n18"}), going_on, feeds=[case.feed]).resumed == 5
    assert journal.exists()

    assert reduce(case.proto, Interrupted({"n4", "n18"}), config, feeds=[case.feed]).resumed == 0
    assert not journal.exists()


def test_a_file_that_is_no_journal_is_not_written_over(tmp_path: Path):
    case, diary = branchy(), tmp_path / "small_journal.jsonl"
    diary.write_text("a diary\n")

    with pytest.raises(errors.FormatError, match="not a journal of a reduction"):
        reduce(case.proto, Planted({"n4"}), ReduceConfig(output=str(tmp_path / "small.onnx")), feeds=[case.feed])

    assert diary.read_text() == "a diary\n"


def test_a_line_cut_short_in_the_journal_is_asked_again_and_nothing_else(tmp_path: Path):
    case, journal = branchy(), tmp_path / "journal.jsonl"
    config = ReduceConfig(journal=str(journal))
    first = reduce(case.proto, Planted({"n4", "n18"}), config, feeds=[case.feed])
    journal.write_bytes(journal.read_bytes()[:-10])
    again = Planted({"n4", "n18"})

    second = reduce(case.proto, again, config, feeds=[case.feed])

    assert len(again.asked) == 1 and names(second) == names(first)
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_journal_of_another_model_or_check_is_refused_and_so_is_another_kind_of_file(tmp_path: Path):
    journal = tmp_path / "journal.jsonl"
    config = ReduceConfig(journal=str(journal))
    reduce(branchy().proto, Planted({"n1"}), config)

    with pytest.raises(errors.ConfigError, match="begun with model"):
        reduce(branchy(20).proto, Planted({"n1"}), config)
    with pytest.raises(errors.ConfigError, match="begun with check"):
        reduce(branchy().proto, wrong_back_end("n1"), config)
    with pytest.raises(errors.ConfigError, match="begun with data"):
        reduce(branchy().proto, Planted({"n1"}), config, feeds=[{"x": np.zeros(8, np.float32)}])
    header = journal.read_text().splitlines()[0]
    answer = json.loads(journal.read_text().splitlines()[1])
    for line in (
        '{"nodes": []}',
        "[]",
        *(json.dumps({**answer, "nodes": n}) for n in ([99], "0-23", 7)),
    ):
        journal.write_text(f"{header}\n{line}\n")
        with pytest.raises(errors.FormatError):
            reduce(branchy().proto, Planted({"n1"}), config)
    journal.write_text("a diary\n")
    with pytest.raises(errors.FormatError, match="journal"):
        reduce(branchy().proto, Planted({"n1"}), config)
    assert journal.read_text() == "a diary\n"


KILLED = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, {root!r})
    import importlib.util
    spec = importlib.util.spec_from_file_location("test_reduce", {file!r})
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Slow(module.Planted):
        def __call__(self, part):
            with open({asked!r}, "a") as file:
                print(*part.nodes, file=file)
            if len(self.asked) == 7 and {hang}:
                time.sleep(3600)
            return super().__call__(part)

    case = module.branchy()
    config = module.ReduceConfig(journal={journal!r})
    Slow.__module__ = "planted"
    result = module.reduce(case.proto, Slow({{"n4", "n18"}}), config, feeds=[case.feed])
    print(sorted(module.names(result)[0]), result.resumed)
"""


def killed_script(tmp_path: Path, *, hang: bool) -> str:
    return textwrap.dedent(KILLED).format(
        root=str(Path(__file__).parents[2]),
        file=__file__,
        asked=str(tmp_path / "asked.txt"),
        journal=str(tmp_path / "journal.jsonl"),
        hang=hang,
    )


def test_a_reduction_that_was_killed_goes_on_where_it_was_and_repeats_only_the_check_that_was_cut_off(tmp_path: Path):
    asked = tmp_path / "asked.txt"
    process = subprocess.Popen([sys.executable, "-c", killed_script(tmp_path, hang=True)])
    until(lambda: asked.exists() and len(asked.read_text().splitlines()) == 8, while_alive=process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    done = subprocess.run(
        [sys.executable, "-c", killed_script(tmp_path, hang=False)], check=True, capture_output=True, text=True
    )

    assert done.stdout.split("]")[0] == "['n18', 'n4'"
    assert done.stdout.split()[-1] == "7"
    questions = asked.read_text().splitlines()
    assert questions.count(questions[7]) == 2  # the one that was cut off
    assert len(set(questions)) == len(questions) - 1


def test_steps_tell_how_many_nodes_are_left_what_was_said_and_how_long_it_took():
    case, steps = branchy(), []

    reduce(case.proto, Planted({"n4", "n18"}), feeds=[case.feed], progress=steps.append)

    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert steps[0].stage == "whole" and steps[0].nodes == tuple(range(24))
    assert {step.stage for step in steps} == {"whole", "halves", "outputs", "inputs", "nodes"}
    assert all(step.seconds >= 0 and step.verdict in ("pass", "fail") for step in steps)


def test_a_run_gets_the_options_the_numbers_every_step_and_the_culprit_as_a_model():
    case, tracker = branchy(), MemoryTracker()

    result = reduce(case.proto, Planted({"n4", "n18"}), feeds=[case.feed], tracker=tracker, file="branchy.onnx")

    stored = tracker.load(result.run_id)
    assert (stored.info.experiment, stored.info.name, stored.info.verdict) == ("branchy", "branchy reduce", "bad")
    assert stored.info.metrics["reduce", "culprit_nodes"] == 2
    assert stored.info.params["mode"] == "bisect"
    assert len(stored.read_bytes("reduce/steps.jsonl").splitlines()) == result.checks
    assert onnx.load_from_string(stored.read_bytes("reduce/culprit_1.onnx")) == result.culprits[0].model
    assert names(ReduceResult.from_json(stored.read_bytes("reduce/result.json"))) == [{"n4", "n18"}]


def test_dynamic_inputs_take_the_shapes_asked_for():
    case, shapes = models.conv_net(), set()

    def look(part: SubModel) -> bool:
        shapes.update(feed["image"].shape for feed in part.feeds if "image" in feed)
        return "bn0" not in {node.name for node in part.proto.graph.node}

    result = reduce(case.proto, look, ReduceConfig(input_shapes={"image": (3, 3, 8, 8)}))

    assert names(result) == [{"bn0"}] and shapes == {(3, 3, 8, 8)}
    with pytest.raises(errors.UnknownInputError, match="'imge'"):
        reduce(case.proto, look, ReduceConfig(input_shapes={"imge": (3, 3, 8, 8)}))


def test_a_journal_in_use_is_left_alone(tmp_path: Path):
    case, config = branchy(), ReduceConfig(journal=str(tmp_path / "journal.jsonl"))
    refused = []

    def check(part: SubModel) -> bool:
        with pytest.raises(errors.ConfigError, match="in use") as caught:
            reduce(case.proto, Planted({"n1"}), config, feeds=[case.feed])
        refused.append(caught.value)
        return True

    reduce(case.proto, check, config, feeds=[case.feed])

    assert len(refused) == 1


def with_custom_op() -> onnx.ModelProto:
    return models.model(
        """(float[4] x) => (float[2,2] y) {
            [a] t = Relu(x)
            [frob] u = custom.Frobnicate(t)
            [c] v = Relu(u)
            [d] w = Sigmoid(x)
            [e] z = Add(v, w)
            [f] y = Reshape(z, s)
        }""",
        {"s": np.array([2, 2])},
    )


def test_models_that_onnxruntime_does_not_run_are_reduced_without_data_where_asked():
    model = with_custom_op()
    model.graph.value_info.append(helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, [4]))

    with pytest.raises(errors.BackendError, match="Frobnicate"):
        reduce(model, Planted({"frob"}))
    result = reduce(model, Planted({"frob", "e"}), ReduceConfig(inputs="declared"))

    assert names(result) == [{"frob", "e"}]
    inputs = {v.name: v.type.tensor_type.shape.dim[0].dim_value for v in result.culprits[0].model.graph.input}
    assert inputs == {"t": 4, "v": 4, "w": 4}


def test_a_type_that_nothing_declares_is_named():
    with pytest.raises(errors.ConfigError, match="no values for sub-models"):
        reduce(with_custom_op(), lambda part: bool(part.feeds), ReduceConfig(inputs="declared"))


def test_random_inputs_are_given_where_asked():
    case = branchy()
    real, random = [], []

    def remember(into: list[np.ndarray]):
        def check(part: SubModel) -> bool:
            if part.inputs == ("t11",):
                into.append(part.feeds[0]["t11"])
            return "n13" not in {node.name for node in part.proto.graph.node}

        return check

    reduce(case.proto, remember(real), feeds=[case.feed])
    reduce(case.proto, remember(random), ReduceConfig(inputs="random"), feeds=[case.feed])

    assert real and random and not np.array_equal(real[0], random[0])


def test_engines_of_a_back_end_are_built_from_sub_models():
    case = models.conv_net()

    result = reduce(case.proto, ComparisonCheck(runner=EngineRunner(BuildConfig())), feeds=[case.feed])

    assert result.verdict == "good"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(float[4] x) => (float[4] y) { a = Add(x, b)\n b = Relu(a)\n y = Neg(b) }", "cycle"),
        ("(float[4] x) => (float[4] y) { y = Add(x, ghost) }", "ghost"),
        ("(float[4] x) => (float[4] y) { y = Relu(x)\n y = Neg(x) }", "twice"),
        ("(float[4] x) => (float[1] y) { y = Constant<value = float[1] {1}>() }", "nothing to reduce"),
    ],
)
def test_models_that_contradict_themselves_are_refused_by_name(text: str, message: str):
    with pytest.raises(errors.InvalidModelError, match=message):
        reduce(models.model(text), Planted({"n1"}))


def test_models_without_any_declared_shape_and_with_subgraphs_are_reduced_all_the_same():
    for make in (models.branch, models.loop, models.data_dependent, models.foldable, models.transformer):
        case = make()
        del case.proto.graph.value_info[:]
        last = case.proto.graph.node[-1].output[0]

        def check(part: SubModel, last: str = last) -> bool:
            return not any(last in node.output for node in part.proto.graph.node)

        result = reduce(case.proto, check, feeds=[case.feed])

        assert [last in node.outputs for node in result.culprits[0].nodes] == [True]


def mutate(model: onnx.ModelProto, random: Random) -> None:
    """Break something, maybe."""
    graph, node = model.graph, random.choice(list(model.graph.node))
    tensors = ["ghost", "", *(name for n in graph.node for name in n.output)]
    kind = random.randrange(9)
    if kind == 0:
        node.op_type = random.choice(
            ["Relu", "Foo", "", "Add", "Loop", "If", "Constant", "Shape", "Identity", "SequenceAt"]
        )
    elif kind == 1 and node.input:
        node.input[random.randrange(len(node.input))] = random.choice(tensors)
    elif kind == 2 and node.output:
        node.output[0] = random.choice(tensors)
    elif kind == 3 and node.attribute:
        del node.attribute[0]
    elif kind == 4 and graph.initializer:
        random.choice(list(graph.initializer)).dims.append(3)
    elif kind == 5 and graph.initializer:
        del graph.initializer[0]
    elif kind == 6:
        model.opset_import[0].version = random.choice([1, 7, 9, 13, 21, 99])
    elif kind == 7:
        graph.input[0].type.tensor_type.elem_type = random.choice([1, 7, 9, 16, 8, 0])
    else:
        node.domain = random.choice(["custom", "com.microsoft", "ai.onnx.ml"])


@pytest.mark.parametrize("seed", range(5))
def test_broken_models_are_reduced_or_refused_by_an_error_of_ours(seed: int):
    random = Random(seed)
    for _ in range(40):
        case = random.choice(models.ALL)()
        for _ in range(random.choice([1, 1, 2])):
            mutate(case.proto, random)
        config = ReduceConfig(inputs=random.choice(["real", "random", "declared"]), find="all", max_checks=40)
        with contextlib.suppress(errors.TrtopsError):
            reduce(case.proto, Planted({case.proto.graph.node[-1].name}), config, feeds=[case.feed])


@pytest.mark.parametrize(
    "options", [{"width": 0}, {"max_checks": 0}, {"reduce_inputs": False, "reduce_outputs": False}]
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, object]):
    with pytest.raises(errors.ConfigError):
        ReduceConfig(**options)  # type: ignore[arg-type]


def test_what_other_branches_bring_is_frozen_where_data_is_given_and_else_an_input(tmp_path: Path) -> None:
    case = branchy()
    check = Planted({"n5", "n7"})

    plain = reduce(case.proto, check).culprits[0].model
    given = reduce(case.proto, check, feeds=[case.feed], config=ReduceConfig(output=str(tmp_path / "small.onnx")))
    asked = reduce(case.proto, check, ReduceConfig(branches="inputs"), feeds=[case.feed]).culprits[0].model
    several = reduce(case.proto, check, feeds=[case.feed, {"x": models.random(8, seed=5)}]).culprits[0].model

    for model in (plain, asked, several):  # values that differ between feeds cannot be frozen
        assert {value.name for value in model.graph.input} == {"t3", "t4", "t6"}
    frozen = given.culprits[0].model
    assert [value.name for value in frozen.graph.input] == ["t3"]
    whole = onnx.ModelProto()
    whole.CopyFrom(case.proto)
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("t3", "t4", "t6"))
    seen = ort.InferenceSession(whole.SerializeToString()).run(["t3", "t4", "t6"], case.feed)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in frozen.graph.initializer}
    assert np.array_equal(weights["t4"], seen[1]) and np.array_equal(weights["t6"], seen[2])
    assert given.culprits[0].inputs_path is not None
    (feed,) = load_json(Path(given.culprits[0].inputs_path))
    assert list(feed) == ["t3"] and np.array_equal(feed["t3"], seen[0])


def test_frozen_branches_need_real_values() -> None:
    with pytest.raises(errors.ConfigError, match="Branches can be frozen at real values only"):
        ReduceConfig(branches="frozen", inputs="random")
