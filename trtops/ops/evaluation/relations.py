"""The relations of a self-check, one function for each, on results that they share.

:class:`Trials` infers a larger batch of all rows, other contents of the buffers in a second context, and then both
contexts at once on data with known results. Only where these differ, further inferences find the broken relation.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from trtops import errors
from trtops.backend.runner import BaseRunner, Feed
from trtops.comparator.arrays import copied
from trtops.ops.evaluation.batch_rows import Batch, Result, Rows, RowSelection, batch_of
from trtops.ops.evaluation.differences import (
    OwnResults,
    Relation,
    RelationName,
    scaled,
    shapes_of,
    skipped,
    worst,
)

MAX_BATCH = 32  # larger batches only cost memory
_THOROUGH_BYTES = 1 << 24  # of the inputs of a batch of that size, up to which a thorough check has one
_EQUAL_SHAPES = "all inputs have the same shapes"
_NO_BATCH_AXIS = "no output has a batch axis"


class Joined(NamedTuple):
    """The larger batch: rows of the data in order, reversed, and so on.

    ``order`` numbers the row at each position, of ``distinct`` different ones; ``origins`` are some positions, each
    with the result and the row that it comes from.
    """

    result: Result
    order: list[int]
    distinct: int
    origins: list[tuple[int, Result, int]]

    def repeated(self) -> tuple[list[int], list[int]]:
        """Return the positions that repeat a row, and the first position of each of these rows."""
        first: dict[int, int] = {}
        repeated, first_of_repeated = list[int](), list[int]()
        for position, number in enumerate(self.order):
            if number in first:
                repeated.append(position)
                first_of_repeated.append(first[number])
            else:
                first[number] = position
        return repeated, first_of_repeated


class Concurrent(NamedTuple):
    """Results of two contexts at once, after the first had a larger shape and the second other contents."""

    pairs: list[tuple[Result, Result]]  # the expected and the actual result of each context
    failure: Relation | None = None  # without pairs, the reason
    undisturbed: str = ""  # why the second context did not have other contents


class Trials:
    """An engine's inferences on the feeds of a check.

    Attributes:
        small, large: The results for the smallest and the largest feed.
        peers: The results for other feeds of the smallest one's shapes.
        batch: The batch axes, or why there is no batch.
        peer_again: Another feed of the same shapes, inferred again.
        alone: The first row of the smallest feed as a batch of one.
        joined: The larger batch.
        half: Half of the values of the only feed, if no batch has other rows.
        larger: The last result before two contexts meet, of a larger shape than the smallest.
        concurrent: The smallest feed after a larger shape, and at once another one in a second context.
    """

    def __init__(
        self,
        runner: BaseRunner,
        model: OwnResults,
        results: Sequence[Result],
        *,
        batches: tuple[int, int],
        nan: bool,
        thorough: bool,
    ) -> None:
        """Infer what every check needs, with the arguments of ``self_check``."""
        self.model, self.results, self.inferences = model, results, 0
        self.small = min(results, key=lambda result: _elements(result.feed))
        self.large = max(results, key=lambda result: _elements(result.feed))
        shapes = shapes_of(self.small.feed)  # of its peers as well
        self.peers = [result for result in results if result is not self.small and shapes_of(result.feed) == shapes]
        self.batch = batch_of(runner.get_input_metadata(use_numpy_dtypes=False), self.small.feed)
        self._runner, self._batches, self._thorough = runner, batches, thorough
        self._variant = scaled(self.small.feed, 0.5)
        # NaN, or values a thousand times as large, where inputs are floating-point numbers.
        self._disturbing = self._variant and scaled(self._variant, np.nan if nan else -1000.0)
        # In this order: the inference before the two contexts is of a larger shape.
        self.peer_again = self.infer(self.peers[0].feed) if self.peers else None
        self.alone = self._infer_alone()
        self.joined = self._infer_joined()
        self._joined_result = self.joined.result if isinstance(self.joined, Joined) else None
        self.half: Result | Relation | None = None
        if not self.peers and self._joined_result is None and self._variant is not None:
            self.half = self.attempt("other inputs", self._variant)
        self.larger = self._joined_result
        if _elements(self.large.feed) > _elements(self.small.feed):
            self.larger = self.infer(self.large.feed)
        self.concurrent = self._infer_at_once(self._other())

    def infer(self, feed: Feed, runner: BaseRunner | None = None) -> Result:
        """Infer with the engine, by default in its first context."""
        self.inferences += 1
        return Result(feed, copied((runner or self._runner).infer(feed)))

    def attempt(self, name: RelationName, feed: Feed) -> Result | Relation:
        """Infer on a feed that is not the user's; a failure breaks the relation if the model runs on the feed."""
        try:
            return self.infer(feed)
        except errors.InputError as exc:
            return skipped(name, f"the engine does not accept the inputs: {exc}")
        except errors.TrtopsError as exc:
            try:
                self.model.outputs(feed)
            except errors.TrtopsError:
                return skipped(name, f"the model does not run on the inputs: {exc}"[:300])
            return Relation(name=name, outcome="broken", detail=f"the engine fails ({exc})"[:300])

    def select(self, result: Result, rows: Rows) -> Result:
        """Return a result with rows to compare."""
        assert isinstance(self.batch, Batch)
        return result._replace(selection=RowSelection(rows, self.output_axes, self.batch.size(result.feed)))

    @cached_property
    def output_axes(self) -> dict[str, int]:
        """The batch axes of the outputs, from results for other batches."""
        axes: dict[str, int] = {}
        pairs = [(self.small, self.alone), (self.small, self._joined_result)]
        if self._joined_result is None:
            pairs.append((self.several, self.turned))
        for base, variant in pairs:
            if isinstance(self.batch, Batch) and isinstance(variant, Result):
                axes = self.batch.output_axes(base, variant) | axes
        return axes

    def _infer_alone(self) -> Result | Relation | None:
        if not isinstance(self.batch, Batch) or not self.batch.dynamic:
            return None
        if not self._batches[0] == 1 < self.batch.size(self.small.feed):
            return None
        return self.attempt("batch size", self.batch.take(self.small.feed, [0]))

    def _infer_joined(self) -> Joined | Relation | None:
        if not isinstance(self.batch, Batch) or not self.batch.dynamic:
            return None
        sources = ((result, row) for result in self.alike for row in range(self.rows_of(result)))
        rows = list(islice(sources, MAX_BATCH))
        smallest, largest = self._batches[0], min(self._batches[1], MAX_BATCH)
        singles = [self.batch.take(result.feed, [row]) for result, row in rows[:largest]]
        data_rows = len(singles)
        if data_rows == 1 < largest and self._variant is not None:
            # The row itself comes last, where a batch is most often wrong.
            singles.insert(0, self.batch.take(self._variant, [0]))
        count = len(singles)
        batch_rows = min(_rows_of_batch(list(map(self.rows_of, self.results)), self.rows_of(self.small)), largest)
        if self._thorough and largest * sum(array.nbytes for array in singles[0].values()) <= _THOROUGH_BYTES:
            batch_rows = max(batch_rows, largest - (largest % 2 == 0))
        cycle = [*range(count), *reversed(range(count))]
        order = [cycle[position % len(cycle)] for position in range(max(batch_rows, smallest))]
        if len(order) == data_rows:
            order[-1] = order[0]  # rows that are equal are needed as well
        positions = range(count - data_rows, len(order))
        origins = [(position, *rows[number]) for number, position in zip(order[:data_rows], positions)]
        result = self.attempt("batch size", self.batch.join([singles[number] for number in order]))
        return result if isinstance(result, Relation) else Joined(result, order, count, origins)

    @cached_property
    def alike(self) -> list[Result]:
        """The results whose feeds have rows like those of the smallest one."""
        assert isinstance(self.batch, Batch)
        return [result for result in self.results if self.batch.are_alike(result.feed, self.small.feed)]

    def rows_of(self, result: Result) -> int:
        """The number of rows of a result's feed."""
        assert isinstance(self.batch, Batch)
        return self.batch.size(result.feed)

    def _other(self) -> Result:
        """Return a feed with known outputs for the second context: reversed rows, another feed, or rows of a batch."""
        others = [*self.peers, self.half] if isinstance(self.half, Result) else self.peers
        joined = self._joined_result
        if joined is not None and not self.small.outputs.keys() - self.output_axes.keys():
            size = self.rows_of(self.small)
            if 1 < size == self.rows_of(self.large):
                return self.select(self.small, range(size)[::-1])
            if not others and batch_size(self).outcome == "held":
                return self.select(joined, range(size))
        return others[0] if others else self.small

    def _infer_at_once(self, expected: Result) -> Concurrent:
        try:
            second = self._runner.second_context()
            if second is None:
                return Concurrent([], skipped("two contexts", "the back end opens no second context"))
            second.activate()
        except errors.TrtopsError as exc:
            return Concurrent([], skipped("two contexts", f"no second context could be opened: {exc}"[:300]))
        start = threading.Barrier(2)

        def infer(feed: Feed, runner: BaseRunner | None) -> Result:
            start.wait()
            return self.infer(feed, runner)

        feed, selection = expected.feed, expected.selection
        if selection is not None:
            assert isinstance(self.batch, Batch)
            feed, count = self.batch.take(feed, selection.rows), len(selection.rows)
            selection = selection._replace(rows=range(count), batch=count)
        try:
            undisturbed = self._disturb(second)
            with ThreadPoolExecutor(1) as pool:
                later = pool.submit(infer, feed, second)
                first = infer(self.small.feed, None)
                pairs = [(self.small, first), (expected, later.result()._replace(selection=selection))]
        except errors.TrtopsError as exc:
            failure = Relation(name="two contexts", outcome="broken", detail=f"the engine fails ({exc})"[:300])
            return Concurrent([], failure)
        finally:
            second.deactivate()
        return Concurrent(pairs, undisturbed=undisturbed)

    @cached_property
    def agree(self) -> bool:
        """Whether both contexts at once have the expected results, up to rounding."""
        return bool(self.concurrent.pairs) and all(self.model.holds(*pair) for pair in self.concurrent.pairs)

    def _disturb(self, runner: BaseRunner | None = None) -> str:
        """Infer on other contents; return why this was not done."""
        if self._disturbing is None:
            return "no input is a floating-point number"
        try:
            self.infer(self._disturbing, runner)
        except errors.TrtopsError as exc:
            return f"the engine does not run on other contents: {exc}"[:300]
        return ""

    def _small_again(self) -> list[Result]:
        """Infer the smallest feed again; twice more if its results changed."""
        again = [self.infer(self.small.feed)]
        if not self.model.holds(self.small, again[0]):
            again += [self.infer(self.small.feed), self.infer(self.small.feed)]
        return again

    @cached_property
    def after_larger(self) -> tuple[list[Result], str]:
        """The smallest feed alone after a larger shape, and why this was not done."""
        if self.larger is not None:
            self.infer(self.larger.feed)
        return self._small_again(), "" if self.larger is not None else _EQUAL_SHAPES

    @cached_property
    def after_contents(self) -> tuple[list[Result], str]:
        """The smallest feed alone after other contents, and why this was not done."""
        reason = self._disturb()
        return self._small_again(), reason

    @cached_property
    def several(self) -> Result:
        """The result with the most rows."""
        return max(self.alike, key=self.rows_of)

    @property
    def no_rows(self) -> str:
        """Why no rows can be compared."""
        return "every batch has one row" if self.rows_of(self.several) == 1 else _NO_BATCH_AXIS

    @cached_property
    def reversed_order(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        """The rows of the reversed batch; without a larger batch the last one is equal to the first."""
        # An array, since an input of one axis may have millions of rows.
        order: np.ndarray[Any, np.dtype[np.intp]] = np.arange(self.rows_of(self.several))[::-1].copy()
        if self._joined_result is None:
            order[-1] = order[0]
        return order

    @cached_property
    def turned(self) -> Result | Relation | None:
        """The feed with the most rows, in reversed order; None for one row."""
        if not isinstance(self.batch, Batch) or self.rows_of(self.several) == 1:
            return None
        return self.attempt("permuted rows", self.batch.take(self.several.feed, self.reversed_order))


def repeated_inference(trials: Trials) -> Relation:
    """Equal inputs have equal results."""
    name: RelationName = "repeated inference"
    pairs: list[tuple[Result, Result]] = []
    if trials.peer_again is not None:
        pairs.append((trials.peers[0], trials.peer_again))
    if trials.larger is not None and trials.larger.feed is trials.large.feed:
        pairs.append((trials.large, trials.larger))
    if trials.agree:
        pairs.append(trials.concurrent.pairs[0])
    else:
        for again, reason in (trials.after_larger, trials.after_contents):
            if len(again) > 1:  # the results change by themselves, or for good
                pairs += [(again[1], again[2]), (trials.small, again[1])]
            if len(again) == 1 or reason:
                pairs.append((trials.small, again[0]))
    return _compare(trials, name, pairs)


def shape_order(trials: Trials) -> Relation:
    """Results do not depend on the shape of the inference before."""
    if trials.larger is None:
        return skipped("shape order", _EQUAL_SHAPES)
    if trials.agree:
        return _compare(trials, "shape order", trials.concurrent.pairs[:1])
    return _compare_after(trials, "shape order", *trials.after_larger)


def buffer_contents(trials: Trials) -> Relation:
    """Results do not depend on the inputs of the inference before."""
    if trials.concurrent.undisturbed:
        return skipped("buffer contents", trials.concurrent.undisturbed)
    if trials.agree:
        return _compare(trials, "buffer contents", trials.concurrent.pairs[1:])
    return _compare_after(trials, "buffer contents", *trials.after_contents)


def two_contexts(trials: Trials) -> Relation:
    """Two contexts at once have the results of one."""
    if trials.concurrent.failure is not None:
        return trials.concurrent.failure
    if trials.agree:
        return _compare(trials, "two contexts", trials.concurrent.pairs)
    # An inference that is wrong on its own says nothing about two at once.
    if "broken" in (shape_order(trials).outcome, buffer_contents(trials).outcome):
        return skipped("two contexts", "the results already change after other inferences")
    pairs = []
    for _, actual in trials.concurrent.pairs:
        pairs.append((trials.infer(actual.feed), actual._replace(selection=None)))
    return _compare(trials, "two contexts", pairs)


def other_inputs(trials: Trials) -> Relation:
    """Other inputs have other results, as far as the model does."""
    name: RelationName = "other inputs"
    pairs = [(trials.small, peer) for peer in trials.peers]
    if isinstance(trials.joined, Joined) and len(set(trials.joined.order[:2])) > 1:
        joined = trials.joined.result
        pairs.append((trials.select(joined, (0,)), trials.select(joined, (1,))))
    if isinstance(trials.half, Result):
        pairs.append((trials.small, trials.half))
    findings = [trials.half] if isinstance(trials.half, Relation) else []
    for pair in pairs:
        findings += [*trials.model.equal_outputs(*pair), Relation(name=name, outcome="held")]
    return worst(findings, skipped(name, "there is one feed, and no floating-point input to change"))


def batch_size(trials: Trials) -> Relation:
    """Rows have equal results in batches of different size."""
    name: RelationName = "batch size"
    if isinstance(trials.batch, str):
        return skipped(name, trials.batch)
    findings = [finding for finding in (trials.alone, trials.joined) if isinstance(finding, Relation)]
    if isinstance(trials.alone, Result):
        findings += _compare_rows(trials, name, (trials.small, [0]), (trials.alone, [0]))
    if isinstance(trials.joined, Joined):
        findings += _lost_rows(trials, trials.batch, trials.joined.result)
        for position, result, row in trials.joined.origins:
            if trials.rows_of(result) != len(trials.joined.order):
                findings += _compare_rows(trials, name, (result, [row]), (trials.joined.result, [position]))
    return worst(findings, skipped(name, _NO_BATCH_AXIS if trials.batch.dynamic else "the model's batch is fixed"))


def _lost_rows(trials: Trials, batch: Batch, joined: Result) -> Iterator[Relation]:
    """Find outputs of the larger batch that are not proportional to it, and are in the model."""
    unknown = joined.outputs.keys() - trials.output_axes.keys()
    if not unknown:
        return
    try:
        small = trials.small._replace(outputs=trials.model.outputs(trials.small.feed))
        large = joined._replace(outputs=trials.model.outputs(joined.feed))
    except errors.TrtopsError:
        return
    for name in sorted(unknown & batch.output_axes(small, large).keys()):
        reason = f"`{name}` has shape {joined.outputs[name].shape}, and {large.outputs[name].shape} in the model"
        yield Relation(name="batch size", outcome="broken", output=name, largest=math.inf, detail=reason)


def equal_rows(trials: Trials) -> Relation:
    """Equal rows of a batch have equal results."""
    name: RelationName = "equal rows"
    if isinstance(trials.batch, str):
        return skipped(name, trials.batch)
    findings: Iterable[Relation] = ()
    reason = trials.no_rows
    if isinstance(trials.joined, Joined):
        repeated, first = trials.joined.repeated()
        joined = trials.joined.result
        findings = _compare_rows(trials, name, (joined, first), (joined, repeated))
    elif isinstance(trials.turned, Result):
        last = trials.rows_of(trials.turned) - 1
        findings = _compare_rows(trials, name, (trials.turned, [0]), (trials.turned, [last]))
    elif trials.joined is not None:
        reason = trials.joined.detail if trials.joined.outcome == "skipped" else "the larger batch fails"
    return worst(findings, skipped(name, reason))


def permuted_rows(trials: Trials) -> Relation:
    """Rows in another order have the same results."""
    name: RelationName = "permuted rows"
    if isinstance(trials.batch, str):
        return skipped(name, trials.batch)
    findings: list[Relation] = []
    if isinstance(trials.joined, Joined):
        joined, count = trials.joined.result, trials.joined.distinct
        repeated, first = trials.joined.repeated()
        if count > 1 and repeated[:count] == list(range(count, 2 * count)):
            findings += _compare_rows(trials, name, (joined, first[:count]), (joined, repeated[:count]))
    if trials.agree:
        expected, actual = trials.concurrent.pairs[1]
        if expected.feed is trials.small.feed and expected.selection is not None:
            findings += trials.model.compare(name, expected, actual)
    if findings or trials.turned is None:
        return worst(findings, skipped(name, trials.no_rows))
    if isinstance(trials.turned, Relation):
        return trials.turned
    size = trials.rows_of(trials.turned)
    positions = np.arange(size if isinstance(trials.joined, Joined) else size - 1)
    order = trials.reversed_order[: len(positions)]
    findings += _compare_rows(trials, name, (trials.several, order), (trials.turned, positions))
    return worst(findings, skipped(name, trials.no_rows))


# In order of their inferences: what changed in the engine is searched before the last batches.
CHECKS: dict[RelationName, Callable[[Trials], Relation]] = {
    "repeated inference": repeated_inference,
    "shape order": shape_order,
    "buffer contents": buffer_contents,
    "two contexts": two_contexts,
    "other inputs": other_inputs,
    "batch size": batch_size,
    "permuted rows": permuted_rows,
    "equal rows": equal_rows,
}


def _compare(trials: Trials, name: RelationName, pairs: Iterable[tuple[Result, Result]]) -> Relation:
    findings: list[Relation] = []
    for expected, actual in pairs:
        findings += trials.model.compare(name, expected, actual)
    return worst(findings, skipped(name, "the engine has no output"))


def _compare_after(trials: Trials, name: RelationName, again: Sequence[Result], reason: str) -> Relation:
    """Compare the smallest feed's results after another inference; ``reason`` says why there was none."""
    if not reason and len(again) > 1 and not trials.model.holds(again[1], again[2]):
        reason = "repeated inferences differ"
    return skipped(name, reason) if reason else _compare(trials, name, [(trials.small, again[0])])


def _compare_rows(
    trials: Trials, name: RelationName, expected: tuple[Result, Rows], actual: tuple[Result, Rows]
) -> Iterator[Relation]:
    """Compare rows of two results."""
    if len(expected[1]):
        yield from trials.model.compare(name, trials.select(*expected), trials.select(*actual))


def _rows_of_batch(sizes: Sequence[int], small: int) -> int:
    """Return the size of the larger batch: all inferences of a check cost less than three comparisons.

    A comparison infers each row twice, by the model and by the engine. Apart from the batch, the smallest feed is
    inferred three times, another of its size or the largest one once, and one row alone. Comparing takes time as well.
    """
    total = sum(sizes)
    left = int(4.6 * total) - 3 * small - (max(sizes) if len(sizes) > 1 else 0) - (small > 1)
    rows = min(left, 2 * total + 3)
    # An odd size, which no tile of a kernel divides.
    return max(rows - (rows % 2 == 0), small + 1)


def _elements(feed: Feed) -> int:
    return sum(array.size for array in feed.values())
