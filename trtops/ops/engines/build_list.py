"""Build a list of models: each entry as the convert op builds it, and one that fails does not stop the others."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, convert
from trtops.ops.engines.model_list import ListedBuild, ModelList, read_model_list
from trtops.ops.result import OpResult, finish_with, op_run
from trtops.record import Record, digest, sha256_file
from trtops.spec import BackendName, Precision
from trtops.tables import size
from trtops.tracking import owner, schema
from trtops.tracking.base import Run, Tracker, Verdict

log = logging.getLogger(__name__)

Outcome: TypeAlias = Literal["good", "bad", "error", "skipped"]
Convert: TypeAlias = Callable[[str, ConvertConfig, str, Mapping[str, str]], ConvertResult]
"""Makes one build: model, config, experiment and tags in, the convert op's result out."""


@dataclass(frozen=True, kw_only=True)
class BuildListConfig(Record):
    """Which builds of a list are made.

    Attributes:
        backends: Only those with these back ends; all unless given.
        only_new: Only those that the memory does not have: of this model's content, asked for in this way, in this
            environment. Builds that failed are tried again, up to ``attempts`` times in all.
        attempts: See ``only_new``.
        settle_seconds: With ``only_new``, how long a model file must have been left alone: it may still be being copied.
    """

    backends: tuple[BackendName, ...] | None = None
    only_new: bool = False
    attempts: int = 3
    settle_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise errors.ConfigError(f"attempts is {self.attempts}; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class BuildOutcome(Record):
    """What became of one build of a list.

    Attributes:
        model: The ONNX file.
        precision: Its precision.
        backend: Its back end.
        place: File and line of the list.
        outcome: A verdict, ``error`` if there could be none, or ``skipped``.
        failed: Whether it makes the list fail.
        reasons: Why it is bad, what the error was, or why it was skipped.
        run_id: Its run; empty if there is none.
        url: Where a person can look at the run.
        reused: Whether the memory had the engine.
        engine_bytes: Size of the engine; 0 if there is none.
        p50_ms: Median latency in milliseconds; None if not measured.
        seconds: How long it took.
    """

    model: str
    precision: Precision
    backend: BackendName
    place: str
    outcome: Outcome
    failed: bool = False
    reasons: tuple[str, ...] = ()
    run_id: str = ""
    url: str = ""
    reused: bool = False
    engine_bytes: int = 0
    p50_ms: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BuildListResult(OpResult):
    """What became of a list.

    Attributes:
        builds: Each build, in the list's order.
    """

    builds: tuple[BuildOutcome, ...]

    @property
    def failed(self) -> tuple[BuildOutcome, ...]:
        """The builds that make the list fail."""
        return tuple(build for build in self.builds if build.failed)

    @property
    def verdict(self) -> Verdict:
        """``good`` if nothing failed."""
        return "bad" if self.failed else "good"

    @property
    def headline(self) -> str:
        """How many of each outcome, those that failed first."""
        counts = Counter(build.outcome for build in self.builds)
        told = [f"{counts[outcome]} {outcome}" for outcome in ("good", "bad", "error", "skipped") if counts[outcome]]
        if not self.failed:
            return ", ".join(told) or "nothing to build"
        return f"{len(self.failed)} of {len(self.builds)} failed ({', '.join(told)})"

    def body(self) -> Iterable[str]:
        """What failed and why, then a table of all builds that were not skipped."""
        for build in self.builds:
            if build.outcome in ("bad", "error"):
                yield f"- **{_title_of(build)}**: {build.outcome}. {' '.join(build.reasons)} ({build.place})"
        made = [build for build in self.builds if build.outcome != "skipped"]
        if made:
            yield ""
            yield "| model | back end | precision | verdict | p50 | engine | time | run |"
            yield "|---|---|---|---|---|---|---|---|"
            yield from (_table_row(build) for build in made)
        why = Counter(reason for build in self.builds if build.outcome == "skipped" for reason in build.reasons)
        if why:
            yield ""
            yield from (f"- {count} skipped: {reason}" for reason, count in why.items())


def build_list(
    models: str | Path | ModelList,
    config: BuildListConfig | None = None,
    *,
    tracker: Tracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    convert_one: Convert | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> BuildListResult:
    """Build and evaluate what a list asks for, one after the other, and keep each build and a summary in runs of their own.

    Args:
        models: The list, or the file to read it from.
        config: Which of its builds to make; all unless given.
        tracker: The memory.
        experiment: Experiment of the summary; the list's name unless given. Builds go to their models' experiments.
        tags: Further tags of the summary and of each build.
        convert_one: What makes one build; the convert op in this process unless given.
        progress: Told before each build: how many were made, of how many, and which is next.

    Returns:
        What became of each build. Where nothing was to be built no summary is kept.

    Raises:
        FormatError: If the list cannot be read.
        TrackingError: If the memory cannot be used.
    """
    config = BuildListConfig() if config is None else config
    listed = models if isinstance(models, ModelList) else read_model_list(models)
    asked = [build for build in listed.builds() if config.backends is None or build.backend in config.backends]
    plans = [_plan_build(build, config, tracker) for build in asked]
    result = BuildListResult(title=f"build list {Path(listed.path).name}", builds=())
    if all(isinstance(plan, BuildOutcome) and plan.outcome == "skipped" for plan in plans):
        return _with_builds(result, plans)
    experiment = experiment or Path(listed.path).stem
    with op_run(tracker, experiment, result.title, kind="build_list", tags=tags) as run:
        make = convert_one or partial(_convert_here, tracker)
        for number, build in enumerate(asked):
            plan = plans[number]
            if isinstance(plan, BuildOutcome):
                continue
            if progress is not None:
                progress(number, len(asked), _title_of(build))
            plans[number] = _make_build(build, _remembering(tracker, make), {**(tags or {}), **plan})
        result = _with_builds(result, plans).kept_in(run, experiment)
        _log_summary(run, result)
        finish_with(run, result, tracker)
        return result


Plan: TypeAlias = "BuildOutcome | dict[str, str]"
"""What became of a build without building, or the tags to build it with."""


def _plan_build(build: ListedBuild, config: BuildListConfig, tracker: Tracker) -> Plan:
    """Decide whether a build is made."""
    if build.missing:
        return _outcome_of(build, "error", build.missing)
    if not config.only_new:
        return {}
    if time.time() - Path(build.model).stat().st_mtime < config.settle_seconds:
        return _outcome_of(build, "skipped", "The file changed just now; it may still be being copied.")
    try:
        key = _listed_key(build)
    except errors.BackendError as exc:
        return _outcome_of(build, "error", str(exc))
    why = _why_known(tracker, key, config.attempts)
    return {schema.Tag.LISTED: key} if why is None else _outcome_of(build, "skipped", why)


def _listed_key(build: ListedBuild) -> str:
    """SHA-256 of what is asked for: the model's content, the config, and the environment."""
    environment = engine_backend(build.backend).environment()
    asked = build.entry.config(build.precision, build.backend)
    try:
        model_sha256 = Model.load(build.model).info.sha256
    except errors.ModelError:  # it will fail, and be known by its bytes to have failed
        model_sha256 = sha256_file(build.model)
    return digest([model_sha256, asked.digest, environment.build_digest()])


def _why_known(tracker: Tracker, key: str, attempts: int) -> str | None:
    """Why a build need not be made, by the runs of such builds; None if it has to be."""
    failed = 0
    for info in tracker.find(tags={schema.Tag.KIND: "build", schema.Tag.LISTED: key}):
        if info.status == "finished":
            return "The memory has it."
        if info.status == "running" and not owner.is_abandoned(info):
            return "It is being built."
        failed += 1
    return f"It failed {failed} times." if failed >= attempts else None


def _make_build(build: ListedBuild, make: Convert, tags: Mapping[str, str]) -> BuildOutcome:
    """Make one build. Whatever is wrong with it, and is not an interruption, is its outcome."""
    begun = time.monotonic()
    config = build.entry.config(build.precision, build.backend)
    try:
        result = make(build.model, config, build.entry.experiment or Path(build.model).stem, tags)
    except errors.TrtopsError as exc:
        return _outcome_of(build, "error", str(exc), seconds=time.monotonic() - begun)
    except Exception as exc:  # a defect of ours, or of a library, which the builds after it need not suffer for
        log.exception("%s failed", _title_of(build))
        return _outcome_of(build, "error", f"{type(exc).__name__}: {exc}", seconds=time.monotonic() - begun)
    latency = result.evaluation.latency
    return BuildOutcome(
        model=build.model,
        precision=build.precision,
        backend=build.backend,
        place=build.place,
        outcome=result.verdict,
        failed=result.verdict == "error" or (result.verdict == "bad" and build.entry.policy.bad == "fail"),
        reasons=result.reasons,
        run_id=result.run_id,
        url=result.url,
        reused=result.reused_from is not None,
        engine_bytes=result.engine_bytes,
        p50_ms=None if latency is None else latency.p50_ms,
        seconds=time.monotonic() - begun,
    )


def _remembering(tracker: Tracker, make: Convert) -> Convert:
    """A conversion that leaves a failed run whenever it fails, where what is built is known by a key.

    A model that cannot be read leaves none by itself, and would be tried at every look.
    """

    def converted(model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]) -> ConvertResult:
        key = {name: value for name, value in tags.items() if name == schema.Tag.LISTED}
        before = len(tracker.find(tags=key)) if key else 0
        try:
            return make(model, config, experiment, tags)
        except errors.TrtopsError:
            if not key or len(tracker.find(tags=key)) > before:
                raise
            with op_run(tracker, experiment, Path(model).stem, kind="build", model=model, tags=tags):
                raise

    return converted


def _outcome_of(build: ListedBuild, outcome: Outcome, reason: str, *, seconds: float = 0.0) -> BuildOutcome:
    return BuildOutcome(
        model=build.model,
        precision=build.precision,
        backend=build.backend,
        place=build.place,
        outcome=outcome,
        failed=outcome == "error",
        reasons=(reason,),
        seconds=seconds,
    )


def _convert_here(
    tracker: Tracker, model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]
) -> ConvertResult:
    return convert(model, config, tracker=tracker, experiment=experiment, tags=tags)


