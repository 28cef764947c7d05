"""The builder's search: which tactics matter for a model, how fast each candidate is, which one wins."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.backend.base import TimingCacheUse
from trtops.backend.onnxrt.budget import Budget
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.measure import Measurement
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.session import usable_threads
from trtops.backend.onnxrt.tactics import FALLBACKS, Candidate, Tactic, find
from trtops.backend.onnxrt.timing_cache import TimingCache, TimingKey
from trtops.limits import MEMORY, check_memory
from trtops.metadata import DataType, TensorSpec, is_dynamic, shape_accepts
from trtops.spec import CAMPAIGN_SEEDS, OptimizationProfile

# Up to this many tactics that matter, every combination is a candidate.
_MAX_EXHAUSTIVE = 3

_MAX_CRASHES = 4  # settings that took the process down, before optimizers are left out by the level

WhyNot: TypeAlias = "Callable[[Candidate, tuple[str, ...]], str | None]"
"""Says why a candidate, given with the names of the tactics that matter, may not be built; None if it may."""

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""A shape for each input, by name."""


def _deny_nothing(candidate: Candidate, applicable: tuple[str, ...]) -> None:
    """Let every candidate be built."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How a search ended.

    Attributes:
        candidate: The fastest.
        applicable: Names of the tactics that change the model's graph at all.
        cache_use: What the timing cache was good for.
        skipped: Ids of the candidates that there was no time for.
    """

    candidate: Candidate
    applicable: tuple[str, ...]
    cache_use: TimingCacheUse
    skipped: tuple[str, ...] = ()


