"""The evidence of a verdict: data, samples, shapes, reference, limits and margin."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trtops.backend.base import Feed
from trtops.calibration.data import FeedDigest
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.ops.evaluation.coverage import Covered
from trtops.ops.evaluation.shapes import OUTSIDE
from trtops.record import Record
from trtops.tables import counted, listed
from trtops.terminal import one_line
from trtops.verdict import Verdict

_MAX_LISTED_SHAPES = 6  # shapes in a line


@dataclass(frozen=True, kw_only=True)
class ShapeEntry(Record):
    """The comparison at one set of input shapes, in one optimization profile."""

    shapes: Mapping[str, tuple[int, ...]]
    profile: int | None = None
    point: str = ""  # min, opt, max or between, of the profile; empty for given data, or outside of all profiles
    iterations: tuple[int, ...] = ()  # the feeds of these shapes
    verdict: Verdict = "good"
    max_abs: float | None = None  # the largest absolute error of all outputs
    reasons: tuple[str, ...] = ()

    def text(self) -> str:
        """The shapes, and their place in a profile."""
        shown = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in self.shapes.items())
        location = "" if self.profile is None else f" (profile {self.profile}{' ' * bool(self.point)}{self.point})"
        location = " (outside of all profiles)" if self.point == OUTSIDE else location
        return f"{shown}{location}"


@dataclass(frozen=True, kw_only=True)
class Evidence(Record):
    """What a verdict rests on."""

    source: str  # of the data
    random: bool = False  # whether the data is random
    data_sha256: str = ""  # of all feeds, in order
    feeds: int
    samples: int  # rows of the feeds that differ
    rows: int
    shapes: tuple[ShapeEntry, ...]
    assumed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of random data that are not given
    reference: str
    limits: str
    margin: str  # the number that comes closest to its limit, or exceeds it the most
    elements: int  # compared elements of all outputs
    undefined: tuple[str, ...] = ()  # why parts of the outputs cannot be compared: random numbers, NaN in the data
    constant: tuple[str, ...] = ()  # the outputs, if all of them are constant on this data
    blind: tuple[str, ...] = ()  # what the data never exercises, so that an error there cannot be seen, in phrases
    export: str = ""  # the first stage of a PyTorch model, in a line
    denied: tuple[str, ...] = ()  # choices that the deny-list excluded from the build, each with its reason

    @property
    def missing(self) -> str:
        """Why this does not support a verdict; empty if it does."""
        if self.undefined:
            return "; ".join(self.undefined)
        if self.assumed:
            shown = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in self.assumed.items())
            return (
                "without data or shapes, this dynamic model was only tried on random data of assumed "
                f"shapes ({shown}); give data (--load-inputs), or the shapes that it is used at (--input-shapes)"
            )
        if not self.elements:
            return "no output has an element to compare"
        if self.constant:
            return (
                f"every output is constant on this data ({listed((f'`{name}`' for name in self.constant), 4)}), so an "
                "engine that ignores its inputs would pass; give data on which outputs vary"
            )
        return ""

    def coverage(self) -> str:
        """The amount of data, followed by its blind spots."""
        return "; ".join((f"Coverage: {counted(self.feeds, 'feed')}, {self._amount}", *self.blind)) + "."

    @property
    def _amount(self) -> str:
        equal = f" (of {self.rows} rows, since some are equal)" if self.samples < self.rows else ""
        return f"{counted(self.samples, 'sample')}{equal}"

    def sentence(self) -> str:
        """Everything but the blind spots in one line."""
        shapes = listed(dict.fromkeys(entry.text() for entry in self.shapes), _MAX_LISTED_SHAPES, "; ") or "no inputs"
        assumed = ", assumed" if self.assumed else ""
        denied = f"; {counted(len(self.denied), 'choice')} left out, since denied" if self.denied else ""
        stage = f"{self.export}; ONNX to engine: " if self.export else ""
        return one_line(
            f"{stage}{self.margin}; {self.source}, {self._amount} in "
            f"{counted(self.feeds, 'feed')}; "
            f"shapes: {shapes}{assumed}; reference: {self.reference}; limits: {self.limits}{denied}"
        )


class SeenFeeds:
    """Feeds, passed on one by one, with a record of shapes, places in profiles and coverage."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        """Nothing is read before iteration."""
        self._feeds = feeds
        self.places: list[tuple[int | None, str, dict[str, tuple[int, ...]]]] = []
        self.covered = Covered()
        self.digest = FeedDigest()

    def __iter__(self) -> Iterator[Feed]:
        self.places, self.covered, self.digest = [], Covered(), FeedDigest()
        for feed in self._feeds:
            shapes = {name: tuple(np.shape(array)) for name, array in feed.items()}
            self.places.append((getattr(feed, "profile", None), getattr(feed, "point", ""), shapes))
            self.covered.add(feed)
            self.digest.add(feed)
            yield feed

    @property
    def given(self) -> int:
        """The number of feeds, without those added for the shapes of profiles."""
        return sum(point in ("", OUTSIDE) for _, point, _ in self.places) or len(self.places)

    def entries(
        self,
        actual: Sequence[Any],
        golden: Sequence[Any],
        tolerances: Tolerances,
        tolerances_of: Callable[[Sequence[int]], Tolerances] | None = None,
    ) -> tuple[ShapeEntry, ...]:
        """A comparison for each set of shapes, in the order of the feeds; outputs have one mapping per feed.

        ``tolerances_of`` returns the tolerances for some feeds by number, where they differ from those for all.
        """
        groups: dict[tuple[Any, ...], list[int]] = {}
        for number, (profile, _, shapes) in enumerate(self.places):
            groups.setdefault((profile, tuple(shapes.items())), []).append(number)
        shape_entries = []
        for numbers in groups.values():
            profile, point, shapes = self.places[numbers[0]]
            group_tolerances = tolerances if tolerances_of is None or len(groups) == 1 else tolerances_of(numbers)
            report = compare_outputs([actual[n] for n in numbers], [golden[n] for n in numbers], group_tolerances)
            largest = (statistics.max_abs for statistics in report.statistics.values())
            shape_entries.append(
                ShapeEntry(
                    shapes=shapes,
                    profile=profile,
                    point=point,
                    iterations=tuple(numbers),
                    verdict=report.verdict,
                    max_abs=max(largest, default=None),
                    reasons=report.reasons,
                )
            )
        return tuple(shape_entries)
