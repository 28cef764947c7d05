"""Build every model of a list with the convert op; a build that fails does not stop the others."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, convert
from trtops.ops.engines.model_list import ListedBuild, ModelList, read_model_list
from trtops.ops.result import OpResult, finish_with, op_run, tracker_or_default
from trtops.record import Record, digest, sha256_file
from trtops.spec import BackendName, Precision
from trtops.tables import markdown_table, size
from trtops.tracking import owner, schema
from trtops.tracking.base import Tracker
from trtops.verdict import VERDICTS, Verdict

log = logging.getLogger(__name__)

Outcome: TypeAlias = Literal[Verdict, "skipped"]
OUTCOMES: tuple[Outcome, ...] = (*VERDICTS, "skipped")
Convert: TypeAlias = Callable[[str, ConvertConfig, str, Mapping[str, str]], ConvertResult]
"""Makes one build: called with model, config, experiment and tags."""


@dataclass(frozen=True, kw_only=True)
class BuildListConfig(Record):
    """Which builds of a list are made.

    Attributes:
        backends: Only builds for these back ends; all by default.
        only_new: Only builds that the tracking store does not have: of this model's content, with this config, in this
            environment. Failed builds are repeated until there were ``attempts`` of them.
        attempts: See ``only_new``.
        settle_seconds: With ``only_new``, the time since a model file was changed; it may still be being copied.
    """

    backends: tuple[BackendName, ...] | None = None
    only_new: bool = False
    attempts: int = 3
    settle_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BuildOutcome(Record):
    """The outcome of one build of a list; ``failed`` if it makes the whole list fail.

    An ``unproven`` build does not fail the list, but the list is unproven then.
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
    called: str = ""  # what the engine computes in; empty without one
    reused: bool = False
    engine_bytes: int = 0
    p50_ms: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BuildListResult(OpResult):
    """The result of building a list."""

    builds: tuple[BuildOutcome, ...]

    @property
    def failed(self) -> tuple[BuildOutcome, ...]:
        """The builds that make the list fail."""
        return tuple(build for build in self.builds if build.failed)

    @property
    def verdict(self) -> Verdict:
        """``bad`` if a build failed, otherwise ``unproven`` if one is unproven, otherwise ``good``."""
        if self.failed:
            return "bad"
        return "unproven" if any(build.outcome == "unproven" for build in self.builds) else "good"

    @property
    def headline(self) -> str:
        """The number of builds of each outcome."""
        counts = Counter(build.outcome for build in self.builds)
        text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        if not self.failed:
            return text or "nothing to build"
        return f"{len(self.failed)} of {len(self.builds)} failed ({text})"

    def body(self) -> Iterable[str]:
        """Failures with their reasons, and a table of all builds that were not skipped."""
        for build in self.builds:
            if build.outcome not in ("good", "skipped"):
                yield f"- **{_title_of(build)}**: {build.outcome}. {' '.join(build.reasons)} ({build.place})"
        made = [build for build in self.builds if build.outcome != "skipped"]
        if made:
            header = ("model", "back end", "precision", "verdict", "p50", "engine", "time", "run")
            rows = (
                (
                    Path(build.model).name,
                    build.backend,
                    build.called or build.precision.upper(),
                    build.outcome,
                    "-" if build.p50_ms is None else f"{build.p50_ms:.3f} ms",
                    size(build.engine_bytes) if build.engine_bytes else "-",
                    "reused" if build.reused else f"{build.seconds:.1f} s",
                    f"[{build.run_id[:8]}]({build.url})" if build.url.startswith("http") else build.run_id[:8] or "-",
                )
                for build in made
            )
            yield from ("", markdown_table(header, rows))
        why = Counter(reason for build in self.builds if build.outcome == "skipped" for reason in build.reasons)
        if why:
            yield ""
            yield from (f"- {count} skipped: {reason}" for reason, count in why.items())


def build_list(
    models: str | Path | ModelList,
    config: BuildListConfig = BuildListConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    convert_one: Convert | None = None,
) -> BuildListResult:
    """Build and evaluate the models of a list one after the other; log each build and a summary to runs of their own.

    ``experiment`` is that of the summary (the list's name by default); builds go to their models' experiments.
    ``convert_one`` makes one build; by default the convert op in this process.
    """
    tracker = tracker_or_default(tracker)
    listed = models if isinstance(models, ModelList) else read_model_list(models)
    wanted = [build for build in listed.builds() if config.backends is None or build.backend in config.backends]
    plans = [_plan_build(build, config, tracker) for build in wanted]
    title = f"build list {Path(listed.path).name}"
    # A folder may be watched every minute: a visit that finds nothing new leaves no run.
    if all(isinstance(plan, BuildOutcome) and plan.outcome == "skipped" for plan in plans):
        return BuildListResult(title=title, builds=tuple(plan for plan in plans if isinstance(plan, BuildOutcome)))
    experiment = experiment or Path(listed.path).stem
    with op_run(tracker, experiment, title, kind="build_list", tags=tags) as run:
        outcomes = []
        for build, plan in zip(wanted, plans):
            if not isinstance(plan, BuildOutcome):
                plan = _make_build(build, tracker, convert_one, {**(tags or {}), **plan})
            outcomes.append(plan)
        result = BuildListResult(title=title, builds=tuple(outcomes)).kept_in(run, experiment)
        counts = Counter(build.outcome for build in result.builds)
        by_outcome = {outcome: counts[outcome] for outcome in OUTCOMES}
        run.log_metrics(schema.family("builds", failed=len(result.failed), **by_outcome))
        finish_with(run, result, tracker, artifact=schema.Artifact.BUILD_LIST, page=schema.Artifact.BUILD_LIST_PAGE)
        return result