def _with_builds(result: BuildListResult, plans: Iterable[Plan]) -> BuildListResult:
    builds = tuple(plan for plan in plans if isinstance(plan, BuildOutcome))
    return BuildListResult(title=result.title, builds=builds)


def _log_summary(run: Run, result: BuildListResult) -> None:
    counts = Counter(build.outcome for build in result.builds)
    run.log_metrics({("builds", outcome): float(counts[outcome]) for outcome in ("good", "bad", "error", "skipped")})
    run.log_metrics({("builds", "failed"): float(len(result.failed))})
    run.log_json(result, schema.Artifact.BUILD_LIST)
    run.log_text(result.page(), schema.Artifact.BUILD_LIST_PAGE)


def _title_of(build: ListedBuild | BuildOutcome) -> str:
    return f"{Path(build.model).name} {build.precision} {build.backend}"


def _table_row(build: BuildOutcome) -> str:
    run = f"[{build.run_id[:8]}]({build.url})" if build.url.startswith("http") else build.run_id[:8]
    cells = (
        Path(build.model).name,
        build.backend,
        build.precision,
        build.outcome,
        "-" if build.p50_ms is None else f"{build.p50_ms:.3f} ms",
        size(build.engine_bytes) if build.engine_bytes else "-",
        "reused" if build.reused else f"{build.seconds:.1f} s",
        run or "-",
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
