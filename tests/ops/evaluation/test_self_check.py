"""Self-checks find faults that a comparison at batch 1 misses, and raise no false alarm on sound engines."""

import contextlib
import itertools
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests import correct_engines, models, zoo
from tests.long_runs import LONG, amount
from tests.models import Case
from trtops import errors
from trtops.backend.base import BuildRequest
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.runner import OnnxrtRunner, reference_outputs, reference_runner
from trtops.backend.runner import BaseRunner, Feed
from trtops.comparator import compare_outputs
from trtops.comparator.results import IterationResult, RunResults
from trtops.metadata import TensorMetadata
from trtops.ops.auditing.rebuilding import Outputs as Rebuilt
from trtops.ops.auditing.rebuilding import _grade_outputs
from trtops.ops.comparing.compare import CompareConfig, compare
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.limits import default_tolerances
from trtops.ops.evaluation.self_check import RELATIONS, RelationName, SelfCheck, accepts_nan, check_repeated, self_check
from trtops.spec import BuildConfig, OnnxRuntimeOptions, Precision
from trtops.tracking.memory import MemoryTracker

Outputs = dict[str, Any]
Infer = Callable[[Feed], Outputs]
Fault = Callable[["Engine", Feed, Infer], Outputs]


class Engine(BaseRunner):
    """An engine of ONNX Runtime with a fault. Contexts share ``kept``; ``first`` is the first of them."""

    def __init__(self, session: Any, fault: Fault, first: "Engine | None" = None) -> None:
        super().__init__("engine")
        self.fault, self.session, self.first = fault, session, first
        self.real = OnnxrtRunner(session)
        self.kept: dict[str, Any] = {} if first is None else first.kept
        self.own: dict[str, Any] = {}  # of this context
        self.calls = 0
        self.contexts = threading.Barrier(2)

    def activate_impl(self) -> None:
        self.real.activate()
        if self.first is not None:
            self.kept["at once"] = self.contexts

    def deactivate_impl(self) -> None:
        self.real.deactivate()
        self.kept.pop("at once", None)

    def infer_impl(self, feed_dict: Feed) -> Outputs:
        self.calls += 1
        outputs = self.fault(self, feed_dict, lambda feed: {n: np.array(a) for n, a in self.real.infer(feed).items()})
        self.inference_time = self.real.inference_time
        return outputs

    def get_input_metadata_impl(self) -> TensorMetadata:
        return self.real.get_input_metadata()

    def second_context(self) -> "Engine":
        return Engine(self.session, self.fault, self)

    def meet(self) -> None:
        """Wait until the other context infers as well, if there is one that does."""
        if "at once" in self.kept:
            with contextlib.suppress(threading.BrokenBarrierError):
                self.kept["at once"].wait(timeout=0.5)
                return
            self.kept["at once"].reset()


def rows(feed: Feed) -> int:
    return int(next(iter(feed.values())).shape[0])


def changed(outputs: Outputs, change: Callable[[Any], Any]) -> Outputs:
    """Outputs with a change in the last one."""
    name = list(outputs)[-1]
    return {**outputs, name: change(outputs[name])}


