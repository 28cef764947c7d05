"""Check an engine against itself: relations between the results of every sound engine.

They need no golden outputs, and find faults that a comparison on the given data cannot show: one wrong row of a batch,
results of an earlier inference, a kernel that is wrong for another size, a buffer that two contexts share.

Relations share inferences: a larger batch of all rows, other contents of the buffers in a second context, and then both
contexts at once on data with known results. Only where these differ, further inferences find the broken relation.

Larger batches repeat the rows of the data, in an order that is its own reverse. Kernels of another shape sum in another
order, so results of another shape may differ by some rounding units of the output's scale. Only where a difference is
larger, the relation is checked on the model in ONNX Runtime: a model may break it itself, such as one that normalizes
over the batch, and may amplify rounding errors. A sound engine therefore costs no inference of the model.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from trtops import errors
from trtops.backend.engines import reference_runner
from trtops.backend.runner import BaseRunner, Feed, ProfiledFeed
from trtops.comparator.arrays import is_floating
from trtops.metadata import TensorMetadata, is_dynamic
from trtops.ops.evaluation.data import UNITS
from trtops.ops.evaluation.shapes import profile_of
from trtops.record import Record
from trtops.spec import BuildConfig, OptimizationProfile, Rounding
from trtops.verdict import Verdict

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model

Array: TypeAlias = np.ndarray[Any, Any]
Outputs: TypeAlias = dict[str, Array]
Rows: TypeAlias = Sequence[int] | np.ndarray[Any, np.dtype[np.intp]]

RelationName: TypeAlias = Literal[
    "equal rows", "permuted rows", "batch size", "other inputs", "shape order", "buffer contents", "repeated inference",
    "two contexts",
]  # fmt: skip
RELATIONS: tuple[RelationName, ...] = get_args(RelationName)
_STATEMENTS: dict[RelationName, str] = {
    "equal rows": "equal rows of a batch have different results",
    "permuted rows": "rows in another order have different results",
    "batch size": "rows have different results in batches of different size",
    "other inputs": "other inputs have the same results",
    "shape order": "the results change after an inference of a larger shape",
    "buffer contents": "the results change with the inputs of the inference before",
    "repeated inference": "the same inputs have different results",
    "two contexts": "two contexts that infer at once have other results than one",
}

# Rounding units of an output's scale by which results may differ: of the same shape, and of another one.
_SAME_SHAPE, _OTHER_SHAPE = 4.0, 16.0
# Inputs are moved by this number of rounding units to measure how much a model amplifies errors, and differences may be
# this many times as large as the effect.
_NUDGE, _TIMES = 4.0, 4.0
# A model breaks a relation itself if its own difference is at least this share of the engine's.
_OWN_SHARE = 1 / 64
# A channel's scale is at most this many times its own largest value, however large the others are.
_CHANNELS = 30.0
_ON_REQUEST = "only with --self-check"
_MAX_BATCH = 32  # larger batches only cost memory
_THOROUGH_BYTES = 1 << 24  # of the inputs of a batch of that size, up to which a thorough check has one
_MAX_FEEDS = 8  # at the beginning and at the end of the data, where shapes of profiles are

# With NaN among its inputs a comparator of ONNX Runtime may read out of bounds, and a loop may not end.
_NO_NAN = frozenset(
    ("TopK", "Loop", "Scan", "If", "NonMaxSuppression", "Range", "Unique", "Resize", "ConstantOfShape", "RoiAlign")
)


@dataclass(frozen=True, kw_only=True)
class Relation(Record):
    """One relation: its outcome, and its largest difference with the allowed one."""

    name: RelationName
    outcome: Literal["held", "broken", "skipped"]
    output: str = ""
    largest: float = 0.0  # of all elements the one with the largest difference relative to its allowance
    allowed: float = 0.0
    detail: str = ""  # why it is skipped, or what fails

    def reason(self) -> str:
        """The broken relation with its numbers."""
        text = f"self-check: {_STATEMENTS[self.name]}"
        if self.detail:
            return f"{text}: {self.detail}"
        if self.name == "other inputs":
            return f"{text}: `{self.output}` is equal, and differs by {self.largest:.3g} in the model"
        return f"{text}: `{self.output}` differs by {self.largest:.3g}, {self.allowed:.3g} is allowed"


@dataclass(frozen=True, kw_only=True)
class SelfCheck(Record):
    """The relations of an engine's results to each other."""

    relations: tuple[Relation, ...]
    inferences: int = 0  # of the engine, further than those of the evaluation
    reference_inferences: int = 0  # of the model

    @property
    def verdict(self) -> Verdict:
        """``bad`` if a relation is broken."""
        return "bad" if self.reasons else "good"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is bad, one sentence for each broken relation."""
        return tuple(relation.reason() for relation in self.relations if relation.outcome == "broken")

    def named(self, outcome: Literal["held", "broken", "skipped"]) -> tuple[RelationName, ...]:
        """The relations with an outcome."""
        return tuple(relation.name for relation in self.relations if relation.outcome == outcome)

    def sentence(self) -> str:
        """The relations in a line."""
        text = f"Self-check: {len(self.named('held'))} of {len(self.relations)} relations hold"
        if broken := self.named("broken"):
            text += f"; broken: {', '.join(broken)}"
        # Relations that are skipped for the same reason share it.
        skipped: dict[str, list[str]] = {}
        for relation in self.relations:
            if relation.outcome == "skipped":
                skipped.setdefault(relation.detail, []).append(relation.name)
        if list(skipped) == [_ON_REQUEST] and not broken:
            return f"Self-check: {', '.join(self.named('held'))} holds; --self-check checks the other relations."
        if skipped:
            text += "; skipped: " + "; ".join(f"{', '.join(names)} ({reason})" for reason, names in skipped.items())
        return f"{text}."


def accepts_nan(model: Model) -> bool:
    """Whether inputs of NaN are safe to run: no node sorts, loops, or makes shapes of values."""
    from trtops.backend.onnx import walk

    return not any(node.op_type in _NO_NAN for node in walk.nodes(model.structure()))


def self_check(
    runner: BaseRunner,
    feeds: Iterable[Feed],
    reference: BaseRunner,
    *,
    outputs: Sequence[Mapping[str, Any]] | None = None,
    precision: Rounding = "fp32",
    batches: tuple[int, int] = (1, _MAX_BATCH),
    nan: bool = False,
    thorough: bool = False,
) -> SelfCheck:
    """Check the relations of an active runner's results to each other.

    Its batch axes are the dynamic first axes of the inputs, with further axes of the same name, or the equal first
    sizes of a model of fixed shapes. Errors of the runner on the feeds themselves are raised; on others they break a
    relation, if the model runs on them.

    ``reference`` is a runner of the model, which is activated on its first use if it is not active. ``outputs`` are the
    runner's first results for the feeds, if there are any. ``batches`` are the smallest and the largest batch that the
    engine accepts. With ``nan`` the model may be run on NaN (:func:`accepts_nan`). A ``thorough`` check uses a batch of
    up to 32 rows, where the inputs are small; otherwise one that costs less than three comparisons.
    """
    checked_feeds = [_like(feed, {name: np.asarray(array) for name, array in feed.items()}) for feed in feeds]
    if not checked_feeds:
        raise errors.InputError("There is no feed to check an engine on; expected at least one.")
    check = _Check(runner, reference, precision, thorough)
    with check.opened:
        results: Iterable[Mapping[str, Any]] = map(check.infer, checked_feeds) if outputs is None else outputs
        sides = [
            _Side(feed, {n: np.asarray(a) for n, a in feed_outputs.items()})
            for feed, feed_outputs in zip(checked_feeds, results)
        ]
        check.run(sides, batches, nan)
    return check.result()


def check_repeated(
    model: Model,
    feeds: Iterable[Feed],
    results: tuple[Mapping[str, Any], Mapping[str, Any]],
    build: BuildConfig,
    *,
    after_larger: bool = False,
) -> SelfCheck:
    """Check an engine's results for the first feed, before and after other inferences; costs no inference.

    ``after_larger`` says that some of those had larger inputs. Feeds are only read if the results differ.
    """
    first, last = ({name: np.asarray(array) for name, array in outputs.items()} for outputs in results)
    differ = any(not np.array_equal(array, last.get(name, ())) for name, array in first.items())
    feed = {name: np.asarray(array) for name, array in next(iter(feeds)).items()} if differ else {}
    names: tuple[RelationName, ...] = ("repeated inference", "shape order") if after_larger else ("repeated inference",)
    check = _Check(None, reference_runner(model), _precision(model, build))
    with check.opened:
        for name in names:
            check.compare(name, _Side(feed, first), _Side(feed, last))
    for name in RELATIONS:
        check.skip(name, _ON_REQUEST)
    return check.result()


def check_engine(
    runner: BaseRunner,
    model: Model,
    feeds: Iterable[Feed],
    outputs: Sequence[Mapping[str, Any]],
    build: BuildConfig,
    *,
    thorough: bool = False,
) -> SelfCheck:
    """Check an engine of a model with the results of its first and last feeds."""
    whole = list(feeds)
    chosen = sorted({*range(len(whole))[:_MAX_FEEDS], *range(len(whole))[-_MAX_FEEDS:]})
    used = [whole[i] for i in chosen]
    return self_check(
        runner,
        used,
        reference_runner(model),
        outputs=[outputs[i] for i in chosen],
        precision=_precision(model, build),
        batches=batch_bounds(build.profiles, used),
        nan=accepts_nan(model),
        thorough=thorough,
    )


def _precision(model: Model, build: BuildConfig) -> Rounding:
    from trtops.backend.onnx.quantize import is_quantized

    return "int8" if is_quantized(model.structure()) else build.rounding


def batch_bounds(profiles: Sequence[OptimizationProfile], feeds: Iterable[Feed]) -> tuple[int, int]:
    """Smallest and largest batch of the smallest feed's profile."""
    smallest = min(feeds, key=_size)
    number = getattr(smallest, "profile", None)
    number = profile_of(smallest, profiles) if number is None else number
    if not profiles or number is None:
        return 1, _MAX_BATCH
    ranges = [
        bounds for bounds in profiles[number].shapes if bounds.min and np.ndim(smallest[bounds.name]) == len(bounds.min)
    ]
    sizes = [(bounds.min[0], bounds.max[0]) for bounds in ranges]
    # Other inputs may have a first axis that is no batch, and fixed.
    sizes = [(low, high) for low, high in sizes if low < high] or sizes[:1] or [(1, _MAX_BATCH)]
    return max(low for low, _ in sizes), min(high for _, high in sizes)


