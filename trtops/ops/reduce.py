"""Reduce: the smallest part of a model that still fails.

Sub-models are cut out of the model and checked, in this process unless the check is an external command. Each gets as
inputs what really flows there in the whole model, observed once at the beginning, so that a part is judged by what it
meets in the whole.

The search goes in stages. *Halves*: a stretch of nodes, in execution order, that fails by itself while neither of its
halves does; a single wrong node is found here. *Outputs*: in that stretch the shortest beginning that fails; its last node
is needed. *Inputs*: of what is left, the shortest end that fails. *Nodes*: divide and conquer, and then delta debugging, over
whatever is between, so that in the end no single node can be left out. Answers are kept by node set, in memory and in a journal, and no question is put
twice.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.submodel import Cutter, Declared, SubModel, Values, is_large
from trtops.metadata import TensorMetadata, check_feed
from trtops.ops import search
from trtops.ops.check_submodel import Check, CheckOutcome, describe
from trtops.ops.feeds import Feeds, open_feeds
from trtops.ops.reduce_journal import Journal, Step, from_ranges
from trtops.ops.reduce_replay import answers_of_replay, save_replay
from trtops.record import Record
from trtops.tracking.base import NO_RUN, Run

logger = logging.getLogger(__name__)

Parts: TypeAlias = frozenset[int]
Evaluate: TypeAlias = "Callable[[Callable[[Parts], Any], Iterable[Parts]], Iterable[Any]]"
"""Like the built-in ``map``: calls a function with each candidate, in order, in whatever threads it likes."""


@dataclass(frozen=True, kw_only=True)
class ReduceConfig(Record):
    """How a model is reduced.

    Attributes:
        mode: How the stages before the last search: ``bisect`` asks about ``log2(nodes)`` sub-models each; ``linear`` about
            one after the other from the smallest, which also finds what a failure that comes and goes hides.
        find: Stop at the first culprit, or find every one, also where they share nodes.
        max_culprits: Where ``find="all"`` stops.
        max_checks: Where the search stops with the smallest failing sub-model so far; None never does.
        reduce_outputs: Whether nodes may be cut off at the end. Without it the model's outputs stay, nodes are cut off at
            the beginning only, and only the *inputs* stage is gone through.
        reduce_inputs: Whether nodes may be cut off at the beginning; likewise.
        inputs: What flows into sub-models: ``real`` values, as observed in the whole model, or ``random`` numbers. Or
            ``declared``, for models that ONNX Runtime does not run: no data at all, and types and shapes as the model
            declares them or as they can be inferred; the check must do without data.
        data: Where the whole model's inputs come from (:func:`trtops.ops.feeds.open_feeds`); random unless given.
        iterations: How many random feeds.
        seed: Seed of random data.
        input_shapes: Shapes of inputs with dynamic dimensions, by name, for random data; 1 for each such dimension
            unless given.
        width: How many sub-models to check at a time.
        memory_limit_bytes: How much of the observed values to keep in memory; the rest goes to temporary files.
        output: Where to save the reduced model; the inputs it fails with go beside it, as ``<name>_inputs.json``.
            Further culprits get ``_2`` and so on behind the name.
        min_good: Where to save the passing sub-model that is closest in size to the culprit.
        journal: Where answers are kept, so that a reduction that was killed can go on.
        after_crash: What a sub-model counts as whose check did not end because the process died: ask again, or take it
            for failing or passing.
        load_replay: A debug replay of the field's tool: the smallest sub-model that failed there is tried first.
        save_replay: Where to write such a file: with it the field's tool retraces this result without checking anything.
    """

    mode: Literal["bisect", "linear"] = "bisect"
    find: Literal["first", "all"] = "first"
    max_culprits: int = 100
    max_checks: int | None = None
    reduce_outputs: bool = True
    reduce_inputs: bool = True
    inputs: Literal["real", "random", "declared"] = "real"
    data: str | None = None
    iterations: int = 1
    seed: int = 1
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    width: int = 1
    memory_limit_bytes: int = 2 << 30
    output: str | None = None
    min_good: str | None = None
    journal: str | None = None
    after_crash: Literal["retry", "fail", "pass"] = "retry"
    load_replay: str | None = None
    save_replay: str | None = None

    def __post_init__(self) -> None:
        if not (self.reduce_outputs or self.reduce_inputs):
            raise errors.ConfigError(
                "Neither outputs nor inputs may be reduced: nothing is left to do. Allow one of them."
            )
        for name in ("width", "max_culprits", "max_checks", "iterations"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise errors.ConfigError(f"{name} is {value}; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class CulpritNode(Record):
    """One node of a culprit.

    Attributes:
        index: Its place in the whole model's ``graph.node``.
        name: Its name; may be empty.
        op: Its operator.
        outputs: Names of the tensors it makes.
    """

    index: int
    name: str
    op: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Culprit(Record):
    """A smallest sub-model that fails.

    Attributes:
        nodes: Its nodes, in the model's order.
        minimal: Whether it was checked that no single node can be left out: always, unless ``max_checks`` ended the search.
            Where only outputs or only inputs are reduced, of nodes at the end or at the beginning only.
        detail: How it fails, in words.
        path: Where it is saved, if it was.
        inputs_path: Where the inputs are saved that it fails with, if they were.
    """

    nodes: tuple[CulpritNode, ...]
    minimal: bool = True
    detail: str = ""
    path: str | None = None
    inputs_path: str | None = None
    _proto: Any = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> onnx.ModelProto:
        """The sub-model.

        Raises:
            ConfigError: If this was read from a file; then :attr:`path` may lead to it.
        """
        if self._proto is None:
            raise errors.ConfigError(
                f"This culprit was read from a file, without its model. Its path was {self.path!r}."
            )
        proto: onnx.ModelProto = self._proto
        return proto

    @property
    def labels(self) -> tuple[str, ...]:
        """Its nodes as messages name them."""
        return tuple(f"{n.op} {n.name or next(filter(None, n.outputs), '')!r}" for n in self.nodes)


@dataclass(frozen=True, kw_only=True)
class ReduceResult(Record):
    """What came out of a reduction.

    Attributes:
        verdict: ``bad`` if the model fails, and then there is a culprit; ``good`` if it does not fail in the way meant.
        culprits: What was found, in that order.
        nodes: Nodes in the whole model, Constants not counted.
        checks: Sub-models checked.
        resumed: Answers taken from the journal instead.
        seconds: Wall time.
        detail: How the whole model fails, or why it does not, in words.
        min_good: Where the passing sub-model is saved, if there is one and it was asked for.
    """

    verdict: Literal["good", "bad"]
    culprits: tuple[Culprit, ...] = ()
    nodes: int
    checks: int
    resumed: int = 0
    seconds: float
    detail: str = ""
    min_good: str | None = None


def reduce(
    model: str | Path | Model | onnx.ModelProto,
    check: Check,
    config: ReduceConfig | None = None,
    *,
    feeds: Iterable[Feed] | None = None,
    run: Run = NO_RUN,
    progress: Callable[[Step], None] | None = None,
    evaluate: Evaluate | None = None,
) -> ReduceResult:
    """Find the smallest part of a model that still fails a check.

    Args:
        model: The model, or its path; not changed.
        check: Says whether a sub-model passes (:mod:`trtops.ops.check_submodel`): a callable, a
            :class:`~trtops.ops.check_submodel.ComparisonCheck`, or a :class:`~trtops.ops.check_command.CommandCheck`.
        config: How to search, and what to save.
        feeds: Inputs of the whole model, instead of what ``config.data`` says.
        run: Gets params, numbers and artifacts; it is not ended.
        progress: Called after each check, from whichever thread it ran in.
        evaluate: Checks several candidates at a time; threads of this process unless given. It gets at most
            ``config.width`` candidates, and a function that must be called in this process.

    Raises:
        ModelError: If the model cannot be used, or a sub-model is too large.
        InputError: If the data does not fit the model.
        BackendError: If ONNX Runtime cannot compute the values of the model's tensors.
        ConfigError: If the journal belongs to another reduction, or an output path is the model's own.
        Exception: Whatever the check raises for the whole model; for a part of it, that counts as another failure.
    """
    config = ReduceConfig() if config is None else config
    started = time.perf_counter()
    model = _opened(model)
    _check_paths(model, check, config)
    cutter = Cutter(model.proto())
    if not cutter.parts:
        raise errors.InvalidModelError("The model has no nodes but Constants; there is nothing to reduce.")
    with ExitStack() as stack:
        given = _feeds(model, config, feeds)
        journal = _open_journal(model, check, config, given)
        stack.callback(journal.close)
        values = _values(model, cutter, config, given, stack)
        if evaluate is None and config.width > 1:
            evaluate = stack.enter_context(ThreadPoolExecutor(config.width)).map
        hunt = _Hunt(cutter, values, check, config, journal, progress, evaluate or map)
        whole = hunt.check_whole()
        found = list(hunt.culprits()) if whole.verdict == "fail" else []
        result = ReduceResult(
            verdict="bad" if found else "good",
            culprits=tuple(_save_culprit(hunt, parts, n, config) for n, parts in enumerate(found, start=1)),
            nodes=len(cutter.order),
            checks=len(journal.steps) - journal.resumed,
            resumed=journal.resumed,
            seconds=time.perf_counter() - started,
            detail=whole.detail or ("" if found else "the whole model passes"),
            min_good=_save_min_good(hunt, found, config),
        )
        if config.save_replay is not None:
            save_replay(Path(config.save_replay), cutter, [hunt.nodes(parts) for parts in found], config.mode)
    _log(run, model, check, config, result, journal)
    return result


def _opened(model: str | Path | Model | onnx.ModelProto) -> Model:
    if isinstance(model, Model):
        return model
    return Model.from_proto(model) if isinstance(model, onnx.ModelProto) else Model.load(model)


def _check_paths(model: Model, check: Check, config: ReduceConfig) -> None:
    if config.width > 1 and getattr(check, "one_at_a_time", False):
        raise errors.ConfigError(
            f"width is {config.width}, but the check reads every sub-model from one file. Use {{model}} in its command."
        )
    used = {path.resolve() for path in model.files()}
    artifact = getattr(check, "artifact", None)
    for name, path in [("output", config.output), ("min_good", config.min_good), ("artifact", artifact)]:
        if path is not None and Path(path).resolve() in used:
            raise errors.ConfigError(f"{name} is {path!r}, which is the model itself. Give another path.")


def _inputs(model: Model, config: ReduceConfig) -> TensorMetadata:
    """The model's inputs, with the shapes that the config gives them."""
    inputs = TensorMetadata.of(model.info.inputs)
    for name, shape in config.input_shapes.items():
        if name not in inputs:
            raise errors.UnknownInputError(f"input_shapes has {name!r}. {errors.near(name, inputs)}")
        inputs[name] = dataclasses.replace(inputs[name], shape=tuple(shape))
    return inputs


