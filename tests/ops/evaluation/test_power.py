"""What a comparison could have seen: faults planted in golden outputs, and the coverage of their data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import numpy as np

from tests.models import random
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.coverage import Covered
from trtops.ops.evaluation.evidence import ShapeEntry
from trtops.ops.evaluation.limits import default_tolerances
from trtops.ops.evaluation.power import FaultKind, Power, measure_power

Arrays = Mapping[str, np.ndarray]
ALL_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


def measured(golden: Sequence[Arrays], tolerances: Tolerances | None = None, **options: int) -> Power:
    """The power of a comparison with golden outputs whose batch is the input's; FP32's fixed limits by default."""
    groups: dict[int, list[int]] = {}
    for number, outputs in enumerate(golden):
        groups.setdefault(len(next(iter(outputs.values()))), []).append(number)
    entries = [ShapeEntry(shapes={"x": (rows, 3)}, iterations=tuple(iterations)) for rows, iterations in groups.items()]
    return measure_power(golden, tolerances or default_tolerances("fp32"), entries, **options)


def images(rows: int = 3, feeds: int = 2) -> list[Arrays]:
    return [{"y": random(rows, 4, 5, 5, seed=seed), "scores": random(rows, 6, seed=seed)} for seed in range(feeds)]


def by_kind(power: Power) -> dict[FaultKind, tuple[int, int]]:
    faults_by_kind = {kind: power.of(kind) for kind in ALL_KINDS}
    return {kind: (sum(f.caught for f in faults), len(faults)) for kind, faults in faults_by_kind.items() if faults}


def test_fp32_limits_catch_faults_of_every_kind() -> None:
    power = measured(images())
    assert len(power.planted) == 40 and power.left_out == () and power.share == 1
    assert list(by_kind(power)) == list(ALL_KINDS)
    assert power.sentence(("batch 1 only",)) == (
        "This check sees 40 of 40 faults planted in the outputs (100%); batch 1 only."
    )
    locations = " ".join(fault.location for fault in power.planted)
    assert "`y`" in locations and "`scores`" in locations and "of feed 1" in locations


def test_kinds_without_a_place_are_named() -> None:
    single_row, two_feeds = measured(images(1, feeds=1)), measured(images(1))
    assert dict(single_row.left_out) == {"swapped rows": "no batch above 1", "stale output": "one feed"}
    assert dict(two_feeds.left_out) == {"swapped rows": "no batch above 1"}
    assert by_kind(two_feeds)["stale output"] == (2, 2)
    assert "| stale output | - | - | not planted: one feed |" in single_row.table()

    labels = measured([{"label": np.arange(6)}])
    assert {fault.kind for fault in labels.planted} == {"swapped rows"} and labels.share == 1
    assert dict(labels.left_out)["flipped sign"] == "no floating-point output with channels"
    assert measured([{"label": np.array([3])}]).sentence() == (
        "The power of this check is unknown: no fault could be planted."
    )


def test_equal_rows_and_feeds_hide_faults() -> None:
    power = measured([{"y": np.repeat(random(1, 6), 3, axis=0)}] * 2)
    hidden = [*power.of("swapped rows"), *power.of("stale output")]
    assert hidden and not any(fault.caught or fault.changed for fault in hidden)
    assert "`y` of feed 1, which changes no output" in power.table()


def test_channels_of_zeros_hide_faults() -> None:
    golden = np.zeros((2, 4), np.float32)
    golden[:, 0] = (1, 2)
    power = measured([{"y": golden}])
    assert by_kind(power)["zeroed channel"] == by_kind(power)["flipped sign"] == (1, 4)
    assert by_kind(power)["added offset"] == (4, 4)


def test_seed_repeats_the_faults() -> None:
    first, again, other = (measured(images(rows=9), seed=seed) for seed in (3, 3, 4))
    assert first == again == Power.from_json(first.to_json())
    assert {fault.location for fault in first.planted} != {fault.location for fault in other.planted}
    assert len(measured(images(), faults=9).planted) == 9


def test_loose_limits_see_less() -> None:
    golden = [{**outputs, "y": outputs["y"] * np.float32([1, 1, 1, 1e-4]).reshape(4, 1, 1)} for outputs in images()]
    strict, loose = measured(golden), measured(golden, default_tolerances("int8"))
    assert [fault.location for fault in strict.planted] == [fault.location for fault in loose.planted]
    missed = {fault.location for fault in loose.planted if not fault.caught}
    assert loose.caught < strict.caught and "channel 3 of `y`" in missed
    assert all(fault.changed for fault in loose.planted)


def test_reasons_replace_the_share() -> None:
    undefined = measured([{"y": np.array([[np.nan, 1]])}])
    assert undefined.share is None and undefined.sentence() == (
        "The power of this check is unknown: the golden outputs do not pass the comparison with themselves."
    )
    objects = measured([{"y": np.array([{1: 2}])}])
    assert "is an array of Python objects" in objects.sentence()


def test_shapes_are_compared_separately() -> None:
    # Next to values of a million, errors of the second feed are within the limits of both together.
    large, small = 1e6 * random(3, 6, seed=4), random(3, 6, seed=5)
    apart, together = (measured([{"y": large[:rows]}, {"y": small}]) for rows in (2, 3))
    swaps_in_small = [fault for fault in together.of("swapped rows") if "feed 1" in fault.location]
    assert swaps_in_small and not any(fault.caught for fault in swaps_in_small)
    assert all(fault.caught for fault in apart.of("swapped rows"))


def test_infinite_values_stay_where_they_are() -> None:
    golden = random(2, 6)
    golden[:, 2] = np.inf
    limits = Tolerances(infinities_equal=True)
    assert by_kind(measured([{"y": golden}], limits))["saturated range"] == (1, 1)


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
