"""What a comparison could have seen: planted faults in real models, and the coverage of their data."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx
import pytest

from tests import models, zoo
from tests.models import Case, model, random
from trtops.backend.onnx.faults import FaultyModel
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation import power as module
from trtops.ops.evaluation.coverage import Covered
from trtops.ops.evaluation.data import golden_outputs
from trtops.ops.evaluation.limits import default_tolerances
from trtops.ops.evaluation.power import FaultKind, Power, measure_power

Arrays = Mapping[str, np.ndarray]
ALL_KINDS = module._KINDS


def measured(
    proto: onnx.ModelProto, feeds: Sequence[Arrays], tolerances: Tolerances | None = None, **options: int
) -> Power:
    """The power of a comparison of a model with itself on some feeds; FP32's fixed limits by default."""
    loaded = Model.from_proto(proto)
    golden = golden_outputs(loaded, feeds, None)
    return measure_power(loaded, feeds, golden, tolerances or default_tolerances("fp32"), **options)


def both_signs(case: Case) -> list[Arrays]:
    return [case.feed, {name: -array if array.dtype.kind == "f" else array for name, array in case.feed.items()}]


def by_kind(power: Power) -> dict[FaultKind, tuple[int, int]]:
    faults_by_kind = {kind: power.of(kind) for kind in ALL_KINDS}
    return {kind: (sum(f.caught for f in faults), len(faults)) for kind, faults in faults_by_kind.items() if faults}


def halves() -> onnx.ModelProto:
    """Positive and negative values take ways of their own, with weights and biases."""
    weights = {"wp": random(6, 5, seed=1), "wn": random(6, 5, seed=2), "b": random(5, seed=3)}
    return model(
        """(float[batch,6] x) => (float[batch,5] y) {
            p = Relu(x) m = Neg(x) n = Relu(m)
            up = Gemm(p, wp, b) down = MatMul(n, wn) y = Add(up, down)
        }""",
        weights,
    )


@pytest.mark.parametrize("case", [zoo.lstm, models.transformer, models.conv_net])
def test_fp32_limits_catch_faults_of_every_kind(case: Callable[[], Case]) -> None:
    power = measured(case().proto, both_signs(case()))
    counts = by_kind(power)

    assert len(power.planted) == 40 and power.left_out == ()
    assert list(counts) == list(ALL_KINDS)
    assert all(caught for caught, _ in counts.values())
    assert all(counts[kind][0] == counts[kind][1] for kind in ALL_KINDS if kind != "shifted crop")
    shifts = {"input" in fault.location for fault in power.of("shifted crop") if fault.caught}
    assert shifts == {True, False}


def test_positive_single_feed_sees_less() -> None:
    poor = [{"x": np.maximum(random(1, 6, seed=4), 0)}]
    rich = [{"x": random(4, 6, seed=seed)} for seed in (4, 5)]
    poor_power, rich_power = (measured(halves(), feeds) for feeds in (poor, rich))

    assert poor_power.share is not None and rich_power.share is not None and poor_power.share < 0.8 < rich_power.share
    missed = [fault for fault in poor_power.planted if not fault.caught]
    assert any("`wn`" in fault.location for fault in missed) and not any(fault.changed for fault in missed)
    hidden = blind(poor, [{"y": np.ones((1, 5))}])
    assert hidden[0] == "blind to negative values of `x`" and hidden[-1] == "batch 1 only"
    assert poor_power.sentence(hidden).startswith(
        f"This check sees {poor_power.caught} of {len(poor_power.planted)} planted faults ("
    )
    assert "; blind to negative values of `x`; " in poor_power.sentence(hidden)
    assert blind(rich, [{"y": random(4, 5)}, {"y": random(4, 5)}]) == ()


def test_kinds_without_a_place_are_named() -> None:
    feed = {"x": np.abs(random(1, 6))}
    single_feed, two_feeds = measured(halves(), [feed]), measured(halves(), [feed, {"x": random(1, 6, seed=2)}])
    assert dict(single_feed.left_out) == {"swapped rows": "no batch above 1", "stale output": "one feed"}
    assert dict(two_feeds.left_out) == {"swapped rows": "no batch above 1"}
    assert by_kind(two_feeds)["stale output"] == (1, 1)
    assert "| stale output | - | - | not planted: one feed |" in single_feed.table()

    assert dict(measured(zoo.segmentation().proto, both_signs(zoo.segmentation())).left_out) == {
        "dropped bias": "no bias"
    }
    nothing = measured(models.identity().proto, [{"x": np.zeros((1, 1, 2, 2), np.float32)}])
    assert nothing.caught == 0 and {fault.kind for fault in nothing.planted} == {"shifted crop", "saturated range"}


def test_equal_feeds_hide_stale_outputs() -> None:
    feed = {"x": random(3, 6)}
    caught, planted = by_kind(measured(halves(), [feed, feed]))["stale output"]
    assert (caught, planted) == (0, 1)
    same_rows = {"x": np.repeat(random(1, 6), 3, axis=0)}
    assert by_kind(measured(halves(), [same_rows]))["swapped rows"][0] == 0


def test_seed_repeats_the_faults() -> None:
    case = zoo.classifier()
    first, again = (measured(case.proto, both_signs(case), seed=3) for _ in range(2))
    other = measured(case.proto, both_signs(case), seed=4)
    assert first == again == Power.from_json(first.to_json())
    assert {fault.location for fault in first.planted} != {fault.location for fault in other.planted}
    assert len(measured(case.proto, both_signs(case), faults=9).planted) == 9