def _feeds(model: Model, config: ReduceConfig, feeds: Iterable[Feed] | None) -> list[Feed]:
    """What the whole model is fed with; nothing where no data is wanted."""
    inputs = _inputs(model, config)
    if config.inputs == "declared":
        return []
    if not inputs:
        return [{}]
    source = feeds if feeds is not None else config.data
    given: list[Feed] = []
    for feed in open_feeds(source, inputs, iterations=config.iterations, seed=config.seed):
        given.append(dict(feed))
        check_feed(inputs, feed)
    return given


def _open_journal(model: Model, check: Check, config: ReduceConfig, given: Sequence[Feed]) -> Journal:
    if config.journal is None:
        return Journal()
    data: str = config.inputs
    if given:
        data += f" {config.seed} {Feeds('', lambda: [_without_objects(feed) for feed in given]).digest()}"
    return Journal(Path(config.journal), holds_for={"model": model.info.sha256, "check": describe(check), "data": data})


def _without_objects(feed: Feed) -> Feed:
    """A feed with text as text, where it is given as objects: those have no bytes of their own."""
    return {name: array.astype(str) if array.dtype.kind == "O" else array for name, array in feed.items()}


def _values(model: Model, cutter: Cutter, config: ReduceConfig, given: Sequence[Feed], stack: ExitStack) -> Values:
    """What is known of the model's tensors; what was observed is let go of with the stack."""
    if config.inputs == "declared":
        return Declared(cutter.model, _inputs(model, config))
    from trtops.backend.onnxrt.observe import RandomInputs, observe

    observed = observe(cutter, given, limit_bytes=config.memory_limit_bytes)
    stack.callback(observed.close)
    return observed if config.inputs == "real" else RandomInputs(observed, config.seed)