class _Side(NamedTuple):
    """One side of a comparison: results for a feed, and the compared rows (default: all elements)."""

    feed: Feed
    outputs: Outputs
    rows: Rows | None = None


class _Batch(NamedTuple):
    """The batch axes of a model's inputs and of its known outputs; ``dynamic`` if batches may differ."""

    inputs: Mapping[str, int]
    outputs: dict[str, int]
    dynamic: bool

    def size(self, feed: Feed) -> int:
        name, axis = next(iter(self.inputs.items()))
        return int(feed[name].shape[axis])

    def alike(self, sides: Iterable[_Side], like: _Side) -> list[_Side]:
        """The sides with rows of the same shapes as those of another side."""

        def row(feed: Feed) -> Any:  # inputs without batch axis must be equal
            return {
                name: np.delete(array.shape, self.inputs[name]).tolist() if name in self.inputs else array.tobytes()
                for name, array in feed.items()
            }

        return [side for side in sides if row(side.feed) == row(like.feed)]

    def take(self, feed: Feed, rows: Rows) -> Feed:
        taken = {n: np.take(a, rows, self.inputs[n]) if n in self.inputs else a for n, a in feed.items()}
        return _like(feed, taken)

    def join(self, feeds: Sequence[Feed]) -> Feed:
        joined = {
            name: np.concatenate([feed[name] for feed in feeds], self.inputs[name]) if name in self.inputs else array
            for name, array in feeds[0].items()
        }
        return _like(feeds[0], joined)

    def learn(self, base: _Side, variant: _Side) -> None:
        """Find the batch axis of each output from the sizes of two results."""
        sizes = self.size(base.feed), self.size(variant.feed)
        for name, array in base.outputs.items():
            shapes = array.shape, np.shape(variant.outputs.get(name, ()))
            if name not in self.outputs and len(shapes[0]) == len(shapes[1]):
                for axis, (base_size, variant_size) in enumerate(zip(*shapes)):
                    grows = base_size * sizes[1] == variant_size * sizes[0] and not base_size % sizes[0]
                    if base_size and grows and (sizes[0] != sizes[1] or base_size == sizes[0]):
                        self.outputs[name] = axis
                        break


