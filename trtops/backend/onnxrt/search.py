"""The builder's search: which tactics matter for a model, how fast each candidate is, which one wins."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.backend.base import TimingCacheUse
from trtops.backend.onnxrt.engine import open_plan
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.optimize import Optimized, Optimizer
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.onnxrt.session import usable_threads
from trtops.backend.onnxrt.tactics import FALLBACKS, Candidate, Tactic
from trtops.backend.onnxrt.timing_cache import Timing, TimingCache, TimingKey
from trtops.limits import MEMORY, check_memory
from trtops.metadata import DataType, TensorSpec, is_dynamic, shape_accepts
from trtops.spec import OptimizationProfile

_WARM_UP = 3  # inferences that are not counted: the first ones allocate memory and pack weights

# Candidates are timed in turns, so that all suffer alike from whatever else the machine does. That keeps all of their
# sessions in memory; beyond this many bytes of engines they are timed one after the other.
_INTERLEAVE_BYTES = 1 << 30

# Up to this many tactics that matter, every combination is a candidate.
_MAX_EXHAUSTIVE = 3

_MAX_CRASHES = 4  # settings that took the process down, before optimizers are left out by the level

_MAX_DRAWN = 1024  # combinations that a seed draws before the builder gives up: with 15 tactics there are 32,768

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
    """

    candidate: Candidate
    applicable: tuple[str, ...]
    cache_use: TimingCacheUse


@dataclass
class Search:
    """The search for one build.

    Attributes:
        optimizer: Makes the candidates' engines.
        model_sha256: Digest of the model after its precision was rewritten.
        cache: Timings known before; what is measured is added to it.
        providers: Execution providers in order of preference.
        threads: Threads within one operator; 0 lets ONNX Runtime decide.
        iterations: Timed inferences per candidate and shape.
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
    shapes: tuple[Shapes, ...]
    inputs: Sequence[TensorSpec]
    log: SessionLog
    avoid: frozenset[str] = frozenset()
    failed: dict[str, str] = field(default_factory=dict)
    use: TimingCacheUse = field(default_factory=TimingCacheUse)

    def run(self, tactics: Iterable[Tactic], *, seed: int | None = None, why_not: WhyNot = _deny_nothing) -> Choice:
        """Find the fastest candidate that may be built, or draw one.

        With up to three tactics that matter, all their combinations are tried; with more, each on its own, and then
        those together that were faster than the default alone. Of candidates with the same graph one is timed. A candidate
        under which ONNX Runtime fails is left out; where the default is, whole levels of optimization are as well.

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
        applicable = self._applicable_tactics(tactics)
        self.log.add(f"[trtops] tactics that change this model's graph: {', '.join(applicable) or 'none'}")
        best_first = (
            self._by_time(applicable) if seed is None or not applicable else random_candidates(applicable, seed)
        )
        for candidate in best_first:
            if self._signature_or_none(candidate) is None:
                continue
            why = why_not(candidate, applicable)
            if why is None:
                return Choice(candidate=candidate, applicable=applicable, cache_use=self.use)
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
                return Choice(candidate=candidate, applicable=(), cache_use=self.use)
        raise errors.EngineBuildError(first)

    def _by_time(self, applicable: tuple[str, ...]) -> list[Candidate]:
        """The candidates, the fastest first; the default alone if nothing can be timed or varied."""
        if not applicable:
            return [Candidate()]
        exhaustive = len(applicable) <= _MAX_EXHAUSTIVE
        sizes = range(len(applicable) + 1) if exhaustive else range(2)
        candidates = [Candidate.toggling(names) for size in sizes for names in combinations(applicable, size)]
        try:
            seconds = self._seconds_per_inference(self._distinct_by_graph(candidates))
            if not exhaustive and (together := _faster_together(seconds)) is not None:
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

    def _applicable_tactics(self, tactics: Iterable[Tactic]) -> tuple[str, ...]:
        """Names of the tactics whose other setting, on its own, gives another graph.

        One that changes the graph only beside another is not seen: trying all pairs would optimize the model a hundred
        times.
        """
        usual = self._graph_signature(Candidate())
        names = (tactic.name for tactic in tactics)
        return tuple(name for name in names if self._signature_or_none(Candidate.toggling([name])) not in (None, usual))

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
            unknown = [c for c in candidates if c not in known]
            measured = self._measure_at(unknown, shapes) if unknown else {}
            for candidate, timing in measured.items():
                self.cache.add_timing(self._timing_key(candidate, shapes), timing)
            for candidate, timing in (known | measured).items():
                total[candidate] += timing.median_seconds
            self.use = replace(
                self.use,
                hits=self.use.hits + len(known),
                misses=self.use.misses + len(unknown),
                saved_seconds=self.use.saved_seconds + sum(t.cost_seconds for t in known.values()),
            )
        return total

    def _measure_at(self, candidates: Sequence[Candidate], shapes: Shapes) -> dict[Candidate, Timing]:
        feed = random_feed(self.inputs, dict(shapes))
        engines = [self.optimizer(candidate) for candidate in candidates]
        timings: dict[Candidate, Timing] = {}
        for group in _timing_groups(engines):
            timings |= self._measure_in_turns(group, feed)
        return timings

    def _measure_in_turns(self, group: Sequence[Optimized], feed: Mapping[str, Any]) -> dict[Candidate, Timing]:
        cost = dict.fromkeys((engine.candidate for engine in group), 0.0)
        runners: dict[Candidate, OnnxrtRunner] = {}
        for engine in group:
            start = time.perf_counter()
            self.optimizer.begin(engine.candidate)
            runner = OnnxrtRunner(open_plan(engine.plan, providers=self.providers, threads=self.threads), "timing")
            runner.activate()
            for _ in range(_WARM_UP):
                runner.infer(feed)
            runners[engine.candidate] = runner
            cost[engine.candidate] += time.perf_counter() - start
        samples: dict[Candidate, list[float]] = {candidate: [] for candidate in runners}
        order = list(runners.items())
        for turn in range(self.iterations):
            # Each begins a turn in its turn, so that whatever befalls the first one befalls all alike.
            shift = turn % len(order)
            for candidate, runner in order[shift:] + order[:shift]:
                start = time.perf_counter()
                runner.infer(feed)
                cost[candidate] += time.perf_counter() - start
                samples[candidate].append(runner.last_inference_time())
        return {c: Timing(median_seconds=statistics.median(samples[c]), cost_seconds=cost[c]) for c in samples}


def _timing_groups(engines: Sequence[Optimized]) -> Iterator[Sequence[Optimized]]:
    """All engines at once if they fit into the memory meant for that, else one by one."""
    if sum(engine.path.stat().st_size for engine in engines) <= _INTERLEAVE_BYTES:
        yield engines
    else:
        yield from ([engine] for engine in engines)


def random_candidates(names: Sequence[str], seed: int) -> Iterator[Candidate]:
    """Combinations of tactics in random order, each once; the same for the same names and seed."""
    draw = random.Random(seed)
    combinations_ = 1 << len(names)
    for bits in draw.sample(range(combinations_), min(combinations_, _MAX_DRAWN)):
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