def on_rows(wrong: Callable[[int], list[int]], scale: float = 1.1) -> Fault:
    """Some rows of the last output are wrong, by the size of the batch."""

    def fault(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
        def change(array: Any) -> Any:
            for row in wrong(rows(feed)):
                array[row] = (array[row] * scale + (scale - 1)).astype(array.dtype)
            return array

        return changed(infer(feed), change)

    return fault


def on_batch(change: Callable[[Any], Any]) -> Fault:
    return lambda engine, feed, infer: changed(infer(feed), change)


def on_calls(change: Callable[[Any, int], Any]) -> Fault:
    return lambda engine, feed, infer: changed(infer(feed), lambda array: change(array, engine.calls))


def stale(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """The results of the inference before, if there was one of the same shape."""
    outputs = infer(feed)
    before = engine.kept.get(rows(feed), outputs)
    engine.kept[rows(feed)] = outputs
    return before


def stuck(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """The results of the first inference of the same shape."""
    return engine.kept.setdefault(rows(feed), infer(feed))


def contaminated(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """Scratch memory of the inference before is multiplied by zero, as the padding of a kernel."""
    outputs = infer(feed)
    scratch = engine.kept.get("scratch", np.float32(0))
    engine.kept["scratch"] = np.float32(np.sum(next(a for a in feed.values() if a.dtype == np.float32)))
    with np.errstate(invalid="ignore"):
        return changed(outputs, lambda array: array + 0 * scratch)


def ranged(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """Results are rounded to steps of the inference before."""
    outputs = infer(feed)
    step = engine.kept.get("step")
    engine.kept["step"] = max(float(np.nanmax(np.abs(array))) for array in outputs.values()) / 127
    return outputs if step is None else changed(outputs, lambda a: np.asarray(np.round(a / step) * step, a.dtype))


def left_over(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """After a larger batch the last value of each result is still that of the larger one."""
    outputs = infer(feed)
    before, engine.own["before"] = engine.own.get("before"), outputs
    name = list(outputs)[-1]
    if before is not None and before[name].shape[0] > outputs[name].shape[0]:
        outputs = {**outputs, name: np.array(outputs[name])}
        outputs[name].reshape(-1)[-1] = before[name].reshape(-1)[-1] + 1
    return outputs


def grown(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """After a larger shape the workspace is laid out for it, and stays so."""
    engine.own["largest"] = max(engine.own.get("largest", 0), rows(feed))
    factor = 1 + 0.1 * (rows(feed) < engine.own["largest"])
    return changed(infer(feed), lambda array: np.asarray(array * factor, array.dtype))


def resized(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """The inference after one of any other shape is wrong."""
    before, engine.own["shape"] = engine.own.get("shape"), rows(feed)
    wrong = before is not None and before > rows(feed)
    return changed(infer(feed), lambda array: array + np.float32(0.3) if wrong else array)


def shared_output(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """Both contexts write to the same output buffer."""
    engine.kept["output"] = infer(feed)
    engine.meet()
    return engine.kept["output"]


def shared_input(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """Both contexts read the same input buffer."""
    engine.kept["input"] = feed
    engine.meet()
    return infer(engine.kept["input"])


def shared_scratch(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """Both contexts add to the same accumulator."""
    outputs = infer(feed)
    engine.kept["sum"] = [*engine.kept.get("sum", []), 0.01] if "at once" in engine.kept else [0.01]
    engine.meet()
    extra = np.float32(sum(engine.kept["sum"]) - 0.01)
    return changed(outputs, lambda array: np.asarray(array + extra, array.dtype))


def lost_second(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """A second context has no memory of its own, and returns zeros."""
    return changed(infer(feed), lambda array: array if engine.first is None else np.zeros_like(array))


def first_by_second(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    """Another context that is open disturbs the first."""
    wrong = "at once" in engine.kept and engine.first is None
    return changed(infer(feed), lambda array: array * np.float32(1.2) if wrong else array)


def refused(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    if rows(feed) > 3:
        raise errors.InferenceError("no kernel for this size")
    return infer(feed)


def neighbours(array: Any) -> Any:
    """Each row gets a little of the one before it."""
    return np.asarray(array + 0.05 * (np.roll(array, 1, 0) - array), array.dtype)


def mlp() -> Case:
    weights = {"w0": models.random(12, 16, seed=1, scale=0.4), "w1": models.random(16, 6, seed=2, scale=0.4)}
    proto = models.model(f"{MLP} s = Identity(x) {HEAD} }}", weights)
    return Case(proto, {"x": models.random(2, 12, seed=3) * np.float32([[1], [4]])}, name="mlp")


def detector() -> Case:
    """Rows of four coordinates and a score, whose scales differ by a factor of 600."""
    scale = np.array([600, 600, 600, 600, 1], np.float32)
    proto = models.model(
        "(float[batch,12] x) => (float[batch,5] y) { a = MatMul(x, w) b = Sigmoid(a) y = Mul(b, s) }",
        {"w": models.random(12, 5, seed=1), "s": scale},
    )
    return Case(proto, {"x": models.random(2, 12, seed=3)}, name="detector")


HEAD = "a = MatMul(s, w0) b = Tanh(a) c = MatMul(b, w1) y = Softmax<axis = 1>(c)"
MLP = "(float[batch,12] x) => (float[batch,6] y) {"


def sound_engine(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
    return infer(feed)


def last_row_by(factor: Any) -> Fault:
    """The last row of a batch is off by a factor, or a factor for each channel."""
    factors = np.asarray(factor, np.float32)
    return on_batch(lambda a: np.concatenate([a[:-1], a[-1:] * factors]) if len(a) > 1 else a)


def swapped(array: Any) -> Any:
    return array[[1, 0, *range(2, len(array))]] if len(array) > 1 else array


def noisy(array: Any, call: int) -> Any:
    noise = np.random.default_rng(call).normal(0, 1e-3, array.shape)
    return array + noise.astype(array.dtype) if call > 1 else array


FAULTS: dict[RelationName, dict[str, tuple[Callable[[], Case], Fault]]] = {
    "equal rows": {
        "last row": (models.conv_net, on_rows(lambda n: [n - 1] if n > 1 else [])),
        "third row": (models.transformer, on_rows(lambda n: [2] if n > 2 else [])),
        "one late row": (zoo.classifier, on_rows(lambda n: [3] if n > 3 else [])),
        "all rows but the first": (mlp, on_rows(lambda n: [*range(1, n)])),
        "rest of a tile of four": (mlp, on_rows(lambda n: [*range(n // 4 * 4, n)] if n > 4 else [])),
        "rotated rows": (models.transformer, on_batch(lambda a: np.roll(a, 1, 0))),
        "padding not written": (mlp, on_rows(lambda n: [n - 1] if n % 8 and n > 1 else [], np.nan)),
        "label of the last row": (zoo.segmentation, on_rows(lambda n: [n - 1] if n > 1 else [], 2)),
        "batch axis of an LSTM": (zoo.lstm, last_row_by(1.1)),
        "cache of the last row": (zoo.key_value_cache, on_rows(lambda n: [n - 1] if n > 1 else [])),
        "last score, FP16": (detector, last_row_by([1, 1, 1, 1, 0.5])),
        "last row, INT8": (zoo.boxes, last_row_by(1.3)),
    },
    "batch size": {
        "first row": (models.conv_net, on_rows(lambda n: [0] if n > 1 else [])),
        "large batches": (models.conv_net, on_rows(lambda n: [*range(n)] if n > 4 else [])),
        "batches above three": (mlp, on_rows(lambda n: [*range(n)] if n > 3 else [])),
        "odd batches": (zoo.boxes, on_rows(lambda n: [*range(n)] if n > 1 and n % 2 else [])),
        "reversed rows": (zoo.segmentation, on_batch(lambda a: a[::-1])),
        "swapped rows": (mlp, on_batch(swapped)),
        "first row for all": (zoo.classifier, on_batch(lambda a: np.repeat(a[:1], len(a), 0))),
        "neighbours": (zoo.boxes, on_batch(neighbours)),
        "lost row": (mlp, on_batch(lambda a: a[: max(1, len(a) - 1)])),
        "failing batch": (mlp, refused),
    },
    "other inputs": {"first result for ever": (models.conv_net, stuck)},
    "buffer contents": {
        "stale result": (mlp, stale),
        "padding of the inference before": (mlp, contaminated),
        "range of the inference before, INT8": (mlp, ranged),
    },
    "shape order": {
        "rows of a larger batch": (models.conv_net, left_over),
        "workspace of a larger batch": (zoo.boxes, grown),
        "first after a larger batch": (models.transformer, resized),
    },
    "repeated inference": {
        "drift": (mlp, on_calls(lambda a, call: a * np.float32(1 + 1e-4 * (call - 1)))),
        "wrong from the fifth": (models.conv_net, on_calls(lambda a, call: a if call < 5 else a[..., ::-1])),
        "every second": (mlp, on_calls(lambda a, call: a * np.float32(2 - call % 2))),
        "random noise": (mlp, on_calls(noisy)),
    },
    "two contexts": {
        "shared output": (mlp, shared_output),
        "shared input": (models.conv_net, shared_input),
        "shared accumulator": (zoo.boxes, shared_scratch),
        "second context without memory": (mlp, lost_second),
        "second context disturbs": (models.transformer, first_by_second),
    },
}
# Edits of a perceptron: each is the same model at batch 1. ``s`` replaces its input.
EDITED = {
    "input of the first row": ("z = Gather(x, rows) o = Sub(x, x) s = Add(o, z)", {"rows": np.array([0])}),
    "largest of the batch": (
        "m = ReduceMax<axes = [0]>(x) d = Sub(m, x) e = Mul(d, tenth) s = Add(x, e)",
        {"tenth": np.float32(0.1)},
    ),
    "divided by the batch": ("n = Shape(x) k = Gather(n, row) f = Cast<to = 1>(k) s = Div(x, f)", {"row": np.array(0)}),
    "rows summed up": ("s = CumSum(x, row)", {"row": np.array(0)}),
    "transposed merge": ("t = Transpose(x) n = Shape(x) r = Reshape(t, n) s = Mul(r, one)", {"one": np.float32(1)}),
    "range of the first row": (
        "z = Gather(x, rows) q = Abs(z) m = ReduceMax<keepdims = 0>(q) l = Neg(m) s = Clip(x, l, m)",
        {"rows": np.array([0])},
    ),
    "mean of the batch": (
        "m = ReduceMean<axes = [0]>(x) d = Sub(x, m) e = Mul(d, tenth) s = Add(x, e)",
        {"tenth": np.float32(0.1)},
    ),
}


def singles(case: Case) -> list[dict[str, np.ndarray]]:
    """The rows of a case's feed, as two feeds of batch 1."""
    axis = 1 if case.name == "lstm" else 0
    feeds = [{name: np.take(array, [row], axis, mode="wrap") for name, array in case.feed.items()} for row in (0, 1)]
    return feeds if len(next(iter(case.feed.values()))) > 1 else [feeds[0], {n: -a for n, a in feeds[1].items()}]


def checked(
    case: Case, engine: BaseRunner, feeds: list[Any], precision: Precision = "fp32", **options: Any
) -> SelfCheck:
    model = Model.from_proto(case.proto)
    with engine, reference_runner(model) as reference:
        return self_check(engine, feeds, reference, precision=precision, nan=accepts_nan(model), **options)


def planted(case: Case, fault: Fault = sound_engine) -> Engine:
    return Engine(correct_engines.session(case.proto), fault)


PLANTED = [(relation, name) for relation, faults in FAULTS.items() for name in faults]


@pytest.mark.parametrize(("relation", "name"), PLANTED)
def test_fault_missed_at_batch_one_is_named(relation: RelationName, name: str) -> None:
    make, fault = FAULTS[relation][name]
    outcome = found_in(make(), lambda case: planted(case, fault), name.partition(", ")[2].lower() or "fp32")
    assert relation in outcome.named("broken"), outcome.sentence()
    assert any(
        checked_relation.name == relation and checked_relation.reason() in outcome.reasons
        for checked_relation in outcome.relations
    )


@pytest.mark.parametrize("name", EDITED)
def test_edit_missed_at_batch_one_is_named(name: str) -> None:
    nodes, weights = EDITED[name]
    proto = models.model(f"{MLP} {nodes} {HEAD} }}", weights)
    proto.graph.initializer.extend(mlp().proto.graph.initializer)
    outcome = found_in(mlp(), lambda case: Engine(correct_engines.session(proto), sound_engine))
    assert "batch size" in outcome.named("broken"), outcome.sentence()


def found_in(case: Case, make: Callable[[Case], Engine], precision: Any = "fp32") -> SelfCheck:
    """The self-check of a faulty engine, which a comparison at batch 1 calls good."""
    feeds = singles(case)
    with make(case) as engine, reference_runner(Model.from_proto(case.proto)) as reference:
        assert compare_outputs(engine.infer(feeds[0]), reference.infer(feeds[0]), default_tolerances(precision))
    return checked(case, make(case), feeds, precision)


def test_enough_faults_are_planted() -> None:
    assert len(PLANTED) + len(EDITED) >= 40


def test_sound_engines_raise_no_alarm() -> None:
    counts: Counter[str] = Counter()
    alarms = {}
    engines = itertools.islice(correct_engines.sound_engines(), 0, None, 1 if LONG else 3)
    for name, case, precision, make, number in engines:
        outcome = checked(case, make(), correct_engines.feeds_of(case, number), precision)
        counts.update(relation.name for relation in outcome.relations if relation.outcome == "held")
        counts["engines"] += 1
        if outcome.reasons:
            alarms[name] = outcome.reasons
    assert not alarms
    assert counts["engines"] >= amount(200, in_every_run=60)
    # Most models keep every relation. A check that skips them would raise no alarm either.
    assert min(counts[name] for name in RELATIONS) > counts["engines"] / 2


def test_relation_that_the_model_breaks_is_skipped() -> None:
    case = next(case for case in correct_engines.operators() if case.name == "cumsum_rows")
    outcome = checked(case, planted(case), singles(case))
    assert not outcome.reasons
    assert "batch size" in outcome.named("skipped")
    assert "the model breaks it itself" in outcome.sentence()


def test_small_difference_of_the_model_excuses_no_fault() -> None:
    nodes, _ = EDITED["mean of the batch"]
    proto = models.model(f"{MLP} {nodes} {HEAD} }}", {"tenth": np.float32(1e-3)})
    proto.graph.initializer.extend(mlp().proto.graph.initializer)
    case = Case(proto, mlp().feed, name="mlp")
    assert "the model breaks it itself" in checked(case, planted(case), singles(case)).sentence()
    outcome = checked(case, planted(case, on_rows(lambda n: [*range(n)] if n > 1 else [])), singles(case))
    [relation] = [relation for relation in outcome.relations if relation.name == "batch size"]
    assert relation.outcome == "broken" and relation.largest > 0.1


def test_rows_of_a_fixed_batch_are_permuted() -> None:
    case = models.two_convolutions(seed=1, batch=3)
    assert not checked(case, planted(case), [case.feed]).reasons
    swapped = on_batch(lambda a: a[[1, 0, 2]])
    outcome = checked(case, planted(case, swapped), [case.feed])
    assert "permuted rows" in outcome.named("broken")
    assert "batch size" in outcome.named("skipped")
    assert "the model's batch is fixed" in outcome.sentence()


def test_millions_of_rows_take_little_memory() -> None:
    case = models.Case(models.model(f"(float[{1 << 20}] x) => (float[{1 << 20}] y) {{ y = Relu(x) }}"), {}, name="m")
    feeds = [{"x": np.linspace(-1, k, 1 << 20, dtype=np.float32)} for k in (1, 2, 3)]

    tracemalloc.start()
    outcome = checked(case, planted(case), feeds)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert outcome.verdict == "good" and "permuted rows" in outcome.named("held")
    assert peak < 100 << 20  # a tuple for each row would take three times as much


def test_batch_of_one_row_skips_rows() -> None:
    case = models.two_convolutions(seed=1, batch=1)
    outcome = checked(case, planted(case), [case.feed])
    assert outcome.named("skipped") == ("equal rows", "permuted rows", "batch size", "shape order")
    assert outcome.sentence().startswith(
        "Self-check: 4 of 8 relations hold; skipped: equal rows, permuted rows, batch size"
    )
    assert outcome.reference_inferences == 0
    assert outcome.inferences == 5  # of the feed, half of it, NaN, and two contexts


@pytest.mark.parametrize("count", [1, 4])
def test_one_feed_costs_few_inferences(count: int) -> None:
    case, seen = mlp(), []

    def counted(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
        seen.append(rows(feed))
        return infer(feed)

    feeds = [{"x": models.random(count, 12, seed=3)}]
    outputs = reference_outputs(case.proto, feeds)
    held = checked(case, planted(case, counted), feeds, outputs=outputs).named("held")
    assert set(RELATIONS) - set(held) == ({"equal rows", "permuted rows"} if count == 1 else set())
    assert sum(seen) <= 2.5 * 2 * count  # a comparison infers each row twice


def test_one_feed_shows_faults_of_contexts() -> None:
    for make, fault in FAULTS["two contexts"].values():
        assert "two contexts" in checked(make(), planted(make(), fault), singles(make())[:1]).named("broken")


def test_batches_stay_within_the_profile() -> None:
    case = mlp()
    seen = []

    def counted(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
        seen.append(rows(feed))
        return infer(feed)

    assert not checked(case, planted(case, counted), [case.feed], batches=(2, 4)).reasons
    assert (min(seen), max(seen)) == (2, 3)


def test_contents_may_not_be_sorted_as_nan() -> None:
    assert accepts_nan(Model.from_proto(mlp().proto))
    sorting = next(case for case in correct_engines.operators() if case.name == "topk")
    assert not accepts_nan(Model.from_proto(sorting.proto))


def test_shapes_of_the_feeds_are_all_used() -> None:
    case = models.transformer()
    short, long = ({"x": models.random(1, length, 16, seed=length)} for length in (3, 9))

    def cliff(engine: Engine, feed: Feed, infer: Infer) -> Outputs:
        before, engine.own["length"] = engine.own.get("length", 0), feed["x"].shape[1]
        return changed(infer(feed), lambda a: a * np.float32(1 + 0.1 * (before > feed["x"].shape[1])))

    assert "shape order" in checked(case, planted(case), [short, long]).named("held")
    assert "shape order" in checked(case, planted(case, cliff), [short, long]).named("broken")


def test_repeated_results_need_no_inference() -> None:
    case, model = mlp(), Model.from_proto(mlp().proto)
    with planted(case) as engine:
        first, last = (dict(engine.infer(case.feed)) for _ in range(2))
    outcome = check_repeated(model, [case.feed], (first, last), BuildConfig())
    assert (outcome.named("held"), outcome.inferences) == (("repeated inference",), 0)
    last["y"] = last["y"] + np.float32(1e-4)
    outcome = check_repeated(model, [case.feed], (first, last), BuildConfig(), after_larger=True)
    assert outcome.named("broken") == ("shape order", "repeated inference")


@pytest.mark.parametrize(("enabled", "fault", "broken"), [
    (True, sound_engine, ()),
    (True, last_row_by(1.5), ("equal rows",)),
    (None, FAULTS["repeated inference"]["wrong from the fifth"][1], ("repeated inference",)),
    (None, last_row_by(1.5), ()),
    (False, FAULTS["repeated inference"]["wrong from the fifth"][1], ()),
])  # fmt: skip
def test_convert_names_broken_relations(
    enabled: bool | None,
    fault: Fault,
    broken: tuple[RelationName, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    np.savez(tmp_path / "data.npz", **singles(mlp())[0])
    opened = OnnxRuntimeBackend.runner
    monkeypatch.setattr(OnnxRuntimeBackend, "runner", lambda self, engine: Engine(opened(self, engine)._sess(), fault))
    check = CheckConfig(data=str(tmp_path / "data.npz"), self_check=enabled, latency_runs=8, plots="never")
    config = ConvertConfig(build=BuildConfig(options=OnnxRuntimeOptions(tactics=())), check=check)
    tracker = MemoryTracker()
    result = convert(mlp().write(tmp_path), config, tracker=tracker)
    outcome = result.evaluation.self_check
    assert (outcome is None) == (enabled is False)
    assert set(broken) <= set(() if outcome is None else outcome.named("broken"))
    assert (result.verdict, result.evaluation.bad_in) == (("bad", ("outputs",)) if broken else ("good", ()))
    if outcome is not None:
        assert set(outcome.reasons) <= set(result.reasons)
        assert outcome.sentence() in result.page()
        assert tracker.info(result.run_id).metrics["self_check", "broken"] == len(outcome.named("broken"))
        assert ("two contexts" in outcome.named("held")) == bool(enabled)


def test_rebuilt_engine_with_broken_relation_drifted() -> None:
    case = mlp()
    outcome = checked(case, planted(case, refused), singles(case))
    assert SelfCheck.from_json(outcome.to_json()) == outcome and outcome.verdict == "bad"
    report = compare_outputs({"y": np.eye(6)}, {"y": np.eye(6)}, default_tolerances("fp32"))
    assert _grade_outputs(Rebuilt(report), None)[0] == "outputs equal"
    assert _grade_outputs(Rebuilt(report, broken=outcome.reasons), None) == ("drifted", "; ".join(outcome.reasons))


def test_compare_checks_the_side_under_test(tmp_path: Path) -> None:
    rows = "(float[n,12] x) => (float[n,12] y) { h = Mul(x, x) "
    late = (
        "s = Shape<start = 0, end = 1>(h) n0 = Squeeze(s) i = Range(zero, n0, one) j = Min(i, last) y = Gather(h, j) }"
    )
    weights = {"zero": np.array(0), "one": np.array(1), "last": np.array(15)}  # rows from the 17th on are the 16th
    right, wrong = tmp_path / "right.onnx", tmp_path / "wrong.onnx"
    onnx.save(models.model(rows + "y = Identity(h) }"), right)
    onnx.save(models.model(rows + late, weights), wrong)
    np.savez(tmp_path / "data.npz", x=models.random(8, 12))
    config = CompareConfig(data=str(tmp_path / "data.npz"), self_check=True, latency_runs=0)
    tracker = MemoryTracker()
    built = convert(right, ConvertConfig(build=BuildConfig(options=OnnxRuntimeOptions(tactics=()))), tracker=tracker)

    comparison = compare(wrong, right, config, tracker=tracker)
    assert comparison.verdict == "bad" and comparison.evaluation.self_check.named("broken") == ("equal rows",)
    for sides in ((right, right), (f"run:{built.run_id}", f"run:{built.run_id}")):  # the run names its model
        comparison = compare(*sides, config, tracker=tracker)
        assert comparison.verdict == "good" and "equal rows" in comparison.evaluation.self_check.named("held")


def test_compare_refuses_options_that_its_sides_do_not_use(tmp_path: Path) -> None:
    path, saved = mlp().write(tmp_path), str(tmp_path / "saved.json")
    RunResults([("saved", [IterationResult({"y": np.eye(6)})])]).save(saved)
    engine = tmp_path / "m.ort"
    build = BuildConfig(options=OnnxRuntimeOptions(tactics=()))
    engine.write_bytes(OnnxRuntimeBackend().build(BuildRequest(Model.load(path), build)).engine.plan)
    tracker = MemoryTracker()
    with pytest.raises(errors.ConfigError, match="compare does not use golden="):
        compare(path, path, CheckConfig(golden="g.json"), tracker=tracker)
    with pytest.raises(errors.ConfigError, match="compare of saved outputs does not use self_check=True"):
        compare(saved, saved, CheckConfig(self_check=True), tracker=tracker)
    with pytest.raises(errors.ConfigError, match="self_check needs the model"):
        compare(engine, engine, CheckConfig(self_check=True), tracker=tracker)
    assert compare(saved, saved, CheckConfig(plots="never", latency_runs=0), tracker=tracker).verdict == "good"
