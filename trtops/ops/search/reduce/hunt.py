"""The hunt for culprits: which sub-models are checked, in which order, and what their answers mean.

Works on *parts* of a model, numbered in execution order (:attr:`trtops.backend.onnx.submodel.Cutter.parts`): mostly single
nodes. :mod:`trtops.ops.search.reduce.op` describes its stages.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trtops import errors
from trtops.backend.onnx.submodel import Cutter, SubModel, Values
from trtops.ops.evaluation.submodel import Check, CheckOutcome
from trtops.ops.search import algorithms
from trtops.ops.search.reduce.config import ReduceConfig
from trtops.ops.search.reduce.journal import Journal, Step, from_ranges
from trtops.ops.search.reduce.retrace import answers_of_replay, culprits_of_replay

log = logging.getLogger(__name__)

Parts: TypeAlias = frozenset[int]
Evaluate: TypeAlias = "Callable[[Callable[[Parts], Any], Iterable[Parts]], Iterable[Any]]"
"""Like the built-in ``map``: calls a function with each candidate, in order, in whatever threads it likes."""


class _OutOfChecks(Exception):
    """``max_checks`` is reached: the search may not ask any more."""


class Hunt:
    """One reduction under way: candidates in, answers out, each question put once.

    Attributes:
        cutter: The model.
        everything: All its parts.
        answers: The outcomes of checks, by parts.
        unfinished: The culprit that the search ended with before it was as small as can be, if so.
    """

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
        """Begin with the answers that the journal has; arguments as :func:`trtops.ops.search.reduce.op.reduce` describes them."""
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
        self._recalled: list[Parts] | None = None
        self.unfinished: Parts | None = None
        self._lock = threading.Lock()
        self._asked: dict[Parts, threading.Event] = {}
        self._remember(journal)

    def nodes(self, parts: Iterable[int]) -> frozenset[int]:
        """Indices of the nodes in some parts."""
        return frozenset(index for part in parts for index in self.cutter.parts[part])

    def cut(self, parts: Parts) -> SubModel:
        """The sub-model of some parts."""
        return self.cutter.cut(self.nodes(parts), self._values, freeze_branches=self._config.branches == "frozen")

    def check_whole(self) -> CheckOutcome:
        """Check the whole model; what its check raises is raised."""
        next(iter(self.ask([self.everything])))
        return self.answers[self.everything]

    def recall(self) -> bool:
        """Take the result from the replay, if it answers every question; True if so. Then nothing is checked."""
        if self._config.load_replay is None or self._config.find != "first":
            return False
        found = culprits_of_replay(Path(self._config.load_replay), self.cutter, self._config.mode)
        if found is None or not all(index in self._part_of for nodes in found for index in nodes):
            return False
        self._recalled = [self._parts(nodes) for nodes in found]
        for parts in (self.everything, *self._recalled):
            verdict: Literal["fail", "pass"] = "fail" if found else "pass"
            self.answers[parts] = CheckOutcome(verdict=verdict, detail="from the replay")
        return True

    def culprits(self) -> Iterator[Parts]:
        """Smallest failing sets of parts, given that the whole model fails."""
        if self._recalled is not None:
            yield from self._recalled
            return
        found: list[Parts] = []
        try:
            for culprit in self._each():
                found.append(culprit)
                yield culprit
        except _OutOfChecks:
            log.warning("Stopped after %d checks; there may be something smaller, or more.", len(self._journal.steps))
            if not found:
                failing = [parts for parts, answer in self.answers.items() if answer.verdict == "fail"]
                self.unfinished = min(failing, key=lambda parts: (len(self.nodes(parts)), sorted(parts)))
                yield self.unfinished

    def _each(self) -> Iterator[Parts]:
        if self._config.find == "first":
            self._stage = "replay"
            yield self.smallest(algorithms.first_failing(self.ask, self._starts()) or self.everything)
            return
        for number, found in enumerate(algorithms.find_all(self._ask_all, self.everything, self.smallest), start=1):
            yield found
            if number == self._config.max_culprits:
                log.warning("Stopped after %d culprits; there may be more.", number)
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

    def _stretch(self, parts: list[int]) -> algorithms.Interval:
        """Where a stretch of parts begins and ends that fails by itself, as short as quickly found."""
        self._stage = "halves"

        def ask(stretches: Sequence[algorithms.Interval]) -> Iterator[bool]:
            return self.ask([frozenset(parts[low:high]) for low, high in stretches])

        whole = (0, len(parts))
        if self._config.mode == "bisect":
            return algorithms.halve(ask, whole, self._config.width)
        return algorithms.first_failing(ask, [(n, n + 1) for n in range(len(parts))], self._config.width) or whole

    def _smallest_spanning(self, parts: list[int]) -> Parts:
        """The smallest failing set within a stretch, of which no half may fail alone."""
        parts = self._end_early(parts)
        parts = self._start_late(parts)
        self._stage = "nodes"
        return frozenset(algorithms.smallest(self.ask, parts, self._config.width))

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
            found = algorithms.first_failing(self.ask, shorter, self._config.width)
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

    def _find(self, ask: algorithms.Ask[int], low: int, high: int) -> int:
        find = algorithms.bisect if self._config.mode == "bisect" else algorithms.linear
        return find(ask, low, high, self._config.width)

    def _fails(self, parts: Iterable[int]) -> bool:
        return next(iter(self.ask([frozenset(parts)])))

    def _answer(self, parts: Parts) -> None:
        """Check one set, or wait for the thread that is checking it. May run in any thread."""
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
        log.debug("Check %d (%s): %d nodes, %s, %.3f s", step.number, stage, len(nodes), step.verdict, seconds)
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