def _plan_build(build: ListedBuild, config: BuildListConfig, tracker: Tracker) -> BuildOutcome | dict[str, str]:
    """The outcome of a build that need not be made, or the tags to build it with."""
    if build.missing:
        return _outcome_of(build, "error", build.missing)
    if not config.only_new:
        return {}
    if time.time() - Path(build.model).stat().st_mtime < config.settle_seconds:
        return _outcome_of(build, "skipped", "The file was changed just now; it may still be being copied.")
    try:
        environment = engine_backend(build.backend).environment()
    except errors.BackendError as exc:
        return _outcome_of(build, "error", str(exc))
    try:
        model_sha256 = Model.load(build.model).info.sha256
    except errors.InvalidModelError:  # its build will fail, and is found again by the file's bytes
        model_sha256 = sha256_file(build.model)
    convert_config = build.entry.config(build.precision, build.backend)
    # The environment is a part of the key: a new release or driver can choose other tactics, so all is built again.
    key = digest([model_sha256, convert_config.digest, environment.build_digest()])
    failed = 0
    for info in tracker.find(tags={schema.Tag.KIND: "build", schema.Tag.LISTED: key}):
        if info.status == "finished":
            return _outcome_of(build, "skipped", "The tracking store has it.")
        # A run whose process died stays "running", and would keep the model from being built for ever.
        if info.status == "running" and not owner.is_abandoned(info):
            return _outcome_of(build, "skipped", "It is being built.")
        failed += 1
    if failed >= config.attempts:
        return _outcome_of(build, "skipped", f"It failed {failed} times.")
    return {schema.Tag.LISTED: key}


def _make_build(
    build: ListedBuild, tracker: Tracker, convert_one: Convert | None, tags: Mapping[str, str]
) -> BuildOutcome:
    """Make one build. Any error in it is its outcome."""
    start = time.monotonic()
    config, experiment = build.entry.config(build.precision, build.backend), build.entry.experiment
    experiment = experiment or Path(build.model).stem
    key = {name: value for name, value in tags.items() if name == schema.Tag.LISTED}
    before = len(tracker.find(tags=key)) if key else 0
    try:
        if convert_one is None:
            result = convert(build.model, config, tracker=tracker, experiment=experiment, tags=tags)
        else:
            result = convert_one(build.model, config, experiment, tags)
    except Exception as exc:  # a defect of ours or of a library must not stop the other builds either
        known = isinstance(exc, errors.TrtopsError)
        if not known:
            log.exception("%s failed", _title_of(build))
        if key and len(tracker.find(tags=key)) == before:
            # A model that cannot be read leaves no run. Without one, a watched folder would try it again each time.
            with (
                contextlib.suppress(Exception),
                op_run(tracker, experiment, Path(build.model).stem, kind="build", model=build.model, tags=tags),
            ):
                raise
        why = str(exc) if known else f"{type(exc).__name__}: {exc}"
        return _outcome_of(build, "error", why, seconds=time.monotonic() - start)
    latency = result.evaluation.latency
    return _outcome_of(
        build,
        result.verdict,
        *result.reasons,
        failed=result.verdict == "error" or (result.verdict == "bad" and build.entry.policy.bad == "fail"),
        run_id=result.run_id,
        url=result.url,
        called=result.called,
        reused=result.reused_from is not None,
        engine_bytes=result.engine_bytes,
        p50_ms=None if latency is None else latency.p50_ms,
        seconds=time.monotonic() - start,
    )


def _outcome_of(build: ListedBuild, outcome: Outcome, *reasons: str, **values: Any) -> BuildOutcome:
    same = {name: getattr(build, name) for name in ("model", "precision", "backend", "place")}
    return BuildOutcome(outcome=outcome, reasons=reasons, **{"failed": outcome == "error", **same, **values})


def _title_of(build: ListedBuild | BuildOutcome) -> str:
    return f"{Path(build.model).name} {build.precision} {build.backend}"