class _OutOfChecks(Exception):
    """The search may not ask any more."""


class _Hunt:
    """One reduction under way: candidates in, answers out, each question put once."""

    def __init__(
        self,
        cutter: Cutter,
        values: Values,
        check: Check,
        config: ReduceConfig,
        journal: Journal,
        progress: Callable[[Step], None] | None,
        evaluate: Evaluate,
    ) -> None:
        self.cutter = cutter
        self.everything = frozenset(range(len(cutter.parts)))
        self.answers: dict[Parts, CheckOutcome] = {}
        self._values = values
        self._check = check
        self._config = config
        self._journal = journal
        self._progress = progress
        self._evaluate = evaluate
        self._stage = "whole"
        self.unfinished: Parts | None = None
        self._lock = threading.Lock()
        self._asked: dict[Parts, threading.Event] = {}
        self._remember(journal)

    def nodes(self, parts: Iterable[int]) -> frozenset[int]:
        """Indices of the nodes in some parts."""
        return frozenset(index for part in parts for index in self.cutter.parts[part])

    def cut(self, parts: Parts) -> SubModel:
        """The sub-model of some parts."""
        return self.cutter.cut(self.nodes(parts), self._values)

    def check_whole(self) -> CheckOutcome:
        """Check the whole model; what its check raises is raised."""
        next(iter(self.ask([self.everything])))
        return self.answers[self.everything]

    def culprits(self) -> Iterator[Parts]:
        """Smallest failing sets of parts, given that the whole model fails."""
        found: list[Parts] = []
        try:
            for culprit in self._each():
                found.append(culprit)
                yield culprit
        except _OutOfChecks:
            logger.warning(
                "Stopped after %d checks; there may be something smaller, or more.", len(self._journal.steps)
            )
            if not found:
                failing = [parts for parts, answer in self.answers.items() if answer.verdict == "fail"]
                self.unfinished = min(failing, key=lambda parts: (len(self.nodes(parts)), sorted(parts)))
                yield self.unfinished

    def _each(self) -> Iterator[Parts]:
        if self._config.find == "first":
            self._stage = "replay"
            yield self.smallest(search.first_failing(self.ask, self._starts()) or self.everything)
            return
        for number, found in enumerate(search.find_all(self._ask_all, self.everything, self.smallest), start=1):
            yield found
            if number == self._config.max_culprits:
                logger.warning("Stopped after %d culprits; there may be more.", number)
                return

    def smallest(self, within: Parts) -> Parts:
        """One smallest failing set within a set that fails."""
        parts = sorted(within)
        if not self._config.reduce_inputs:
            return self._without_ends(frozenset(self._end_early(parts)))
        if not self._config.reduce_outputs:
            return self._without_ends(frozenset(self._start_late(parts)))
        low, high = self._stretch(parts)
        found = self._smallest_spanning(parts[low:high])
        if len(found) == 1:
            return found
        # A long part can fail for reasons that add up along it (rounding, say) and hide a smaller one beside it.
        beside = (frozenset(side) for side in (parts[:low], parts[high:]))
        others = [self.smallest(side) for side in beside if self._fails(side)]
        return min([found, *others], key=len)

    def ask(self, candidates: Sequence[Parts]) -> Iterator[bool]:
        """Whether each set of parts fails; checks those whose answer is not known."""
        unknown = [parts for parts in dict.fromkeys(candidates) if parts and parts not in self.answers]
        limit = self._config.max_checks
        if unknown and limit is not None:
            left = limit - len(self._journal.steps)
            if left < 1:
                raise _OutOfChecks
            unknown = unknown[:left]
        answering = iter(self._evaluate(self._answer, unknown))
        for parts in candidates:
            while parts and parts not in self.answers:
                if next(answering, answering) is answering:
                    if limit is not None and len(self._journal.steps) >= limit:
                        raise _OutOfChecks
                    raise errors.ConfigError(
                        "The evaluator ended before it had checked every candidate that it was given."
                    )
            yield bool(parts) and self.answers[parts].verdict == "fail"

    def _ask_all(self, candidates: Sequence[Parts]) -> Iterator[bool]:
        self._stage = "all"
        return self.ask(candidates)

    def _stretch(self, parts: list[int]) -> search.Interval:
        """Where a stretch of parts begins and ends that fails by itself, as short as quickly found."""
        self._stage = "halves"

        def ask(stretches: Sequence[search.Interval]) -> Iterator[bool]:
            return self.ask([frozenset(parts[low:high]) for low, high in stretches])

        whole = (0, len(parts))
        if self._config.mode == "bisect":
            return search.halve(ask, whole, self._config.width)
        return search.first_failing(ask, [(n, n + 1) for n in range(len(parts))], self._config.width) or whole

    def _smallest_spanning(self, parts: list[int]) -> Parts:
        """The smallest failing set within a stretch, of which no half may fail alone."""
        parts = self._end_early(parts)
        parts = self._start_late(parts)
        self._stage = "nodes"
        return frozenset(search.smallest(self.ask, parts, self._config.width))

    def _end_early(self, parts: list[int]) -> list[int]:
        """The shortest beginning that fails, or what its last part needs, or that part alone."""
        if len(parts) == 1:
            return parts
        self._stage = "outputs"
        end = self._find(lambda lengths: self.ask([frozenset(parts[:n]) for n in lengths]), 0, len(parts))
        beginning, last = parts[:end], parts[end - 1]
        if end == 1 or (self._config.reduce_inputs and self._fails([last])):
            return [last]
        needed = self._needed(last, beginning)
        return needed if len(needed) < end and self._fails(needed) else beginning

    def _start_late(self, parts: list[int]) -> list[int]:
        """The shortest end that fails, or only its first and last part."""
        if len(parts) == 1:
            return parts
        self._stage = "inputs"
        count = len(parts)
        length = self._find(lambda lengths: self.ask([frozenset(parts[count - n :]) for n in lengths]), 0, count)
        ending = parts[count - length :]
        outermost = [ending[0], ending[-1]]
        return outermost if self._config.reduce_outputs and length > 2 and self._fails(outermost) else ending

    def _without_ends(self, parts: Parts) -> Parts:
        """Leave out parts one by one at the end that may be reduced, until none can be left out."""
        self._stage = "nodes"
        while True:
            shorter = [parts - {end} for end in self._ends(parts)]
            found = search.first_failing(self.ask, shorter, self._config.width)
            if found is None:
                return parts
            parts = found

    def _ends(self, parts: Parts) -> list[int]:
        """Parts that no other part needs (where outputs are reduced), or that need no other part; latest first."""
        members = [(part, index) for part in parts for index in self.cutter.parts[part]]
        maker = {name: part for part, index in members for name in self.cutter.makes(index)}
        needs = {(p, maker[n]) for p, index in members for n in self.cutter.reads(index) if maker.get(n, p) != p}
        inner = {needed if self._config.reduce_outputs else needing for needing, needed in needs}
        return sorted(parts - inner, reverse=True)

    def _needed(self, last: int, among: Sequence[int]) -> list[int]:
        """A part and those among some that it needs."""
        owner = {index: part for part in among for index in self.cutter.parts[part]}
        needed = {owner[i] for start in self.cutter.parts[last] for i in self.cutter.ancestors(start, owner)}
        return [part for part in among if part in needed]

    def _find(self, ask: search.Ask[int], low: int, high: int) -> int:
        find = search.bisect if self._config.mode == "bisect" else search.linear
        return find(ask, low, high, self._config.width)

    def _fails(self, parts: Iterable[int]) -> bool:
        return next(iter(self.ask([frozenset(parts)])))

    def _answer(self, parts: Parts) -> None:
        """Get the answer about one set, from whoever is about to have it. May run in any thread."""
        with self._lock:
            if parts in self.answers:
                return
            asked_before = self._asked.get(parts)
            asked = self._asked[parts] = asked_before or threading.Event()
        if asked_before is None:
            try:
                self._check_parts(parts)
            finally:
                with self._lock:
                    del self._asked[parts]
                asked.set()
        else:
            asked.wait()
        if parts not in self.answers:  # whoever asked before got an error, which is this one's too
            self._check_parts(parts)

    def _check_parts(self, parts: Parts) -> None:
        """Check one set, and keep the answer."""
        nodes, stage = self.nodes(parts), self._stage
        self._journal.begin(nodes)
        start = time.perf_counter()
        try:
            outcome = CheckOutcome.of(self._check(self.cut(parts)))
        except errors.ConfigError:
            raise
        except Exception as exc:  # of a part: a failure like any that is not meant, and the search goes on
            if parts == self.everything:
                raise
            outcome = CheckOutcome(verdict="error", detail=f"{type(exc).__name__}: {exc}")
        seconds = time.perf_counter() - start
        step = self._journal.end(
            nodes=nodes, stage=stage, verdict=outcome.verdict, seconds=seconds, detail=outcome.detail
        )
        self.answers[parts] = outcome
        logger.info("Check %d (%s): %d nodes, %s, %.3f s", step.number, stage, len(nodes), step.verdict, seconds)
        if self._progress is not None:
            self._progress(step)

    def _remember(self, journal: Journal) -> None:
        """Take in the answers of earlier runs."""
        for step in journal.steps:
            parts = self._parts(from_ranges(step.nodes))
            self.answers[parts] = CheckOutcome(verdict=step.verdict, detail=step.detail)
        if self._config.after_crash != "retry":
            for nodes in journal.unanswered:
                self.answers[self._parts(nodes)] = CheckOutcome(
                    verdict=self._config.after_crash, detail="the process died while this was checked"
                )

    def _starts(self) -> list[Parts]:
        """What failed in the replay, smallest first."""
        if self._config.load_replay is None:
            return []
        known = answers_of_replay(Path(self._config.load_replay), self.cutter, self._config.mode)
        return sorted({self._parts(nodes) for nodes, passed in known if not passed}, key=len)

    def _parts(self, nodes: frozenset[int]) -> Parts:
        try:
            return frozenset(self._part_of[index] for index in nodes)
        except KeyError as exc:
            raise errors.FormatError(
                f"The journal names node {exc}, which this model does not have. It is damaged."
            ) from None

    @functools.cached_property
    def _part_of(self) -> dict[int, int]:
        return {index: part for part, members in enumerate(self.cutter.parts) for index in members}