class _Check:
    """The relations of one engine while they are checked."""

    def __init__(
        self, runner: BaseRunner | None, reference: BaseRunner, precision: Rounding, thorough: bool = False
    ) -> None:
        self.inferences = self.reference_inferences = 0
        self.opened = contextlib.ExitStack()  # closes the model
        self._runner, self._model, self._thorough = runner, reference, thorough
        self._kept: dict[tuple[int, float], tuple[Feed, Outputs]] = {}  # of the model, with the feed, whose id stays
        self._unit = UNITS[precision]
        self._batch: _Batch | None = None
        self._found: dict[tuple[RelationName, str], Relation] = {}
        self._skipped: dict[RelationName, str] = {}

    def result(self) -> SelfCheck:
        """The worst finding of each relation; skipped only if skipped for each output."""
        counts = {"inferences": self.inferences, "reference_inferences": self.reference_inferences}
        return SelfCheck(relations=tuple(map(self._worst, RELATIONS)), **counts)

    def _worst(self, name: RelationName) -> Relation:
        relations = [relation for relation in self._found.values() if relation.name == name]
        skipped = Relation(name=name, outcome="skipped", detail=self._skipped.get(name, "no output has a batch axis"))
        return max(relations, key=lambda candidate: _rank(candidate, "skipped held broken"), default=skipped)

    def infer(self, feed: Feed, runner: BaseRunner | None = None) -> Outputs:
        runner = runner or self._runner
        assert runner is not None
        self.inferences += 1
        return _copied(runner.infer(feed))

    def _infer_again(self, side: _Side) -> _Side:
        return _Side(side.feed, self.infer(side.feed))

    def _infer_model(self, feed: Feed) -> Outputs:
        if not self._model.is_active:
            self.opened.enter_context(self._model)
        self.reference_inferences += 1
        return _copied(self._model.infer(feed))

    def _model_outputs(self, feed: Feed, step: float = 0.0) -> Outputs:
        """The model's results for a feed; floating-point values move at random by up to a relative step."""
        if (id(feed), step) not in self._kept:
            random = np.random.default_rng(1)
            moved = {
                name: _moved(array, 1 + step * random.uniform(-1, 1, array.shape)) if step else array
                for name, array in feed.items()
            }
            self._kept[id(feed), step] = feed, self._infer_model(moved)
        return self._kept[id(feed), step][1]

    def skip(self, name: RelationName, reason: str) -> None:
        self._skipped.setdefault(name, reason)

    def attempt(self, name: RelationName, feed: Feed) -> _Side | None:
        """Infer on a feed of our own; None on failure, a broken relation if the model runs on it."""
        try:
            return _Side(feed, self.infer(feed))
        except errors.InputError as exc:
            self.skip(name, f"the engine does not accept the inputs: {exc}")
        except errors.TrtopsError as exc:
            relation = Relation(name=name, outcome="broken", detail=f"the engine fails ({exc})"[:300])
            with contextlib.suppress(errors.TrtopsError):
                if self._model_outputs(feed):
                    self._note(relation)
                    return None
            self.skip(name, f"the model does not run on the inputs: {exc}"[:300])
        return None

    def run(self, sides: Sequence[_Side], batches: tuple[int, int], nan: bool) -> None:
        """Check all relations; ``sides`` are the feeds with their first results."""
        assert self._runner is not None
        small, large = (pick(sides, key=lambda side: _size(side.feed)) for pick in (min, max))
        others = [side for side in sides if side is not small and _shapes(side.feed) == _shapes(small.feed)]
        for side in others:
            self._check_other_inputs(small, side)
        for side in others[:1]:
            self.compare("repeated inference", side, self._infer_again(side))
        variant = _scaled(small.feed, 0.5)
        batch = _batch_of(self._runner.get_input_metadata(), small.feed)
        joined: _Side | None = None
        if isinstance(batch, str):
            for row_relation in ("equal rows", "permuted rows", "batch size"):
                self.skip(row_relation, batch)
        else:
            self._batch = batch
            if batch.dynamic:
                joined = self._check_joined(batch, sides, small, variant, batches)
            else:
                self.skip("batch size", "the model's batch is fixed")
        if not others and joined is None and variant is not None and (half := self.attempt("other inputs", variant)):
            others = [half]
            self._check_other_inputs(small, half)
        self.skip("other inputs", "there is one feed, and no floating-point input to change")
        larger = joined
        if _size(large.feed) > _size(small.feed):
            larger = self._infer_again(large)
            self.compare("repeated inference", large, larger)
        other = self._other_side(small, large, others, joined)
        # NaN, or values a thousand times as large, where they are floating-point numbers.
        self._check_contexts(small, other, larger, variant and _scaled(small.feed, np.nan if nan else -1000.0))
        if not isinstance(batch, str) and ("permuted rows" not in {name for name, _ in self._found}):
            self._check_permuted(batch, batch.alike(sides, small), joined)
        if self._worst("repeated inference").outcome == "skipped":
            self._found = {key: relation for key, relation in self._found.items() if key[0] == "repeated inference"}
            self._skipped = dict.fromkeys(RELATIONS, "the model's own results change from inference to inference")

    def _other_side(self, small: _Side, large: _Side, others: Sequence[_Side], joined: _Side | None) -> _Side:
        """A feed with known outputs for the second context: reversed rows, another feed, or rows of a batch."""
        batch = self._batch
        if batch is not None and joined is not None and not small.outputs.keys() - batch.outputs.keys():
            size = batch.size(small.feed)
            if 1 < size == batch.size(large.feed):
                return small._replace(rows=range(size)[::-1])
            if not others and self._worst("batch size").outcome == "held":
                return joined._replace(rows=range(size))
        return others[0] if others else small

    def _check_permuted(self, batch: _Batch, sides: Sequence[_Side], joined: _Side | None) -> None:
        """Check the rows of the largest batch of the data in reverse order."""
        several = max(sides, key=lambda side: batch.size(side.feed))
        size = batch.size(several.feed)
        if size == 1:
            self.skip("equal rows", "every batch has one row")
            self.skip("permuted rows", "every batch has one row")
            return
        order = np.arange(size)[::-1].copy()  # not a list: an input of one axis may have millions of rows
        if joined is None:
            order[-1] = order[0]  # equal rows as well
        turned = self.attempt("permuted rows", batch.take(several.feed, order))
        if turned is not None:
            batch.learn(several, turned)
            positions = np.arange(size if joined is not None else size - 1)
            self._compare_rows("permuted rows", several, order[positions], turned, positions)
            if joined is None:
                self._compare_rows("equal rows", turned, [0], turned, [size - 1])

    def _check_joined(
        self, batch: _Batch, sides: Sequence[_Side], small: _Side, variant: Feed | None, batches: tuple[int, int]
    ) -> _Side | None:
        """Check a batch of all rows, then all reversed, and so on, and a batch of one row; returns the larger batch."""
        row_sources = ((side, row) for side in batch.alike(sides, small) for row in range(batch.size(side.feed)))
        rows = list(islice(row_sources, _MAX_BATCH))
        min_rows, max_rows = batches[0], min(batches[1], _MAX_BATCH)
        singles = [batch.take(side.feed, [row]) for side, row in rows[:max_rows]]
        data_rows = len(singles)
        if data_rows == 1 < max_rows and variant is not None:
            # The row itself comes last, where a batch is most often wrong.
            singles.insert(0, batch.take(variant, [0]))
        count = len(singles)
        batch_rows = min(_rows_of_batch([batch.size(side.feed) for side in sides], batch.size(small.feed)), max_rows)
        if self._thorough and max_rows * sum(array.nbytes for array in singles[0].values()) <= _THOROUGH_BYTES:
            batch_rows = max(batch_rows, max_rows - (max_rows % 2 == 0))
        cycle = [*range(count), *reversed(range(count))]
        order = [cycle[i % len(cycle)] for i in range(max(batch_rows, min_rows))]
        if len(order) == data_rows:
            order[-1] = order[0]  # rows that are equal are needed as well
        if min_rows == 1 < batch.size(small.feed):
            alone = self.attempt("batch size", batch.take(small.feed, [0]))
            if alone is not None:
                batch.learn(small, alone)
                self._compare_rows("batch size", small, [0], alone, [0])
        joined = self.attempt("batch size", batch.join([singles[i] for i in order]))
        if joined is None:
            self.skip("equal rows", self._skipped.get("batch size", "the larger batch fails"))
            return None
        batch.learn(small, joined)
        self._check_lost_rows(batch, small, joined)
        for (side, row), position in zip((rows[i] for i in order[:data_rows]), range(count - data_rows, len(order))):
            if batch.size(side.feed) != len(order):
                self._compare_rows("batch size", side, [row], joined, [position])
        first = [order.index(i) for i in order]
        again = [position for position, i in enumerate(first) if i != position]
        turned = [position for position in again if position < 2 * count and count > 1]
        if len(turned) == count:
            self._compare_rows("permuted rows", joined, [first[position] for position in turned], joined, turned)
        self._compare_rows("equal rows", joined, [first[position] for position in again], joined, again)
        if len(set(order[:2])) > 1:
            self._check_other_inputs(joined._replace(rows=(0,)), joined._replace(rows=(1,)))
        return joined

    def _check_lost_rows(self, batch: _Batch, small: _Side, joined: _Side) -> None:
        """Check the shapes of outputs not proportional to the batch."""
        unknown = joined.outputs.keys() - batch.outputs.keys()
        if not unknown:
            return
        model_batch = batch._replace(outputs={})
        try:
            large = joined._replace(outputs=self._model_outputs(joined.feed))
            model_batch.learn(small._replace(outputs=self._model_outputs(small.feed)), large)
        except errors.TrtopsError:
            return
        for name in sorted(unknown & model_batch.outputs.keys()):
            reason = f"`{name}` has shape {joined.outputs[name].shape}, and {large.outputs[name].shape} in the model"
            self._note(Relation(name="batch size", outcome="broken", output=name, largest=math.inf, detail=reason))

    def _check_again(self, cause: RelationName, first: _Side) -> None:
        """Compare a feed's results with its first ones; ``cause`` is broken if the inference before changed them."""
        repeated = self._infer_again(first)
        if not self._holds(first, repeated):
            second, third = self._infer_again(first), self._infer_again(first)
            for earlier, later in ((second, third), (first, second)):  # they change by themselves, or for good
                self.compare("repeated inference", earlier, later)
            if not self._holds(second, third):
                self.skip(cause, "repeated inferences differ")
                return
        else:
            self.compare("repeated inference", first, repeated)
        self.compare(cause, first, repeated)

    def _check_contexts(self, small: _Side, other: _Side, larger: _Side | None, disturbing: Feed | None) -> None:
        """Infer a feed after ``larger``, and at once another one in a second context with used buffers.

        If results differ, or there is no second context, the small feed is inferred alone after both.
        """
        if larger is None:
            self.skip("shape order", "all inputs have the same shapes")
        if disturbing is None:
            self.skip("buffer contents", "no input is a floating-point number")
        at_once = self._infer_at_once(small, other, disturbing)
        if at_once and all(self._holds(*pair) for pair in at_once):
            names: list[list[RelationName]]
            names = [["repeated inference", "two contexts", "shape order"], ["two contexts", "buffer contents"]]
            if other.feed is small.feed and other.rows is not None:
                names[1].append("permuted rows")
            for pair, relations in zip(at_once, names):
                for name in relations:
                    if name not in self._skipped:
                        self.compare(name, *pair)
            return
        causes: tuple[RelationName, ...] = ("shape order", "buffer contents")
        for cause in causes:
            if cause == "buffer contents":
                self._disturb(disturbing)
            elif at_once and larger is not None:
                self.infer(larger.feed)
            self._check_again("repeated inference" if cause in self._skipped else cause, small)
        # An inference that is wrong on its own says nothing about two at once.
        if any(self._worst(cause).outcome == "broken" for cause in causes):
            self.skip("two contexts", "the results already change after other inferences")
            return
        for _, concurrent in at_once:
            self.compare("two contexts", self._infer_again(concurrent), concurrent._replace(rows=None))

    def _disturb(self, feed: Feed | None, runner: BaseRunner | None = None) -> None:
        try:
            if feed is not None:
                self.infer(feed, runner)
        except errors.TrtopsError as exc:
            self.skip("buffer contents", f"the engine does not run on other contents: {exc}"[:300])

    def _infer_at_once(self, small: _Side, other: _Side, disturbing: Feed | None) -> list[tuple[_Side, _Side]]:
        """Infer in two contexts at once, the second after other contents; the expected and the found results.

        Empty if that is not possible.
        """
        assert self._runner is not None
        try:
            second = self._runner.second_context()
            if second is None:
                self.skip("two contexts", "the back end opens no second context")
                return []
            second.activate()
        except errors.TrtopsError as exc:
            self.skip("two contexts", f"no second context could be opened: {exc}"[:300])
            return []
        start = threading.Barrier(2)

        def infer(side: _Side, runner: BaseRunner | None) -> tuple[_Side, _Side]:
            feed, rows = side.feed, side.rows
            if rows is not None and self._batch is not None:
                feed, rows = self._batch.take(feed, rows), range(len(rows))
            start.wait()
            return side, _Side(feed, self.infer(feed, runner), rows)

        try:
            self._disturb(disturbing, second)
            with ThreadPoolExecutor(1) as pool:
                later = pool.submit(infer, other, second)
                return [infer(small, None), later.result()]
        except errors.TrtopsError as exc:
            self._note(Relation(name="two contexts", outcome="broken", detail=f"the engine fails ({exc})"[:300]))
            return []
        finally:
            second.deactivate()

    def _check_other_inputs(self, base: _Side, variant: _Side) -> None:
        """Check equal floating-point outputs for different inputs against the model."""
        name: RelationName = "other inputs"
        for output, first, second in self._pairs(base, variant):
            if not is_floating(first) or not np.array_equal(first, second, equal_nan=True):
                continue
            try:
                model_sides = [side._replace(outputs=self._model_outputs(side.feed)) for side in (base, variant)]
            except errors.TrtopsError:
                continue
            pair = self._pair(model_sides[0], model_sides[1], output)
            largest, allowed = (0.0, 0.0) if pair is None else _difference(*pair, _OTHER_SHAPE * self._unit)
            if largest > allowed:
                self._note(Relation(name=name, outcome="broken", output=output, largest=largest, allowed=allowed))
        self._note(Relation(name=name, outcome="held"))

    def _compare_rows(self, name: RelationName, expected: _Side, rows: Rows, actual: _Side, places: Rows) -> None:
        if len(rows):
            self.compare(name, expected._replace(rows=rows), actual._replace(rows=places))

    def _holds(self, expected: _Side, actual: _Side) -> bool:
        differences = (_difference(e, a, self._units(expected, actual)) for _, e, a in self._pairs(expected, actual))
        return all(largest <= allowed for largest, allowed in differences)

    def compare(self, name: RelationName, expected: _Side, actual: _Side) -> None:
        """Compare results; the model decides on large differences."""
        for output, first, second in self._pairs(expected, actual):
            largest, allowed = _difference(first, second, self._units(expected, actual))
            relation = Relation(name=name, outcome="held", output=output, largest=largest, allowed=allowed)
            if largest > allowed:
                relation = self._decide(replace(relation, outcome="broken"), expected, actual)
            self._note(relation)

    def _decide(self, relation: Relation, expected: _Side, actual: _Side) -> Relation:
        """Compare a difference with the model's own in the same relation, and with the effect of rounding errors."""
        output, same_feed = relation.output, expected.feed is actual.feed
        try:
            model_outputs = self._model_outputs(expected.feed)
            # Three times, since random numbers may be equal by chance.
            tries = [self._infer_model(actual.feed) for _ in range(3 if same_feed else 1)]
            moved = self._model_outputs(expected.feed, _NUDGE * self._unit)
        except errors.TrtopsError as exc:
            return replace(relation, outcome="skipped", detail=f"the model does not run on the inputs: {exc}"[:300])
        if output not in model_outputs:  # a marked tensor
            return replace(relation, outcome="skipped", detail=f"the model has no output `{output}`")
        largest = 0.0
        before = expected._replace(outputs=model_outputs)
        for again in tries:
            pair = self._pair(before, actual._replace(outputs=again), output)
            difference, allowed = (0.0, 0.0) if pair is None else _difference(*pair, _OTHER_SHAPE * UNITS["fp32"])
            largest = max(largest, difference if difference > allowed else 0.0)
        if largest > 0 and (same_feed or math.isinf(largest) or largest >= _OWN_SHARE * relation.largest):
            reason = f"the model breaks it itself: `{output}` differs by {largest:.3g}"
            return replace(relation, outcome="skipped", detail=reason)
        noise, pair = self._pair(before, expected._replace(outputs=moved), output), self._pair(expected, actual, output)
        if noise is None or pair is None or len({noise[0].shape, noise[1].shape, pair[0].shape}) > 1:
            return replace(relation, outcome="skipped", detail=f"the shape of `{output}` depends on rounding errors")
        difference, allowed = _difference(*pair, self._units(expected, actual), noise)
        outcome: Literal["held", "broken"] = "held" if difference <= allowed else "broken"
        return replace(relation, outcome=outcome, largest=difference, allowed=allowed)

    def _units(self, expected: _Side, actual: _Side) -> float:
        return (_SAME_SHAPE if _shapes(expected.feed) == _shapes(actual.feed) else _OTHER_SHAPE) * self._unit

    def _pair(self, expected: _Side, actual: _Side, output: str) -> tuple[Array, Array] | None:
        return next(((first, second) for name, first, second in self._pairs(expected, actual) if name == output), None)

    def _pairs(self, expected: _Side, actual: _Side) -> Iterator[tuple[str, Array, Array]]:
        """Each output's two arrays to compare; rows only of outputs with a batch axis."""
        for name, array in expected.outputs.items():
            if name not in actual.outputs:
                yield name, array, np.empty(0)
            elif expected.rows is None or actual.rows is None:
                yield name, array, actual.outputs[name]
            elif self._batch is not None and name in self._batch.outputs:
                axis = self._batch.outputs[name]
                first, second = (
                    _rows(e.outputs[name], axis, self._batch.size(e.feed), e.rows) for e in (expected, actual)
                )
                if first is not None and second is not None:
                    yield name, first, second

    def _note(self, relation: Relation) -> None:
        """Keep the worst finding of a relation for each output."""
        key = relation.name, relation.output
        findings = self._found.get(key, relation), relation
        self._found[key] = max(findings, key=lambda finding: _rank(finding, "held skipped broken"))


