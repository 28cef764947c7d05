"""Choose: the fastest engine of a model within limits, among precisions, mixed precisions, providers and settings."""

from __future__ import annotations

import glob
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.backend.base import Build
from trtops.backend.engines import engine_backend
from trtops.backend.onnx import walk
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.quantize import is_quantized, quantizable_layers
from trtops.backend.ratio import UNDISTURBED, estimate
from trtops.backend.torch import model_name
from trtops.comparator.tasks.scores import parse_loss
from trtops.next_step import NextStep, arguments_of
from trtops.ops.arguments import checked_arguments
from trtops.ops.engines.convert import ConvertConfig, convert, log_model
from trtops.ops.engines.request import CommandData, check_names
from trtops.ops.engines.sensitivity import SensitivityConfig, sensitivity
from trtops.ops.evaluation.check import CheckConfig, EngineConfig, Evaluation, evaluation_metrics
from trtops.ops.evaluation.data import DataConfig
from trtops.ops.facts import Facts, SharedReads
from trtops.ops.result import OnProgress, OpResult, model_file, model_source, op_run, run_step, tracker_or_default
from trtops.ops.search.precision import PrecisionConfig, precision
from trtops.record import Record, setting
from trtops.reports.document import Chart, Point, Section, Table, Tone
from trtops.spec import BuildConfig, OnnxRuntimeOptions, Precision, TensorRTOptions
from trtops.tables import counted, size
from trtops.tracking import builds, schema
from trtops.tracking.base import Run, StoredRun, Tracker, run_id_of
from trtops.verdict import Verdict, worst

Place: TypeAlias = Literal["cpu", "cuda", "tensorrt"]
Outcome: TypeAlias = Literal["within", "beyond", "unproven", "error", "refused", "untried"]

_MAX_ROWS = 10
_CLOSE = 1.5  # of the fastest: precisions that settings are tried for, and engines that are compared with it once more
_ROUNDS = 24  # of a comparison
# An engine is chosen instead of one tried before it, FP32 and default settings first, if it is faster with this
# confidence, and by more than sessions of one engine differ.
_CONFIDENCE, _LEAST_GAIN = 0.95, 0.02
_UNITS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True, kw_only=True)
class ChooseConfig(
    EngineConfig,
    uses={
        "build": "profiles calibration_samples calibration_fit keep qdq_op_types qdq_rules",
        "check": "data input_shapes input_dtypes iterations seed val_range golden metric labels tolerances "
        "warm_up latency_runs",
    },
):
    """The limits, and what is tried.

    Attributes:
        loss: What the engine may lose: points of each task metric, such as ``0.5%``; without a metric, the error
            relative to the norm of an output. By default the limits of a conversion alone decide.
        latency: The median latency that the engine may have, such as ``2ms``; by default any.
        minutes: When no further engine is built.
        on: Where engines run; by default everything that this machine has.
        precisions: The precisions to try; by default all.
        resume: The run of an interrupted choice with the same options, whose engines are not built and evaluated again.
            ``minutes``, ``on`` and ``precisions`` may differ.
    """

    loss: str | None = None
    latency: str | None = None
    minutes: float = setting(20.0, least=0)
    on: tuple[Place, ...] = ()
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "fp8")
    resume: str | None = None

    def __post_init__(self) -> None:
        _ = self.max_loss, self.max_ms

    @property
    def max_loss(self) -> float:
        """The largest loss as a number; infinite by default."""
        return math.inf if self.loss is None else parse_loss(self.loss)

    @property
    def max_ms(self) -> float:
        """The largest latency in milliseconds; infinite by default."""
        if self.latency is None:
            return math.inf
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|µs|ms|s)\s*", self.latency)
        if match is None:
            raise errors.ConfigError(f"The latency is {self.latency!r}; expected a time such as 2ms or 800us.")
        return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, kw_only=True)