def test_loose_limits_see_less() -> None:
    case = zoo.classifier()
    strict = measured(case.proto, both_signs(case))
    loose = measured(case.proto, both_signs(case), default_tolerances("int8"))
    assert [fault.location for fault in strict.planted] == [fault.location for fault in loose.planted]
    assert loose.caught < strict.caught


def test_branches_not_taken_are_missed() -> None:
    weights = {"yes": random(4, 4, seed=1), "no": random(4, 4, seed=2)}
    proto = model(
        """(float[batch,4] x, bool flag) => (float[batch,4] y) {
            y = If(flag) <
                then_branch = one () => (float[batch,4] p) { p = MatMul(x, yes) },
                else_branch = two () => (float[batch,4] q) { q = MatMul(x, no) }
            >
        }""",
        weights,
    )
    x = random(2, 4)
    one_way = measured(proto, [{"x": x, "flag": np.array(True)}])
    both_ways = measured(proto, [{"x": x, "flag": np.array(flag)} for flag in (True, False)])
    for power, seen in ((one_way, {"`yes`"}), (both_ways, {"`yes`", "`no`"})):
        faults = power.of("zeroed channel")
        assert {fault.location.split()[-1] for fault in faults} == {"`yes`", "`no`"}
        assert {fault.location.split()[-1] for fault in faults if fault.caught} == seen


def test_failing_reference_counts_as_caught() -> None:
    weights = {"w": np.full((1, 2), -20, np.float32), "b": np.array([25, 25], np.float32), "table": random(10)}
    proto = model(
        "(float[1,1] x) => (float[1,2] y) { i = Gemm(x, w, b) k = Cast<to = 7>(i) y = Gather(table, k) }", weights
    )
    assert by_kind(measured(proto, [{"x": np.ones((1, 1), np.float32)}]))["dropped bias"] == (1, 1)


def test_reasons_replace_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, feeds = Model.from_proto(halves()), [{"x": random(2, 6)}]
    golden = [{"y": random(2, 5)}]
    other = measure_power(loaded, feeds, golden, default_tolerances("fp32"))
    assert other.share is None and "the reference itself does not pass the comparison (y: " in other.sentence()
    monkeypatch.setattr("trtops.backend.onnx.model.is_large", lambda model: True)
    assert measured(halves(), feeds).why_not == "the model is too large to be changed in memory"


@pytest.mark.parametrize(
    "case", [*zoo.EVALUATED, models.transformer, models.conv_net, models.multi_output, zoo.zipmap, zoo.sequence]
)
def test_switched_off_faults_change_nothing(case: Callable[[], Case]) -> None:
    feed, proto = case().feed, case().proto
    shapes = {name: array.shape for name, array in feed.items()}
    faulty = FaultyModel(onnx.ModelProto.FromString(proto.SerializeToString()), proto, shapes)
    for part in faulty.places.values():
        for planted in part:
            faulty.switch(planted)
    assert faulty.neutral
    [outputs] = reference_outputs(faulty.finish(), [{**feed, **faulty.neutral}])
    [expected] = reference_outputs(proto, [feed])
    # ONNX Runtime packs constant weights of recurrent layers, which rounds otherwise.
    tolerance = 1e-6 if case is zoo.lstm else 0
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=0, atol=tolerance)


def blind(feeds: Iterable[Mapping[str, np.ndarray]], golden: Sequence[Mapping[str, np.ndarray]]) -> tuple[str, ...]:
    covered = Covered()
    for feed in feeds:
        covered.add(feed)
    return covered.blind(golden)


def test_coverage_names_constant_and_saturated_outputs() -> None:
    feeds = [
        {"low": -(random(2, 3) ** 2), "one": np.full((2, 1), 0.5, np.float32), "mask": np.ones((2, 3), np.int64)},
        {"low": -(random(1, 3) ** 2), "one": np.full((1, 1), 0.5, np.float32), "mask": np.ones((1, 3), np.int64)},
    ]
    ends = np.repeat(np.array([0, 1], np.float32), 200)
    golden = [
        {
            "same": np.full((2, 4), 3.0),
            "ends": ends,
            "classes": np.array([0, 1] * 20),
            "nothing": np.zeros((0, 4)),
            "holes": np.array([1, np.nan, np.inf], np.float32),
            "texts": np.array(["a", "a"], object),
        }
    ] * 2
    assert blind(iter(feeds), golden) == (
        "blind to positive values of `low`",
        "`one` constant",
        "`mask` is always 1",
        "outputs `same`, `texts` are constant on this data",
        "output `ends` is at one end of its range in more than 99 % of the values",
        "output `nothing` is without elements",
        "output `holes` is not finite everywhere",
    )
    assert any("`y` is at one end" in sentence for sentence in blind([{"x": ends}], [{"y": np.append(ends, 0.5)}]))
    assert not any(
        "at one end" in sentence for sentence in blind([{"x": ends}], [{"y": np.append(ends, np.full(5, 0.5))}])
    )
    assert "batch 1 only" in blind([{"x": ends[:1]}], golden)


def test_shapes_are_compared_separately() -> None:
    # Next to values of a million, errors of the second feed are within the limits of both together.
    large, small = 1e6 * np.abs(random(3, 6, seed=4)), -np.abs(random(3, 6, seed=5))
    apart, together = (measured(halves(), [{"x": large[:rows]}, {"x": small}]) for rows in (2, 3))
    assert together.caught < apart.caught