def _rank(relation: Relation, order: str) -> tuple[int, float]:
    ratio = relation.largest / relation.allowed if relation.allowed else math.inf if relation.largest else 0.0
    return order.split().index(relation.outcome), ratio


def _batch_of(inputs: TensorMetadata, feed: Feed) -> _Batch | str:
    """The batch axes of the inputs, or why there is no batch."""
    dims = []
    for name, spec in inputs.items():
        if spec.shape and name in feed and feed[name].ndim:
            dims += [(name, axis, dim) for axis, dim in enumerate(spec.shape)]
    named = [entry for entry in dims if isinstance(entry[2], str) and "batch" in entry[2].lower()]
    batch_dims = named or [(name, axis, dim) for name, axis, dim in dims if axis == 0 and is_dynamic(dim)]
    if not batch_dims:
        sizes = {name: int(feed[name].shape[0]) for name, _, _ in dims}
        if set(sizes.values()) <= {1}:
            return "the model's batch is fixed at one row"
        if len(set(sizes.values())) > 1:
            return "the inputs' first sizes differ"
        return _Batch(dict.fromkeys(sizes, 0), {}, False)
    first, first_axis, symbol = batch_dims[0]
    axes: dict[str, int] = {}
    for name, axis, dim in dims:
        same = dim == symbol if isinstance(dim, str) and isinstance(symbol, str) else axis == 0 and is_dynamic(dim)
        if same and feed[name].shape[axis] == feed[first].shape[first_axis]:
            axes.setdefault(name, axis)
    return _Batch(axes, {}, True)


