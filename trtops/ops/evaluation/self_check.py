"""Check an engine against itself: relations between the results of every sound engine.

They need no golden outputs, and find faults that a comparison on the given data cannot show: one wrong row of a batch,
results of an earlier inference, a kernel that is wrong for another size, a buffer that two contexts share. Relations
(:mod:`trtops.ops.evaluation.relations`) share inferences.

Larger batches repeat the rows of the data, in an order that is its own reverse. Kernels of another shape sum in another
order, so results of another shape may differ by some rounding units of the output's scale. Only where a difference is
larger, the relation is checked on the model in ONNX Runtime: a model may break it itself, such as one that normalizes
over the batch, and may amplify rounding errors. A sound engine therefore costs no inference of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from trtops import errors
from trtops.backend.onnxrt.runner import reference_runner
from trtops.backend.runner import BaseRunner, Feed
from trtops.comparator.arrays import as_arrays, copied
from trtops.ops.evaluation.batch_rows import Result, same_profile
from trtops.ops.evaluation.differences import OwnResults, Relation, RelationName, skipped, worst
from trtops.ops.evaluation.relations import CHECKS, MAX_BATCH, Trials
from trtops.ops.evaluation.shapes import profile_of
from trtops.record import Record
from trtops.spec import BuildConfig, OptimizationProfile, Rounding
from trtops.verdict import Verdict

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model

RELATIONS: tuple[RelationName, ...] = get_args(RelationName)
_ON_REQUEST = "only with --self-check"
_MAX_FEEDS = 8  # at the beginning and at the end of the data, where shapes of profiles are

# With NaN among its inputs a comparator of ONNX Runtime may read out of bounds, and a loop may not end.
_NO_NAN = frozenset(
    ("TopK", "Loop", "Scan", "If", "NonMaxSuppression", "Range", "Unique", "Resize", "ConstantOfShape", "RoiAlign")
)


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
    batches: tuple[int, int] = (1, MAX_BATCH),
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
    results: list[Result] = []
    for number, feed in enumerate(feeds):
        arrays = same_profile(feed, as_arrays(feed))
        feed_outputs = copied(runner.infer(arrays)) if outputs is None else as_arrays(outputs[number])
        results.append(Result(arrays, feed_outputs))
    if not results:
        raise errors.InputError("There is no feed to check an engine on; expected at least one.")
    with OwnResults(reference, precision) as model:
        trials = Trials(runner, model, results, batches=batches, nan=nan, thorough=thorough)
        relations = {name: check(trials) for name, check in CHECKS.items()}
    if relations["repeated inference"].outcome == "skipped":
        for name in CHECKS.keys() - {"repeated inference"}:
            relations[name] = skipped(name, "the model's own results change from inference to inference")
    return SelfCheck(
        relations=tuple(relations[name] for name in RELATIONS),
        inferences=trials.inferences + (len(results) if outputs is None else 0),
        reference_inferences=model.inferences,
    )


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
    first, last = map(as_arrays, results)
    differ = any(not np.array_equal(array, last.get(name, ())) for name, array in first.items())
    feed = as_arrays(next(iter(feeds))) if differ else {}
    relations = {name: skipped(name, _ON_REQUEST) for name in RELATIONS}
    checked: tuple[RelationName, ...] = ("repeated inference", "shape order")
    with OwnResults(reference_runner(model), _precision(model, build)) as own_results:
        for name in checked if after_larger else checked[:1]:
            findings = own_results.compare(name, Result(feed, first), Result(feed, last))
            relations[name] = worst(findings, relations[name])
    return SelfCheck(relations=tuple(relations.values()), reference_inferences=own_results.inferences)


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
    numbers = sorted({*range(len(whole))[:_MAX_FEEDS], *range(len(whole))[-_MAX_FEEDS:]})
    used = [whole[number] for number in numbers]
    return self_check(
        runner,
        used,
        reference_runner(model),
        outputs=[outputs[number] for number in numbers],
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
    smallest = min(feeds, key=lambda feed: sum(map(np.size, feed.values())))
    number = getattr(smallest, "profile", None)
    number = profile_of(smallest, profiles) if number is None else number
    if not profiles or number is None:
        return 1, MAX_BATCH
    fixed, ranges = list[tuple[int, int]](), list[tuple[int, int]]()
    for bounds in profiles[number].shapes:
        if bounds.min and np.ndim(smallest[bounds.name]) == len(bounds.min):
            low, high = bounds.min[0], bounds.max[0]
            (ranges if low < high else fixed).append((low, high))
    # Other inputs may have a first axis that is no batch, and fixed.
    lowest, highest = zip(*(ranges or fixed[:1] or [(1, MAX_BATCH)]))
    return max(lowest), min(highest)