def _save_culprit(hunt: _Hunt, parts: Parts, number: int, config: ReduceConfig) -> Culprit:
    cut = hunt.cut(parts)
    path = inputs_path = None
    if config.output is not None:
        path = _numbered(Path(config.output), number)
        cut.save(path)
        if config.inputs != "declared":
            inputs_path = path.with_name(f"{path.stem}_inputs.json")
            _save_inputs(cut, inputs_path)
    return Culprit(
        nodes=tuple(_culprit_node(hunt.cutter.model.graph.node[i], i) for i in cut.nodes),
        minimal=parts != hunt.unfinished,
        detail=hunt.answers[parts].detail,
        path=None if path is None else str(path),
        inputs_path=None if inputs_path is None else str(inputs_path),
        _proto=cut.proto,
    )


def _culprit_node(node: onnx.NodeProto, index: int) -> CulpritNode:
    return CulpritNode(index=index, name=node.name, op=node.op_type, outputs=tuple(node.output))


def _numbered(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}_{number}{path.suffix}")


def _save_inputs(cut: SubModel, path: Path) -> None:
    from trtops.json import save_json

    save_json(cut.feeds, path, "inputs of the reduced model")


def _save_min_good(hunt: _Hunt, found: Sequence[Parts], config: ReduceConfig) -> str | None:
    """Save the passing sub-model closest in size to the first culprit; None if there is none."""
    passing = [parts for parts, answer in hunt.answers.items() if answer.verdict == "pass"]
    if config.min_good is None or not found or not passing:
        return None
    size = len(hunt.nodes(found[0]))
    closest = min(passing, key=lambda parts: (abs(len(hunt.nodes(parts)) - size), len(parts), sorted(parts)))
    hunt.cut(closest).save(config.min_good)
    return config.min_good


def _log(run: Run, model: Model, check: Check, config: ReduceConfig, result: ReduceResult, journal: Journal) -> None:
    """Log a reduction: options, numbers, every step, and each culprit as a model."""
    run.log_params({"model": model.name, "check": describe(check), **config.to_dict()})
    smallest = min((len(c.nodes) for c in result.culprits), default=0)
    run.log_metrics(
        {
            ("reduce", "nodes"): result.nodes,
            ("reduce", "culprits"): len(result.culprits),
            ("reduce", "culprit_nodes"): smallest,
            ("reduce", "checks"): result.checks,
            ("reduce", "seconds"): result.seconds,
        }
    )
    run.log_json(result, "reduce/result.json")
    run.log_text("".join(f"{step.to_json(indent=None)}\n" for step in journal.steps), "reduce/steps.jsonl")
    with tempfile.TemporaryDirectory(prefix="trtops-reduce-") as folder:
        for number, culprit in enumerate(result.culprits if run is not NO_RUN else (), start=1):
            path = Path(folder, f"culprit_{number}.onnx")
            save_model(culprit.model, path, external_data_path="" if is_large(culprit.model) else None)
        for file in sorted(Path(folder).iterdir()):
            run.log_file(file, f"reduce/{file.name}")