def _rows_of_batch(sizes: Sequence[int], small: int) -> int:
    """The size of the larger batch: all inferences of a check cost less than three comparisons.

    A comparison infers each row twice, by the model and by the engine. Apart from the batch, the smallest feed is
    inferred three times, another of its size or the largest one once, and one row alone. Comparing takes time as well.
    """
    total = sum(sizes)
    left = int(4.6 * total) - 3 * small - (max(sizes) if len(sizes) > 1 else 0) - (small > 1)
    rows = min(left, 2 * total + 3)
    # An odd size, which no tile of a kernel divides.
    return max(rows - (rows % 2 == 0), small + 1)


def _rows(array: Array, axis: int, batch: int, rows: Rows | None) -> Array | None:
    """Some rows of an output with one block for each row of the batch."""
    if array.ndim <= axis or array.shape[axis] % batch:
        return None
    blocks = array.reshape(*array.shape[:axis], batch, array.shape[axis] // batch, *array.shape[axis + 1 :])
    return np.take(blocks, () if rows is None else rows, axis)


def _like(feed: Feed, arrays: Mapping[str, Array]) -> Feed:
    """Arrays as a feed for the same profile."""
    return ProfiledFeed(arrays, feed.profile, feed.point) if isinstance(feed, ProfiledFeed) else dict(arrays)


def _copied(outputs: Mapping[str, Any]) -> Outputs:
    return {name: np.array(array) for name, array in outputs.items()}


def _shapes(feed: Feed) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feed.items()}


