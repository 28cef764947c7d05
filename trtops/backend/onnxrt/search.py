"""The builder's search: tactics with an effect on a model's graph, the speed of candidates, and the choice."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import NO_GAIN, Feed, TimingCacheUse
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.measure import Budget, Measurement, successive_halving
from trtops.backend.onnxrt.optimize import Optimized, Optimizer
from trtops.backend.onnxrt.session import usable_threads
from trtops.backend.onnxrt.tactics import FALLBACKS, Candidate, Tactic, find
from trtops.backend.onnxrt.timing_cache import Timing, TimingCache, timing_key
from trtops.backend.ratio import MIN_STARTS, RatioEstimate, estimate
from trtops.metadata import DataType, TensorMetadata, TensorSpec, is_dynamic, shape_accepts
from trtops.spec import CAMPAIGN_SEEDS, OptimizationProfile
from trtops.system.limits import MEMORY, check_array

# Up to this many tactics that change the graph, every combination is a candidate.
_MAX_EXHAUSTIVE = 3

# A setting is chosen if it saves more than this share of the defaults' time, with this confidence over all settings.
# Sessions of one engine differ by up to that much, and a build that chooses by chance is no build to repeat.
_LEAST_GAIN, _CONFIDENCE = 0.03, 0.99

# After this many settings that crashed the process, whole levels of optimization are switched off instead.
_MAX_CRASHES = 4

# Returns why a candidate may not be built, given the names of the applicable tactics; None if it may.
WhyDenied: TypeAlias = Callable[[Candidate, tuple[str, ...]], str | None]
# A shape for each input, by name.
Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Choice:
    """The result of a search, with the tactics of certain or possible effect, and skipped candidates.

    ``denied`` are the reasons why candidates were left out that would have been chosen.
    """

    candidate: Candidate
    applicable: tuple[str, ...] = ()
    cache_use: TimingCacheUse = field(default_factory=TimingCacheUse)
    skipped: tuple[str, ...] = ()
    tuning: str = ""
    denied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Speed:
    """Seconds per inference of a candidate, and their ratio to the defaults'; None for the defaults themselves."""

    seconds: float
    ratio: RatioEstimate | None = None

    @property
    def order(self) -> tuple[int, float]:
        """Sort key: candidates faster beyond the noise, then the defaults, then the others."""
        if self.ratio is None:
            return 1, 1.0
        return (0 if self.ratio.decision == "below" else 2), self.ratio.ratio