class Candidate(Record):
    """An engine that may be chosen, with what was measured."""

    label: str
    build: BuildConfig
    outcome: Outcome = "untried"
    reason: str = ""  # why it is not within the limits, in a phrase
    loss: float | None = None  # the largest of all metrics, or the relative error
    p50_ms: float | None = None
    engine_bytes: int = 0
    run_id: str = ""


@dataclass(frozen=True, kw_only=True)
class ChooseResult(OpResult):
    """The fastest engine within the limits, and all candidates."""

    chosen: Candidate | None  # None if no candidate is within the limits
    candidates: tuple[Candidate, ...]  # the chosen one first, then those within the limits by latency
    by_metric: bool  # whether the loss is that of a task metric, or else a relative error
    seconds: float
    tie: str = ""  # how the chosen engine compares with the one of least latency, if that is another
    options: Mapping[str, Any] = field(default_factory=dict)  # of the config that are not the default

    @property
    def verdict(self) -> Verdict:
        """``good`` if an engine is within the limits; ``unproven`` if one may be; ``error`` if none was built."""
        if self.candidates and all(c.outcome in ("error", "refused") for c in self.candidates):
            return "error"
        if self.chosen is not None:
            return "good"
        return "unproven" if any(c.outcome in ("unproven", "untried") for c in self.candidates) else "bad"

    @property
    def headline(self) -> str:
        """The chosen engine."""
        return "no engine is within the limits" if self.chosen is None else self.chosen.label

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why each candidate is not within the limits, if none is."""
        return () if self.chosen else tuple(f"{c.label}: {c.reason or c.outcome}" for c in self.candidates)

    @property
    def because(self) -> tuple[str, ...]:
        """How the chosen engine compares with the fastest in FP32 and one that is as fast, and what was not tried."""
        if self.chosen is None or self.chosen.p50_ms is None:
            return self.reasons
        loss = "" if self.chosen.loss is None else f", {self._kind} {self.loss_text(self.chosen)}"
        fp32 = [c.p50_ms for c in self.candidates if c.build.precision == "fp32" and c.p50_ms]
        ratio = f", {self.chosen.p50_ms / min(fp32):.2f} of the fastest FP32" if fp32 else ""
        first = f"the fastest within the limits: p50 {self.chosen.p50_ms:.3f} ms{ratio}{loss}"
        untried = sum(c.outcome == "untried" for c in self.candidates)
        rest = f"no time was left for {counted(untried, 'candidate')}; resuming this run tries them" if untried else ""
        return tuple(filter(None, (first, rest, self.tie)))

    @property
    def figures(self) -> str:
        """The number of candidates by outcome, and the time."""
        outcomes = [c.outcome for c in self.candidates]
        counts = ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))
        return f"{counted(len(outcomes), 'candidate')} ({counts}), {self.seconds:.0f} s"

    @property
    def next_step(self) -> NextStep | None:
        """Promote the chosen engine."""
        if self.chosen is None or not self.run_id:
            return super().next_step
        return NextStep("runs promote", {"run": self.chosen.run_id})

    @property
    def _kind(self) -> str:
        return "loss" if self.by_metric else "relative error"

    def loss_text(self, candidate: Candidate) -> str:
        """The loss of a candidate in its unit."""
        if candidate.loss is None:
            return "-"
        return f"{100 * candidate.loss:.3g} points" if self.by_metric else f"{candidate.loss:.3g}"

    def overview(self) -> Table:
        """Return a row for each of the first candidates, and one that counts the others."""
        rows = list[tuple[str, ...]]()
        for c in self.candidates:
            mark = "chosen" if self.chosen is not None and c.label == self.chosen.label else c.outcome
            p50 = "-" if c.p50_ms is None else f"{c.p50_ms:.3f} ms"
            rows.append(
                (c.label, p50, self.loss_text(c), mark, size(c.engine_bytes) if c.run_id else "-", c.run_id[:8])
            )
        if len(rows) > _MAX_ROWS:
            rest = len(rows) - _MAX_ROWS + 1
            rows = [*rows[: _MAX_ROWS - 1], (f"{rest} more", "-", "-", "-", "-", "")]
        return Table(columns=("engine", "p50", self._kind, "outcome", "size", "run"), rows=tuple(rows))

    def sections(self) -> Iterable[Section]:
        """The table, a chart of latency against loss, and the reasons of candidates that were not chosen."""
        yield Section(chart=self.chart(), table=self.overview())
        lines = [f"- {c.label}: {c.reason}" for c in self.candidates if c.reason]
        yield Section(title="Why not", text="\n".join(lines)) if lines else Section()

    def chart(self) -> Chart:
        """Return latency against loss, with the frontier."""
        tones: dict[Outcome, Tone] = {"within": "good", "unproven": "unproven"}
        points = []
        for c in self.candidates:
            if c.p50_ms is not None and c.loss is not None and math.isfinite(c.loss):
                points.append(Point(label=c.label, x=c.p50_ms, y=c.loss, tone=tones.get(c.outcome, "bad")))
        title = "Latency and loss; the line is the frontier"
        return Chart(title=title, form="points", x="p50 in ms", y=self._kind, points=tuple(points), frontier=True)


@dataclass(frozen=True, kw_only=True)
class ChooseListResult(OpResult):
    """The choice of each model of a list."""

    results: tuple[ChooseResult, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of a model."""
        return worst(result.verdict for result in self.results)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Each model without an engine, and why."""
        return tuple(f"{Path(r.subject).name}: {'; '.join(r.reasons)}" for r in self.results if r.chosen is None)

    def overview(self) -> Table:
        """Return a row for each model, with its chosen engine."""
        rows = []
        for r in self.results:
            p50, loss = ("-", "-") if r.chosen is None else (f"{r.chosen.p50_ms or 0:.3f} ms", r.loss_text(r.chosen))
            rows.append((Path(r.subject).name, r.headline, p50, loss, "" if r.chosen is None else r.chosen.run_id[:8]))
        return Table(columns=("model", "engine", "p50", "loss", "run"), rows=tuple(rows))

    def sections(self) -> Iterable[Section]:
        """The table."""
        yield Section(table=self.overview())


@checked_arguments
def choose(
    model: str | Path | Model,
    config: ChooseConfig = ChooseConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    progress: OnProgress | None = None,
) -> ChooseResult:
    """Choose the fastest engine of a model within limits on its loss and latency.

    Each candidate is a conversion in a child run. What cannot win is refused before it is built, with the reason. The
    engines within the limits are timed in turns at the end.

    >>> result = trtops.choose("model.onnx", data="feed.npz", precisions=("fp32",), minutes=1)
    >>> result.verdict, result.chosen.build.precision
    ('good', 'fp32')
    """
    tracker = tracker_or_default(tracker)
    path = model_file(model)
    loaded = run_step("load", Model.load, model)
    check_names(loaded, config.build, config.check)
    check = replace(config.check, plots="never", loss=config.loss if config.check.metrics else None)
    earlier = {} if config.resume is None else _recorded(tracker, config, loaded)
    data = CommandData(loaded, check, config.calibration_data)
    if check.metrics:  # labels that do not fit fail here, and not after each build
        data.golden(config.build.profiles)
    run_tags = {**(tags or {}), schema.Tag.MODEL_SHA256: loaded.info.sha256}
    name = f"{path.stem} choose"
    with op_run(tracker, experiment, name, kind="choose", model=path, tags=run_tags, parent=parent) as op:
        op.run.log_params(config)
        log_model(op.run, loaded, keep=True)  # once, for all candidates
        logged: dict[str, Any] = {"tracker": tracker, "experiment": op.experiment, "tags": tags, "parent": op.run.id}
        choice = _Choice(model, config, check, data, logged, op.run, earlier, progress)
        choice.run_all()
        result = replace(choice.result(), title=f"choose {path.name}", subject=model_source(model))
        if result.chosen is not None and result.chosen.p50_ms is not None:
            op.run.log_metrics({(schema.Metric.LATENCY, "p50_ms"): result.chosen.p50_ms})
        return op.finish(result, artifact=schema.Artifact.CHOOSE)


@checked_arguments
def choose_all(
    models: Sequence[str | Path | Model],
    config: ChooseConfig = ChooseConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> ChooseResult | ChooseListResult:
    """Choose an engine for each model, one after the other; several in child runs, with one table.

    Patterns such as ``models/*.onnx`` stand for their files. A model that fails does not stop the others.
    """
    tracker = tracker_or_default(tracker)
    sources = list[Any]()
    for model in models:
        sources += (sorted(glob.glob(str(model))) if isinstance(model, (str, Path)) else ()) or [model]
    logged: dict[str, Any] = {"tracker": tracker, "experiment": experiment, "tags": tags}
    if len(sources) == 1:
        return choose(sources[0], config, progress=progress, **logged)
    if config.resume is not None:
        raise errors.ConfigError(f"resume is a run of one model, but there are {len(sources)} models.")
    with op_run(tracker, experiment or "choose", "choose list", kind="choose", tags=tags) as op:
        results = list[ChooseResult]()
        for number, source in enumerate(sources, start=1):
            try:
                results.append(choose(source, config, parent=op.run.id, **{**logged, "experiment": op.experiment}))
            except errors.ScriptError:  # each model would meet it
                raise
            except errors.TrtopsError as exc:
                failed = Candidate(label="model", build=config.build, outcome="error", reason=str(exc).splitlines()[0])
                failure = ChooseResult(
                    chosen=None, candidates=(failed,), by_metric=False, seconds=0.0, subject=model_name(source)
                )
                results.append(failure)
            if progress is not None:
                progress(number, len(sources))
        list_result = ChooseListResult(title=f"choose {counted(len(sources), 'model')}", results=tuple(results))
        return op.finish(list_result, artifact=schema.Artifact.CHOOSE_LIST)


def _recorded(tracker: Tracker, config: ChooseConfig, model: Model) -> dict[str, Candidate]:
    """Return the finished candidates of the choice to resume by label; ConfigError if it had another model or data."""
    info = tracker.info(run_id_of(str(config.resume), tracker))
    if info.kind != "choose":
        raise errors.ConfigError(f"Run {info.id} holds no candidates; expected a run of trtops choose.")
    if info.tags.get(schema.Tag.MODEL_SHA256) != model.info.sha256:
        raise errors.ConfigError(f"Run {info.id} is of another model than {model.name}; start again, without resume.")
    data = tracker.peek(info.id, schema.Artifact.CHOOSE)
    if data is None:  # it was interrupted before its first candidate
        return {}
    stored = ChooseResult.from_json(data)
    former, current = stored.options, arguments_of(config)
    changed = {name for name in former.keys() | current.keys() if former.get(name) != current.get(name)}
    if changed := changed - {"minutes", "on", "precisions", "resume"}:
        raise errors.ConfigError(
            f"Run {info.id} was started with another {', '.join(sorted(changed))}, so its candidates cannot be "
            "compared with new ones. Give the same, or start again, without resume."
        )
    return {c.label: c for c in stored.candidates if c.run_id}


@dataclass
class _Choice:
    """One choice under way."""

    model: str | Path | Model
    config: ChooseConfig
    check: CheckConfig
    data: CommandData
    logged: dict[str, Any]
    run: Run
    earlier: dict[str, Candidate]
    progress: OnProgress | None
    candidates: dict[str, Candidate] = field(default_factory=dict)
    engines: dict[str, Build] = field(default_factory=dict, repr=False)
    started: float = field(default_factory=time.perf_counter)
    longest: float = 0.0  # seconds of one candidate
    winner: str = ""  # the label of the candidate to choose; by default the one with the least latency
    tie: str = ""

    def run_all(self) -> None:
        """Try precisions, then layers to keep, then settings of the fastest, and time those within the limits."""
        for place in self._places():
            for name in self.config.precisions:
                build = self._build(place, name)
                candidate = self.attempt(f"{name.upper()} {place}", build, self._refusal(place, name))
                if candidate.outcome == "beyond":
                    self._keep_layers(place, candidate)
        for candidate in self._fastest():
            for label, build in _with_settings(candidate, self.data.model):
                self.attempt(label, build)
        with_engine = [c for c in self.candidates.values() if c.outcome == "within"]
        if len(with_engine) > 1:
            run_step("time engines", self._time, with_engine)
        for c in self.candidates.values():
            if c.outcome == "within" and c.p50_ms is not None and c.p50_ms > self.config.max_ms:
                reason = f"p50 is {c.p50_ms:.3f} ms; at most {self.config.max_ms:g} ms are allowed"
                self.candidates[c.label] = replace(c, outcome="beyond", reason=reason)

    def result(self) -> ChooseResult:
        """Return the result so far."""
        order = ("within", "unproven", "beyond", "error", "untried", "refused")
        candidates = sorted(
            self.candidates.values(),
            key=lambda c: (order.index(c.outcome), c.label != self.winner, c.p50_ms or math.inf),
        )
        chosen = candidates[0] if candidates and candidates[0].outcome == "within" else None
        return ChooseResult(
            chosen=chosen,
            candidates=tuple(candidates),
            by_metric=bool(self.check.metrics),
            seconds=time.perf_counter() - self.started,
            tie=self.tie,
            options=arguments_of(self.config),
        )

    def _places(self) -> Iterable[Place]:
        """Where engines can run; those that the config names must."""
        places: tuple[Place, ...] = ("tensorrt", "cuda", "cpu")
        for place in self.config.on or places:
            try:
                build = self._build(place, "fp32")
                engine_backend(build.backend).environment(build)
            except errors.BackendUnavailableError:
                if self.config.on:
                    raise
            else:
                yield place

    def _build(self, place: Place, name: Precision) -> BuildConfig:
        options = TensorRTOptions() if place == "tensorrt" else OnnxRuntimeOptions(providers=(place,))
        if isinstance(options, TensorRTOptions) and name in ("int8", "fp8"):
            options = replace(options, also=("fp16",))
        return self.data.profiled(replace(self.config.build, precision=name, options=options))

    def _refusal(self, place: Place, name: Precision) -> str:
        """Why an engine cannot win or be trusted, before it is built; empty if it may."""
        if place == "cpu" and name in ("fp16", "bf16"):
            return "ONNX Runtime computes it in FP32 on a processor, with casts in addition"
        if place != "tensorrt" and name == "fp8":
            return "ONNX Runtime has no kernels for it"
        if name in ("int8", "fp8"):
            proto = self.data.model.structure()
            if is_quantized(proto):
                return "the model is quantized already"
            if self.data.calibration() is None and self.config.calibration_cache is None:
                return "ranges of random data are meaningless; give data"
            if not quantizable_layers(proto, self._build(place, name)):
                return "no layer can be quantized"
        return ""

    def attempt(self, label: str, build: BuildConfig, refusal: str = "") -> Candidate:
        """Build and evaluate a candidate, unless it is refused, was done before, or there is no time."""
        candidate = Candidate(label=label, build=build)
        left = 60 * self.config.minutes - (time.perf_counter() - self.started)
        if refusal:
            candidate = replace(candidate, outcome="refused", reason=refusal)
        elif label in self.earlier and self.earlier[label].build == build:
            candidate = self.earlier[label]
        elif self.candidates and left < self.longest:
            candidate = replace(candidate, reason=f"no time left of {self.config.minutes:g} minutes")
        else:
            begin = time.perf_counter()
            try:
                candidate = self._converted(candidate)
            except errors.ScriptError:  # each candidate would meet it
                raise
            except errors.TrtopsError as exc:  # another candidate may do
                candidate = replace(candidate, outcome="error", reason=str(exc).splitlines()[0])
            self.longest = max(self.longest, time.perf_counter() - begin)
        self.candidates[label] = candidate
        # Logged at once, for a choice that resumes this one.
        self.run.log_json(self.result(), schema.Artifact.CHOOSE)
        if self.progress is not None:
            self.progress(len(self.candidates), None)
        return candidate

    def _converted(self, candidate: Candidate) -> Candidate:
        def keep_engine(build: Build) -> None:
            self.engines[candidate.label] = build

        cache = self.config.calibration_cache if candidate.build.calibrates else None
        config = ConvertConfig(build=candidate.build, check=self.check, calibration_cache=cache, keep_model=False)
        result = convert(self.model, config, opened=self.data, built=keep_engine, **self.logged)
        loss = _loss_of(result.evaluation)
        outcome: Outcome = {"good": "within", "unproven": "unproven"}.get(result.verdict, "beyond")  # type: ignore[assignment]
        reason = "; ".join(result.reasons[:2])
        if outcome == "within" and self.check.loss is None and not (loss or 0.0) <= self.config.max_loss:
            outcome = "beyond"
            reason = f"the relative error is {loss:.3g}; at most {self.config.max_loss:g} is allowed"
        latency = result.evaluation.latency
        return replace(
            candidate, outcome=outcome, reason=reason, loss=loss, engine_bytes=result.engine_bytes,
            run_id=result.run_id, p50_ms=None if latency is None else latency.p50_ms,
        )  # fmt: skip

    def _keep_layers(self, place: Place, candidate: Candidate) -> None:
        """Try a candidate again with the layers kept in higher precision that cost most."""
        name, build = candidate.build.precision, candidate.build
        slowest = self.candidates.get(f"FP32 {place}")
        label = f"{name.upper()} {place}, kept layers"
        if not candidate.run_id or name == "fp32":
            return
        if slowest is not None and (candidate.p50_ms or 0) >= (slowest.p50_ms or math.inf):
            self.attempt(label, build, f"{name.upper()} is not faster than FP32 here, without kept layers either")
            return
        shared = {member.name: getattr(self.check, member.name) for member in fields(DataConfig)}
        try:
            if name in ("fp16", "bf16"):
                lowered: Any = name
                search = PrecisionConfig(to=lowered, profiles=build.profiles, **shared)
                keep: Sequence[str] = precision(self.model, search, **self.logged).keep
            else:
                budget = self.config.max_loss if self.check.loss is None and self.config.loss else None
                budget = (candidate.loss or 0.01) / 4 if budget is None else budget
                config = SensitivityConfig(budget=budget, style=build.backend, keep=build.keep, **shared)
                keep = sensitivity(self.model, f"run:{candidate.run_id}", config, **self.logged).keep
        except errors.TrtopsError as exc:
            self.attempt(label, build, f"no layers to keep were found: {exc}")
            return
        if keep:
            self.attempt(label, replace(build, keep=(*build.keep, *keep)))

    def _fastest(self) -> list[Candidate]:
        """Return the candidates within the limits that settings may make the fastest."""
        within = [c for c in self.candidates.values() if c.outcome == "within" and c.p50_ms is not None]
        best = min((c.p50_ms or math.inf for c in within), default=math.inf)
        return [c for c in within if (c.p50_ms or math.inf) <= _CLOSE * best]

    def _time(self, candidates: Sequence[Candidate]) -> None:
        """Time engines in turns on the first feed: set their latencies, and find the one to choose."""
        from trtops.backend.onnxrt.measure import Budget, Lane, successive_halving

        feed = next(iter(self.data.feeds(candidates[0].build.profiles)))

        def time_in_turns(lanes: Sequence[Lane]) -> None:
            budget = Budget(max(5.0, min(0.1 * 60 * self.config.minutes, 30.0)))
            budget.begin(0.0, 0.0)
            successive_halving(lanes, feed, _ROUNDS, budget)

        with ExitStack() as stack:
            lanes = []
            for c in candidates:
                engine = self.engines.get(c.label)
                build = engine or builds.load_build(self.logged["tracker"].load(c.run_id))
                runner = stack.enter_context(engine_backend(c.build.backend).runner(build.engine))
                lane = Lane(c.label, runner)  # type: ignore[arg-type]
                for _ in range(3):
                    lane.infer(feed)
                lanes.append(lane)
            time_in_turns(lanes)
            # Visits that other work disturbed say nothing of the engine, as in the gate.
            undisturbed = np.array([np.quantile(lane.samples, UNDISTURBED) for lane in lanes])
            latencies = 1e3 * np.median(lanes[0].samples) * undisturbed / undisturbed[0]
            for c, p50 in zip(candidates, latencies.tolist()):
                self.candidates[c.label] = replace(c, p50_ms=p50)
            fastest = int(latencies.argmin())
            for index in range(fastest):
                if latencies[index] > min(_CLOSE * latencies[fastest], self.config.max_ms):
                    continue
                simpler, other = (replace(lanes[i], samples=[], rounds=[]) for i in (index, fastest))
                time_in_turns([simpler, other])
                rounds = tuple((ratio,) for ratio in other.timing(simpler).log_ratios)
                ratio = estimate(rounds, 1.0, _CONFIDENCE, last=True)
                if ratio.decision != "below" or ratio.ratio > 1 - _LEAST_GAIN:
                    self.winner = candidates[index].label
                    self.tie = (
                        f"{candidates[fastest].label} is not faster beyond the noise and {_LEAST_GAIN:.0%}: it takes "
                        f"{ratio.ratio:.2f} of the time ({ratio.low:.2f} to {min(ratio.high, 99):.2f} with "
                        f"{_CONFIDENCE:.0%} confidence)"
                    )
                    break


def _loss_of(evaluation: Evaluation) -> float | None:
    """Return the largest loss of a task metric, or else the largest relative error of an output."""
    if evaluation.tasks:
        return max(score.loss for score in evaluation.tasks)
    return evaluation_metrics(evaluation).get((schema.Metric.ERROR, "nrmse"))


def audit_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the verdict and the latency with the result, and each candidate's loss with the numbers of its run."""
    path = schema.Artifact.CHOOSE
    result = ChooseResult.from_json(run.read_bytes(path))
    facts.tag("verdict", schema.Tag.VERDICT, path, result.verdict)
    if result.chosen is not None and result.chosen.p50_ms is not None:
        facts.metric("p50", (schema.Metric.LATENCY, "p50_ms"), path, result.chosen.p50_ms)
    for c in result.candidates:
        data = shared.tracker.peek(c.run_id, schema.Artifact.ACCURACY) if c.run_id else None
        if data is not None:
            measured = _loss_of(Evaluation.from_json(data))
            facts.add(f"loss of {c.label}", {path: c.loss, f"{schema.Artifact.ACCURACY} of run {c.run_id}": measured})


def _with_settings(candidate: Candidate, model: Model) -> Iterable[tuple[str, BuildConfig]]:
    """Yield a candidate with other settings, and its label."""
    build, options = candidate.build, candidate.build.options
    if isinstance(options, TensorRTOptions):
        yield f"{candidate.label}, level 5", replace(build, options=replace(options, optimization_level=5))
        return
    if not options.on_gpu:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for threads in sorted({1, 2, 4, cores // 2, cores}):
            if 0 < threads <= cores:
                threaded = replace(options, intra_op_threads=threads)
                yield f"{candidate.label}, {counted(threads, 'thread')}", replace(build, options=threaded)
    if any(node.op_type in ("Gelu", "Erf") for node in walk.nodes(model.structure())):
        approximate = replace(options, allow_approximation=True)
        yield f"{candidate.label}, approximations", replace(build, options=approximate)