@dataclass
class Search:
    """The search for one build.

    Attributes:
        optimizer: Makes the candidates' engines.
        model_sha256: Digest of the model after its precision was rewritten.
        cache: Timings known before; what is measured is added to it.
        providers: Execution providers in order of preference.
        threads: Threads within one operator; 0 lets ONNX Runtime decide.
        iterations: Timed inferences per candidate and shape at most.
        budget: How long it may take.
        shapes: Shapes to time at; a candidate's time is the sum over them.
        inputs: The model's inputs.
        log: Gets a line per decision.
        avoid: Ids of candidates under which ONNX Runtime took its process down before.
        failed: Why candidates cannot be built, by their ids.
    """

    optimizer: Optimizer
    model_sha256: str
    cache: TimingCache
    providers: tuple[str, ...]
    threads: int
    iterations: int
    budget: Budget
    shapes: tuple[Shapes, ...]
    inputs: Sequence[TensorSpec]
    log: SessionLog
    avoid: frozenset[str] = frozenset()
    failed: dict[str, str] = field(default_factory=dict)
    use: TimingCacheUse = field(default_factory=TimingCacheUse)

    def __post_init__(self) -> None:
        """Make what times the candidates."""
        self._measurement = Measurement(
            optimizer=self.optimizer,
            providers=self.providers,
            threads=self.threads,
            turns=self.iterations,
            budget=self.budget,
        )

    def run(self, tactics: Iterable[Tactic], *, seed: int | None = None, why_not: WhyNot = _deny_nothing) -> Choice:
        """Find the fastest candidate that may be built, or draw one.

        With up to three tactics that matter, all their combinations are tried; with more, each on its own, and then
        those together that were faster than the default alone. Of candidates with the same graph one is timed. A candidate
        under which ONNX Runtime fails is left out; where the default is, whole levels of optimization are as well. When the
        time is up, what was not tried stays at its default.

        Args:
            tactics: What may be varied.
            seed: Draw from all combinations with this seed, and time nothing; None takes the fastest.
            why_not: Says why a candidate may not be built; it is asked for the best first, until one may.

        Raises:
            EngineBuildError: If ONNX Runtime refuses the model, or no candidate may be built.
        """
        tactics = tuple(tactics)
        if self._signature_or_none(Candidate()) is None:
            return self._without_default(tactics, why_not)
        applicable = self._applicable_tactics(tactics, limited=seed is None)
        self.log.add(f"[trtops] tactics that change this model's graph: {', '.join(applicable) or 'none'}")
        best_first = (
            self._by_time(applicable) if seed is None or not applicable else random_candidates(applicable, seed)
        )
        for candidate in best_first:
            if self._signature_or_none(candidate) is None:
                continue
            why = why_not(candidate, applicable)
            if why is None:
                self._note_skipped()
                return self._choice(candidate, applicable)
            self.log.add(f"[trtops] {candidate.id} is not built: {why}; taking the next")
        raise errors.EngineBuildError(
            "Each candidate has a tactic on the deny-list, and there is no other way to build the model. Pardon one, or "
            "allow more tactics."
        )

    def _without_default(self, tactics: Sequence[Tactic], why_not: WhyNot) -> Choice:
        """The fastest of the candidates that toggle one tactic, where the default cannot be built; else a lower level."""
        first = self.failed[Candidate().id]
        if MEMORY in first:  # without optimizing, the model itself would take what its constants were refused
            raise errors.EngineBuildError(first)
        hopeless = "has no kernel" in first or len(self.avoid) >= _MAX_CRASHES
        singles = [] if hopeless else [Candidate.toggling([tactic.name]) for tactic in tactics]
        usable = self._distinct_by_graph(singles)
        if usable:
            try:
                seconds = self._seconds_per_inference(usable)
                usable = sorted(seconds, key=lambda candidate: seconds[candidate])
            except errors.InferenceError as exc:
                self.log.add(f"[trtops] nothing was timed: {exc}")
        lower = (Candidate.toggling([tactic.name]) for tactic in FALLBACKS)
        for candidate in (*usable, *lower):
            if self._signature_or_none(candidate) is not None and why_not(candidate, ()) is None:
                self.log.add(f"[trtops] {candidate.id} is built, since the default cannot be: {first}")
                return self._choice(candidate, ())
        raise errors.EngineBuildError(first)

    def _by_time(self, applicable: tuple[str, ...]) -> list[Candidate]:
        """The candidates, the fastest first; the default alone if nothing can be timed or varied."""
        if not applicable:
            return [Candidate()]
        exhaustive = len(applicable) <= _MAX_EXHAUSTIVE
        sizes = range(len(applicable) + 1) if exhaustive else range(2)
        candidates = [Candidate.toggling(names) for size in sizes for names in combinations(applicable, size)]
        try:
            seconds = self._seconds_per_inference(self._distinct_by_graph(self._affordable(candidates)))
            if (
                not exhaustive
                and (together := _faster_together(seconds)) is not None
                and self._can_afford(together, len(seconds))
            ):
                # Nothing is left behind those that were timed if one of them has the same graph.
                new = self._distinct_by_graph([*seconds, self._without_idle(together)])[len(seconds) :]
                seconds |= self._seconds_per_inference(new)
        except errors.InferenceError as exc:
            # A model may refuse the feeds made up for it (an index out of range), and is no worse an engine for that.
            self.log.add(f"[trtops] nothing was timed, ONNX Runtime's defaults stand: {exc}")
            return [Candidate()]
        for candidate, median in seconds.items():
            self.log.add(f"[trtops] {median * 1e3:10.4f} ms  {candidate.id}")
        return sorted(seconds, key=lambda c: seconds[c])

    def _applicable_tactics(self, tactics: Iterable[Tactic], *, limited: bool) -> tuple[str, ...]:
        """Names of the tactics whose other setting, on its own, gives another graph; as far as there is time, if it is limited.

        What changed nothing in the default needs no trying. A tactic that changes the graph only beside another is not seen:
        trying all pairs would optimize the model a hundred times.
        """
        usual = self._graph_signature(Candidate())
        found: list[str] = []
        for tactic in tactics:
            candidate = Candidate.toggling([tactic.name])
            key = self._timing_key(candidate, None)
            if self.cache.signature(key) is None and candidate.id not in self.avoid:
                if not self.optimizer.may_change(tactic):
                    self.cache.add_signature(key, usual)
                elif limited and not self._can_afford(candidate, len(found) + 1):
                    continue
            if self._signature_or_none(candidate) not in (None, usual):
                found.append(tactic.name)
        return tuple(found)

    def _can_afford(self, candidate: Candidate, waiting: int) -> bool:
        """Whether there is time for a candidate, beside so many that have yet to be timed.

        One that an earlier build had no time for is left out by this one too, unless it is given a time of its own.
        """
        key = self._timing_key(candidate, None)
        skipped = self.cache.was_skipped(key)
        if self.cache.signature(key) is not None and not skipped:
            return True
        if skipped and self.budget.given is None:
            self.budget.skip(candidate)
            return False
        self._start_the_clock()
        return self.budget.allows_another(candidate, waiting)

    def _affordable(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """The candidates that there is time for."""
        waiting = 0
        for candidate in candidates:
            if self._can_afford(candidate, waiting):
                waiting += 1
                yield candidate

    def _start_the_clock(self) -> None:
        """Learn the model's own speed, from which the time for the search follows."""
        if self.budget.running:
            return
        usual = self.optimizer(Candidate())
        known = [self.cache.timing(self._timing_key(Candidate(), shapes)) for shapes in self.shapes]
        inference = sum(timing.median_seconds for timing in known if timing is not None)
        if None in known:
            try:
                inference = self._measurement.first_seconds([self._feed(shapes) for shapes in self.shapes])
            except errors.InferenceError:  # nothing will be timed, and it will be said why
                inference = 0.0
        self.budget.begin(usual.seconds, inference)
        self.log.add(
            f"[trtops] a session starts in {usual.seconds:.3f} s, an inference takes {inference * 1e3:.3f} ms: "
            f"{max(self.budget.left, 0):.1f} s for trying settings"
        )

    def _note_skipped(self) -> None:
        for name in self.budget.skipped:
            self.cache.add_skipped(replace(self._timing_key(Candidate(), None), candidate=name))
            self.log.add(f"[trtops] {name} was not tried: no time was left for it (timing_seconds gives more)")

    def _choice(self, candidate: Candidate, applicable: tuple[str, ...]) -> Choice:
        return Choice(
            candidate=candidate, applicable=applicable, cache_use=self.use, skipped=tuple(self.budget.skipped)
        )

    def _distinct_by_graph(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates, without those whose graph an earlier one has."""
        by_graph: dict[str, Candidate] = {}
        for candidate in candidates:
            signature = self._signature_or_none(candidate)
            if signature is not None:
                by_graph.setdefault(signature, candidate)
        return list(by_graph.values())

    def _without_idle(self, candidate: Candidate) -> Candidate:
        """The candidate without the tactics that change nothing beside the others.

        What a record of tactics names is taken for what decided, so it must not name what did nothing.
        """
        for name in candidate.toggled:
            rest = Candidate.toggling(set(candidate.toggled) - {name})
            if self._signature_or_none(rest) == self._signature_or_none(candidate):
                candidate = rest
        return candidate

    def _graph_signature(self, candidate: Candidate) -> str:
        key = self._timing_key(candidate, None)
        known = self.cache.signature(key)
        if known is None:
            known = self.optimizer(candidate).graph.signature
            self.cache.add_signature(key, known)
        return known

    def _signature_or_none(self, candidate: Candidate) -> str | None:
        """The same; None for a candidate that cannot be built."""
        if candidate.id in self.failed:
            return None
        if candidate.id in self.avoid:
            self._give_up(candidate, "ONNX Runtime took the process down under these settings")
            return None
        try:
            return self._graph_signature(candidate)
        except errors.EngineBuildError as exc:
            self._give_up(candidate, str(exc))
            return None

    def _give_up(self, candidate: Candidate, why: str) -> None:
        self.failed[candidate.id] = why
        self.log.add(f"[trtops] {candidate.id} cannot be built: {why}")

    def _timing_key(self, candidate: Candidate, shapes: Shapes | None) -> TimingKey:
        return TimingKey(
            model_sha256=self.model_sha256,
            candidate=candidate.id,
            providers=self.providers,
            threads=usable_threads(self.threads),
            shapes=shapes,
        )

    def _seconds_per_inference(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        """Seconds per inference of each candidate, summed over all shapes; from the cache as far as that goes."""
        total = dict.fromkeys(candidates, 0.0)
        for shapes in self.shapes:
            known = {c: t for c in candidates if (t := self.cache.timing(self._timing_key(c, shapes))) is not None}
            if len(known) < len(candidates):  # what is timed now cannot be compared with what was disturbed
                known = {c: t for c, t in known.items() if t.undisturbed}
            unknown = [c for c in candidates if c not in known]
            measured = self._measurement.seconds(unknown, self._feed(shapes)) if unknown else {}
            for candidate in set(unknown) - set(measured):
                total.pop(candidate, None)
            for candidate, timing in measured.items():
                self.cache.add_timing(self._timing_key(candidate, shapes), timing)
            for candidate, timing in (known | measured).items():
                if candidate in total:
                    total[candidate] += timing.median_seconds
            self.use = replace(
                self.use,
                hits=self.use.hits + len(known),
                misses=self.use.misses + len(measured),
                saved_seconds=self.use.saved_seconds + sum(t.cost_seconds for t in known.values()),
            )
        return total

    def _feed(self, shapes: Shapes) -> dict[str, Any]:
        return random_feed(self.inputs, dict(shapes))


def random_candidates(names: Sequence[str], seed: int) -> Iterator[Candidate]:
    """Combinations of tactics, each once; the same for the same names and seed.

    The first ones of seeds in a row, as a campaign has them, differ until all combinations were there, or a thousand of them:
    a combination that was evaluated already says nothing new. A campaign begins with the default and all approximations, and with
    the default alone: an approximation is the first suspect, and those two builds differ in nothing else. All others are in
    random order.
    """
    combinations_ = 1 << len(names)
    drawn = min(combinations_, CAMPAIGN_SEEDS)
    campaign, number = divmod(seed, CAMPAIGN_SEEDS)
    deck, first = divmod(number, drawn)  # seeds of a deck go through the same shuffled combinations
    order = random.Random(f"{campaign} {deck}").sample(range(combinations_), drawn)
    approximate = sum(1 << i for i, name in enumerate(names) if not find(name).exact)
    order = list(dict.fromkeys((approximate, 0, *order)))
    for bits in (*order[first:], *order[:first]):
        yield Candidate.toggling(name for i, name in enumerate(names) if bits >> i & 1)


def _faster_together(seconds: Mapping[Candidate, float]) -> Candidate | None:
    """The candidate with all tactics that, each on its own, beat the default; None if fewer than two do."""
    usual = seconds[Candidate()]
    faster = [candidate.toggled[0] for candidate, median in seconds.items() if candidate.toggled and median < usual]
    return Candidate.toggling(faster) if len(faster) > 1 else None


def timing_shapes(inputs: Sequence[TensorSpec], profiles: Sequence[OptimizationProfile]) -> tuple[Shapes, ...]:
    """The shapes to time at: each profile's opt, or the model's own with 1 for each dynamic dimension.

    Raises:
        ConfigError: If a profile names an input that the model does not have, or gives it a shape it does not take.
    """
    own = {spec.name: tuple(1 if is_dynamic(d) else int(d or 0) for d in spec.shape or ()) for spec in inputs}
    if not profiles:
        return (tuple(own.items()),)
    by_name = {spec.name: spec for spec in inputs}
    result = []
    for number, profile in enumerate(profiles):
        shapes = dict(own)
        for given in profile.shapes:
            if given.name not in by_name:
                raise errors.ConfigError(
                    f"Profile {number} has a shape for {given.name!r}, which is no input of this model. "
                    f"{errors.near(given.name, by_name)}"
                )
            for which, shape in (("min", given.min), ("opt", given.opt), ("max", given.max)):
                _check_shape(by_name[given.name], shape, f"Profile {number}, {which}")
            shapes[given.name] = given.opt
        result.append(tuple(shapes.items()))
    return tuple(result)


def _check_shape(spec: TensorSpec, shape: tuple[int, ...], where: str) -> None:
    if spec.shape is not None and not shape_accepts(spec.shape, shape):
        raise errors.ConfigError(
            f"{where}: {spec.name!r} has shape {shape}, which the model does not take; it has {spec}."
        )


def random_feed(inputs: Iterable[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    """A feed to time with: floats uniform in [0, 1), zeros of other types; the same for the same arguments.

    Args:
        inputs: The model's inputs; one without a dtype gets float32.
        shapes: A shape for each, by name.
    """
    rng = np.random.default_rng(0)
    feed = {}
    for spec in inputs:
        dtype = spec.dtype or DataType.FLOAT32
        shape = shapes[spec.name]
        check_memory(
            f"Made-up data for input {spec.name!r} of shape {shape}", math.prod(shape) * dtype.numpy().itemsize
        )
        array = rng.random(shape, np.float32) if dtype.is_floating else np.zeros(shape)
        feed[spec.name] = np.asarray(array).astype(dtype.numpy())
    return feed