@dataclass
class Search:
    """The search of one build."""

    optimizer: Optimizer
    measurement: Measurement
    model_sha256: str  # digest of the model after its precision was rewritten
    cache: TimingCache  # known timings; new ones are added
    shapes: tuple[Shapes, ...]  # shapes to time at; a candidate's time is the sum over them
    inputs: Sequence[TensorSpec]
    feed: Feed  # replaces random data for inputs that it has in the shapes to time at
    log: SessionLog
    avoid: frozenset[str] = frozenset()  # ids of candidates under which ONNX Runtime crashed in earlier attempts
    failed: dict[str, str] = field(default_factory=dict)  # reasons why candidates cannot be built, by id
    use: TimingCacheUse = field(default_factory=TimingCacheUse)
    timed: dict[Candidate, Speed] = field(default_factory=dict)
    _clock_runs: bool = False

    def __post_init__(self) -> None:
        self.budget = self.measurement.budget
        self._timed_before = self._keys(Candidate().id) <= self.cache.timings.keys()

    def run(self, tactics: Sequence[Tactic], *, seed: int | None = None, why_denied: WhyDenied) -> Choice:
        """Find the fastest candidate free to be built; with a seed, draw one at random without timing.

        The default is chosen unless another is faster by more than the noise of the measurement. With up to three
        applicable tactics all their combinations are tried. With more, each is tried on its own, and then all that
        were faster than the default together. Of candidates with the same graph only one is timed. A
        candidate under which ONNX Runtime fails is left out. Candidates that there is no time for are skipped.
        EngineBuildError if ONNX Runtime refuses the model, or no candidate may be built.
        """
        if self._signature(Candidate()) is None:
            return self._without_default(tactics, why_denied)
        applicable = self._applicable_tactics(tactics, limited=seed is None)
        self.log.add(f"[trtops] tactics that change this model's graph: {', '.join(applicable) or '-'}")
        # A tactic that there was no time to try has its default, and may change the graph: the record names it.
        untried = (tactic.name for tactic in tactics if Candidate.of(tactic).id in self.budget.skipped)
        recorded = tuple(dict.fromkeys((*applicable, *untried)))
        draw = seed is not None and applicable
        denied: dict[str, None] = {}
        for candidate in random_candidates(applicable, seed or 0) if draw else self._by_time(applicable):
            if self._signature(candidate) is None:
                continue
            refusal = why_denied(candidate, recorded)
            if refusal is None:
                for name in self.budget.skipped:
                    self.cache.skipped |= self._keys(name)
                    self.log.add(f"[trtops] {name} was not tried for lack of time (--tune tries all)")
                skipped, tuning = tuple(self.budget.skipped), self._tuning(candidate)
                return Choice(candidate, recorded, self.use, skipped, tuning, tuple(denied))
            denied[refusal] = None
            self.log.add(f"[trtops] {candidate.id} is not built: {refusal}; taking the next")
        raise errors.EngineBuildError(
            f"Every candidate has a tactic on the deny-list. {'; '.join(denied)}. Allow one, or more tactics."
        )

    def _tuning(self, candidate: Candidate) -> str:
        """Compare the candidate with ONNX Runtime's defaults, in a line; empty if only they were timed."""
        if len(self.timed) < 2 or Candidate() not in self.timed:
            return ""
        default, ratio = f"the defaults ({self.timed[Candidate()].seconds * 1e3:.4g} ms)", self.timed[candidate].ratio
        if ratio is None:
            margin = f"more than the noise and {_LEAST_GAIN:.0%}"
            return f"None of {len(self.timed) - 1} other settings is faster than {default} by {margin}"
        span = f"{ratio.low:.2f} to {min(ratio.high, 99):.2f} with {_CONFIDENCE:.0%} confidence"
        takes = f"With {candidate.id}, an inference takes {ratio.ratio:.2f} times the time of {default}, {span}"
        reason = f"{len(self.timed)} settings were timed" if ratio.decision == "below" else "the defaults are denied"
        return f"{takes}; {reason}"

    def gain_over_fp32(self, model: onnx.ModelProto, engine: Optimized) -> str:
        """Time a quantized engine in turns with the default engine of the FP32 model; the result is a line."""
        budget = Budget()
        budget.begin(0, 0)
        lanes = []
        try:
            with Optimizer(model, self.measurement.options, self.log) as optimizer:
                measurement = Measurement(optimizer, self.measurement.options, budget)
                feed = self._feed(self.shapes[0])
                lanes = [measurement.warm_lane(build, feed) for build in (optimizer(Candidate()), engine)]
                successive_halving(lanes, feed, self.measurement.options.timing_iterations, budget)
        except errors.BackendError as exc:
            self.log.add(f"[trtops] not compared with FP32: {exc}")
            return ""
        rounds = tuple((ratio,) for ratio in lanes[1].timing(lanes[0]).log_ratios)
        ratio = estimate(rounds, 1.0, _CONFIDENCE, last=True) if len(rounds) >= MIN_STARTS else None
        if ratio is None or ratio.decision == "open":
            self.log.add("[trtops] whether INT8 is faster than FP32 is not certain")
            return ""
        takes = f"{ratio.ratio:.2f} times the time of FP32"
        if ratio.decision == "below":
            return takes
        ops = [node.op for node in engine.graph.nodes]
        converting = sum(map(ops.count, ("QuantizeLinear", "DequantizeLinear", "Transpose")))
        return f"{NO_GAIN}: {takes} ({converting} of {len(ops)} kernels convert); build FP32"

    def _without_default(self, tactics: Sequence[Tactic], why_denied: WhyDenied) -> Choice:
        """Choose despite a failing default: the fastest candidate with one tactic toggled, or a lower level."""
        reason = self.failed[Candidate().id]
        # The unoptimized model would need the same memory at run time.
        if MEMORY in reason:
            raise errors.EngineBuildError(reason)
        hopeless = "has no kernel" in reason or len(self.avoid) >= _MAX_CRASHES
        usable = self._distinct_by_graph(map(Candidate.of, () if hopeless else tactics))
        if usable:
            try:
                speeds = self._speeds(usable)
                usable = sorted(speeds, key=lambda candidate: speeds[candidate].seconds)
            except errors.InferenceError as exc:
                self.log.add(f"[trtops] nothing was timed: {exc}")
        for candidate in (*usable, *map(Candidate.of, FALLBACKS)):
            if self._signature(candidate) is not None and why_denied(candidate, ()) is None:
                self.log.add(f"[trtops] {candidate.id} is built, since the default cannot be: {reason}")
                return Choice(candidate, (), self.use, tuple(self.budget.skipped))
        raise errors.EngineBuildError(reason)

    def _by_time(self, applicable: tuple[str, ...]) -> list[Candidate]:
        """The candidates, the fastest first; only the default if nothing can be timed or varied."""
        if not applicable:
            return [Candidate()]
        exhaustive = len(applicable) <= _MAX_EXHAUSTIVE
        candidates: list[Candidate] = []
        for size in range(len(applicable) + 1 if exhaustive else 2):
            for names in combinations(applicable, size):
                candidate = Candidate.toggling(names)
                # Optimizing here lets the time that it takes count before the next candidate is considered.
                if self._can_afford(candidate, len(candidates)) and self._signature(candidate) is not None:
                    candidates.append(candidate)
        try:
            speeds = self._speeds(self._distinct_by_graph(candidates))
            faster = [c.toggled[0] for c, speed in speeds.items() if speed.order < speeds[Candidate()].order]
            together = Candidate.toggling(faster)
            if not exhaustive and len(faster) > 1 and self._can_afford(together, len(speeds)):
                # Nothing new remains if a timed candidate has the same graph.
                new = self._distinct_by_graph([*speeds, self._without_idle(together)])[len(speeds) :]
                speeds |= self._speeds([Candidate(), *new], compared=len(speeds)) if new else {}
        except errors.InferenceError as exc:
            # The model may refuse random feeds (an index out of range); its engine is valid nevertheless.
            self.log.add(f"[trtops] nothing was timed, ONNX Runtime's defaults are used: {exc}")
            return [Candidate()]
        self.timed = speeds
        for candidate, speed in speeds.items():
            ratio = speed.ratio
            span = "" if ratio is None else f"  {ratio.ratio:.3f}, {ratio.low:.3f} to {min(ratio.high, 999):.3f} times"
            self.log.add(f"[trtops] {speed.seconds * 1e3:10.4f} ms  {candidate.id}{span}")
        return sorted(speeds, key=lambda candidate: speeds[candidate].order)

    def _applicable_tactics(self, tactics: Iterable[Tactic], *, limited: bool) -> tuple[str, ...]:
        """Return the tactics with an effect on the graph when toggled alone; in the time left, if ``limited``."""
        # A tactic that changes the graph only together with another is not found: trying all pairs would optimize the
        # model a hundred times.
        usual = self._signature(Candidate())
        assert usual is not None
        applicable: list[str] = []
        for tactic in tactics:
            candidate = Candidate.of(tactic)
            key = self._key(candidate.id)
            if key not in self.cache.graphs and candidate.id not in self.avoid:
                if not self.optimizer.may_change(tactic):
                    self.cache.graphs[key] = usual
                elif limited and not self._can_afford(candidate, len(applicable) + 1):
                    continue
            if self._signature(candidate) not in (None, usual):
                applicable.append(tactic.name)
        return tuple(applicable)

    def _can_afford(self, candidate: Candidate, waiting: int) -> bool:
        """Return True if there is time for a candidate, with ``waiting`` others yet to be timed."""
        # A candidate that an earlier build skipped is skipped again, unless this build has a time of its own: builds
        # with the same timing cache must choose alike.
        skipped = self._keys(candidate.id) <= self.cache.skipped
        was_optimized = self._timed_before and self._key(candidate.id) in self.cache.graphs
        if candidate == Candidate() or (was_optimized and not skipped):
            return True
        if skipped and self.budget.requested_seconds is None:
            self.budget.skip(candidate)
            return False
        if not self._clock_runs:
            self._start_clock()
        return self.budget.allows(candidate, waiting)

    def _start_clock(self) -> None:
        """Measure the model's own speed, and start the time limit derived from it."""
        self._clock_runs = True
        start = self.optimizer(Candidate()).seconds
        timings = [self.cache.timings.get(self._key(Candidate().id, shapes)) for shapes in self.shapes]
        inference = sum(timing.median_seconds for timing in timings if timing is not None)
        if None in timings:
            try:
                inference = self.measurement.first_seconds([self._feed(shapes) for shapes in self.shapes])
            # The timing will fail alike, and log the reason.
            except errors.InferenceError:
                inference = 0.0
        self.budget.begin(start, inference)
        self.log.add(
            f"[trtops] a session starts in {start:.3f} s, an inference takes {inference * 1e3:.3f} ms: "
            f"{max(self.budget.left, 0):.1f} s for trying settings"
        )

    def _distinct_by_graph(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the buildable candidates, without those repeating the graph of an earlier one."""
        by_graph: dict[str, Candidate] = {}
        for candidate in candidates:
            signature = self._signature(candidate)
            if signature is not None:
                by_graph.setdefault(signature, candidate)
        return list(by_graph.values())

    def _without_idle(self, candidate: Candidate) -> Candidate:
        """Return the candidate without tactics of no effect in combination with the others."""
        # A tactic record must not name settings that had no effect.
        for name in candidate.toggled:
            rest = Candidate.toggling(set(candidate.toggled) - {name})
            if self._signature(rest) == self._signature(candidate):
                candidate = rest
        return candidate

    def _signature(self, candidate: Candidate) -> str | None:
        """The signature of a candidate's optimized graph; None if it cannot be built."""
        if candidate.id in self.failed:
            return None
        try:
            if candidate.id in self.avoid:
                raise errors.EngineBuildError("ONNX Runtime crashed with these settings")
            key = self._key(candidate.id)
            if key not in self.cache.graphs:
                # Options of the provider change the kernels, and not the graph.
                settings = map("=".join, candidate.provider_settings.items())
                self.cache.graphs[key] = " ".join((self.optimizer(candidate).graph.signature, *settings))
            return self.cache.graphs[key]
        except errors.EngineBuildError as exc:
            self.failed[candidate.id] = str(exc)
            self.log.add(f"[trtops] {candidate.id} cannot be built: {exc}")
            return None

    def _key(self, candidate_id: str, shapes: Shapes | None = None) -> str:
        options = self.measurement.options
        threads = usable_threads(options.intra_op_threads)
        providers = (*options.providers, "tf32") if options.on_gpu and options.tf32 else options.providers
        return timing_key(self.model_sha256, candidate_id, providers, threads, None if shapes is None else dict(shapes))

    def _keys(self, candidate_id: str) -> set[str]:
        """The keys of a candidate's timings."""
        return {self._key(candidate_id, shapes) for shapes in self.shapes}

    def _speeds(self, candidates: Sequence[Candidate], *, compared: int = 0) -> dict[Candidate, Speed]:
        """Return the speed of each candidate over all shapes, compared with the first, from the cache if possible.

        ``compared`` candidates were compared before, with which these share the error probability.
        """
        first, *_ = candidates
        hits, misses, saved_seconds = self.use.hits, self.use.misses, self.use.saved_seconds
        for shapes in self.shapes:
            keys = {candidate: self._key(candidate.id, shapes) for candidate in candidates}
            unknown = [candidate for candidate, key in keys.items() if key not in self.cache.timings]
            for candidate in keys.keys() - set(unknown):
                hits, saved_seconds = hits + 1, saved_seconds + self.cache.timings[keys[candidate]].cost_seconds
            timings: dict[Candidate, Timing] = {}
            if unknown:
                timings = self.measurement.seconds(list(dict.fromkeys((first, *unknown))), self._feed(shapes))
            for candidate, reason in self.measurement.failed.items():
                self.failed[candidate.id] = reason
                self.log.add(f"[trtops] {candidate.id} does not run: {reason}")
            for candidate in timings.keys() & set(unknown):
                self.cache.timings[keys[candidate]] = timings[candidate]
                misses += 1
        self.use = TimingCacheUse(hits=hits, misses=misses, saved_seconds=saved_seconds)
        timed = [candidate for candidate in candidates if self._keys(candidate.id) <= self.cache.timings.keys()]
        confidence = 1 - (1 - _CONFIDENCE) / max(1, compared + len(timed) - 1)
        speeds: dict[Candidate, Speed] = {}
        for candidate in timed:
            per_shape = [self.cache.timings[self._key(candidate.id, shapes)] for shapes in self.shapes]
            seconds = [timing.median_seconds for timing in per_shape]
            if candidate == first:
                default_seconds = seconds
            ratio = None if candidate == first else _ratio(per_shape, default_seconds, confidence)
            speeds[candidate] = Speed(sum(seconds), ratio)
        return speeds

    def _feed(self, shapes: Shapes) -> dict[str, Any]:
        sizes = dict(shapes)
        arrays = {name: array for name, array in self.feed.items() if sizes.get(name) == tuple(array.shape)}
        return {**random_feed([spec for spec in self.inputs if spec.name not in arrays], sizes), **arrays}


def _ratio(timings: Sequence[Timing], default_seconds: Sequence[float], confidence: float) -> RatioEstimate:
    """Return the ratio of a candidate's time over all shapes to the defaults' time, ``default_seconds``."""
    total = sum(default_seconds) or 1.0
    weighted = zip(*([s / total * math.exp(x) for x in t.log_ratios] for s, t in zip(default_seconds, timings)))
    rounds = tuple((math.log(max(sum(shares), 1e-9)),) for shares in weighted) or ((0.0,),)
    return estimate(rounds, 1 - _LEAST_GAIN, confidence, last=True)


def random_candidates(names: Sequence[str], seed: int) -> Iterator[Candidate]:
    """Yield combinations of tactics in random order, each once; the same for the same names and seed.

    The first combinations of consecutive seeds differ until all (or a thousand) have occurred. A campaign begins with
    all approximations, then the default, then all other tactics. Without approximations it begins with all
    tactics, then the default.
    """
    # Repeating a combination in a campaign adds no information. Approximations are the first suspects, and the first
    # two builds differ in nothing else. One tactic that decides gives opposite combinations opposite verdicts.
    total = 1 << len(names)
    drawn = min(total, CAMPAIGN_SEEDS)
    campaign, number = divmod(seed, CAMPAIGN_SEEDS)
    deck, first = divmod(number, drawn)  # seeds of one deck go through the same shuffled combinations
    order = random.Random(f"{campaign} {deck}").sample(range(total), drawn)
    approximate = sum(1 << i for i, name in enumerate(names) if not find(name).exact)
    order = list(dict.fromkeys((approximate or total - 1, 0, total - 1 - approximate, *order)))
    for bits in (*order[first:], *order[:first]):
        yield Candidate.toggling(name for i, name in enumerate(names) if bits >> i & 1)


def timing_shapes(
    inputs: Sequence[TensorSpec], profiles: Sequence[OptimizationProfile], feed: Feed
) -> tuple[Shapes, ...]:
    """Return the shapes to time at: each profile's opt, or else those of the feed.

    An input in neither has the model's shape, with 1 for each dynamic dimension.
    """
    model_shapes = {spec.name: tuple(1 if is_dynamic(d) else int(d or 0) for d in spec.shape or ()) for spec in inputs}
    if not profiles:
        for name in model_shapes.keys() & feed.keys():
            model_shapes[name] = tuple(feed[name].shape)
        return (tuple(model_shapes.items()),)
    by_name = TensorMetadata.of(inputs)
    result = []
    for number, profile in enumerate(profiles):
        shapes = dict(model_shapes)
        for profile_shape in profile.shapes:
            spec = by_name.get(profile_shape.name)
            if spec is None:
                raise errors.ConfigError(
                    f"Profile {number} has a shape for {profile_shape.name!r}, which is not an input of this model. "
                    f"{errors.near(profile_shape.name, by_name)}"
                )
            for which, shape in (("min", profile_shape.min), ("opt", profile_shape.opt), ("max", profile_shape.max)):
                if spec.shape is not None and not shape_accepts(spec.shape, shape):
                    raise errors.ConfigError(
                        f"Profile {number}, {which}: {spec.name!r} has shape {shape}; the model expects {spec}."
                    )
            shapes[profile_shape.name] = profile_shape.opt
        result.append(tuple(shapes.items()))
    return tuple(result)


def random_feed(inputs: Iterable[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return a feed to time with: floats uniform in [0, 1), zeros of other types; the same for the same arguments."""
    rng = np.random.default_rng(0)
    feed = {}
    for spec in inputs:
        dtype = spec.dtype or DataType.FLOAT32
        shape = shapes[spec.name]
        check_array(spec.name, shape, dtype.numpy().itemsize)
        array = rng.random(shape, np.float32) if dtype.is_floating else np.zeros(shape)
        feed[spec.name] = np.asarray(array).astype(dtype.numpy())
    return feed