def _size(feed: Feed) -> int:
    return sum(array.size for array in feed.values())


def _moved(array: Array, factor: Any) -> Array:
    if not is_floating(array):
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array.astype(np.float64) * factor, array.dtype)


def _scaled(feed: Feed, factor: float) -> Feed | None:
    """A feed with multiplied floating-point values; None without any."""
    changed = _like(feed, {name: _moved(array, factor) for name, array in feed.items()})
    return changed if any(changed[name].tobytes() != np.asarray(a).tobytes() for name, a in feed.items()) else None


def _difference(
    expected: Array, actual: Array, units: float, noise: tuple[Array, Array] | None = None
) -> tuple[float, float]:
    """The difference and the allowed one, of the element with the largest ratio.

    ``units`` are relative to the expected values' scale; ``noise`` are two results of the model whose difference, some
    times, is allowed as well.
    """
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return math.inf, 0.0
    if np.array_equal(expected, actual):
        return 0.0, 0.0
    if expected.dtype.kind not in "fiub" and expected.dtype.name != "bfloat16":
        return math.inf, 0.0
    first, second = (array.astype(np.float64) for array in (expected, actual))
    with np.errstate(invalid="ignore"):
        equal = (first == second) | (np.isnan(first) & np.isnan(second))
        difference = np.where(equal, 0.0, np.abs(second - first))
        difference = np.where(np.isnan(difference), np.inf, difference)
        allowed = np.broadcast_to(units * _scale(first) if is_floating(expected) else 0.0, first.shape)
        if noise is not None:
            moved = np.abs(noise[1].astype(np.float64) - noise[0].astype(np.float64))
            moved = np.where(np.isnan(moved) & ~np.isnan(noise[0].astype(np.float64)), np.inf, moved)
            allowed = np.maximum(allowed, _TIMES * _scale(moved, infinite=True))
        ratio = np.where(difference > 0, difference / np.where(allowed > 0, allowed, 1e-300), 0.0)
        ratio = np.where(np.isnan(ratio), 1.0, ratio)  # both infinite
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    return float(difference[worst]), float(allowed[worst])


def _scale(values: Array, *, infinite: bool = False) -> Array:
    """The largest absolute value, at most some multiple of that of each channel, along the second or last axis."""
    size = np.abs(values)
    if not infinite:
        size = np.where(np.isfinite(size), size, 0.0)
    if not size.size:
        return size
    scale = np.full((1,) * size.ndim, size.max(initial=0.0))
    for axis in {1, size.ndim - 1} if size.ndim > 1 else ():
        others = tuple(i for i in range(size.ndim) if i != axis)
        scale = np.minimum(scale, _CHANNELS * size.max(axis=others, keepdims=True))
    return scale
