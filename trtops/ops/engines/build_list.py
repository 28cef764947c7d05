"""Build every model of a list with the convert op; failing builds do not stop the others."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trtops import errors
from trtops.ops.arguments import checked_arguments
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.model_list import ListedBuild, ModelList, read_model_list
from trtops.ops.result import OpResult, op_run, tracker_or_default
from trtops.record import Config, Record
from trtops.reports.document import Table
from trtops.spec import BackendName, Precision
from trtops.tables import markdown_table, size
from trtops.tracking import schema
from trtops.tracking.base import Tracker
from trtops.tracking.records import RunInfo
from trtops.verdict import VERDICTS, Verdict

log = logging.getLogger(__name__)

Convert: TypeAlias = Callable[[str, ConvertConfig, str, Mapping[str, str]], ConvertResult]
"""Makes one build: called with model, config, experiment and tags."""


@dataclass(frozen=True, kw_only=True)
class BuildListConfig(Config):
    """Which builds of a list are made.

    Attributes:
        backends: Only builds for these back ends; all by default.
    """

    backends: tuple[BackendName, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class BuildOutcome(Record):
    """The outcome of one build of a list; ``failed`` if it makes the whole list fail.

    An ``unproven`` build does not fail the list, but the list is unproven then. ``transient`` failures are those of the
    machine or the store: the model is neither broken nor verified.
    """

    model: str
    precision: Precision
    backend: BackendName
    location: str
    outcome: Verdict
    failed: bool = False
    transient: bool = False
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
        """The failed builds of the list."""
        return tuple(build for build in self.builds if build.failed)

    @property
    def verdict(self) -> Verdict:
        """``bad`` if a build failed, ``error`` if for transient reasons only, ``unproven`` if one is, else ``good``."""
        if self.failed:
            return "error" if all(build.transient for build in self.failed) else "bad"
        return "unproven" if any(build.outcome == "unproven" for build in self.builds) else "good"

    @property
    def headline(self) -> str:
        """The number of builds of each outcome."""
        counts = Counter(build.outcome for build in self.builds)
        text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in VERDICTS if counts[outcome])
        if not self.failed:
            return text or "nothing to build"
        names = ", ".join(dict.fromkeys(Path(build.model).stem for build in self.failed))
        return f"{len(self.failed)} of {len(self.builds)} failed ({text}): {names}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Each build not good, with its reasons."""
        lines = []
        for build in self.builds:
            if build.outcome != "good":
                lines.append(f"{_title_of(build)}: {build.outcome}. {' '.join(build.reasons)} ({build.location})")
        return tuple(lines)

    def overview(self) -> Table | None:
        """Return the builds, those that are not good first."""
        rows = []
        for build in sorted(self.builds, key=lambda build: build.outcome == "good"):
            precision = build.called or build.precision.upper()
            rows.append((Path(build.model).name, precision, *_cells(build), build.run_id[:8] or "-"))
        columns = ("model", "precision", "verdict", "p50", "engine", "run")
        return Table(columns=columns, rows=tuple(rows)) if rows else None

    def body(self) -> Iterable[str]:
        """A table of all builds."""
        rows = []
        for build in self.builds:
            run, precision = build.run_id[:8] or "-", build.called or build.precision.upper()
            seconds = "reused" if build.reused else f"{build.seconds:.1f} s"
            link = f"[{run}]({build.url})" if build.url.startswith("http") else run
            rows.append((Path(build.model).name, build.backend, precision, *_cells(build), seconds, link))
        if rows:
            yield markdown_table(("model", "back end", "precision", "verdict", "p50", "engine", "time", "run"), rows)


def _cells(build: BuildOutcome) -> tuple[str, ...]:
    """Verdict, latency and size of a build."""
    p50 = "-" if build.p50_ms is None else f"{build.p50_ms:.3f} ms"
    return build.outcome, p50, size(build.engine_bytes) if build.engine_bytes else "-"


@checked_arguments
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
    selected = [build for build in listed.builds() if config.backends is None or build.backend in config.backends]
    title = f"build list {Path(listed.path).name}"
    with op_run(tracker, experiment or Path(listed.path).stem, title, kind="build_list", tags=tags) as op:
        outcomes = []
        for number, build in enumerate(selected, start=1):
            build_tags = {**(tags or {}), schema.Tag.LISTED: f"{op.run.id} {number}"}
            outcomes.append(_make_build(build, tracker, convert_one, build_tags))
        result = BuildListResult(title=title, builds=tuple(outcomes))
        counts = Counter(build.outcome for build in result.builds)
        by_outcome = {outcome: counts[outcome] for outcome in VERDICTS}
        op.run.log_metrics(schema.family("builds", failed=len(result.failed), **by_outcome))
        return op.finish(result, artifact=schema.Artifact.BUILD_LIST)


def _make_build(
    build: ListedBuild, tracker: Tracker, convert_one: Convert | None, tags: Mapping[str, str]
) -> BuildOutcome:
    """Make one build. Any error in it is its outcome."""
    if build.missing:
        return _outcome_of(build, "error", build.missing)
    start = time.monotonic()
    config = build.entry.config(build.precision, build.backend)
    experiment = build.entry.experiment or Path(build.model).stem
    try:
        if convert_one is None:
            result = convert(build.model, config, tracker=tracker, experiment=experiment, tags=tags)
        else:
            result = convert_one(build.model, config, experiment, tags)
    except Exception as exc:  # a defect of ours or of a library must not stop the other builds either
        is_expected = isinstance(exc, errors.TrtopsError)
        if not is_expected:
            log.exception("%s failed", _title_of(build))
        reason = str(exc) if is_expected else f"{type(exc).__name__}: {exc}"
        failed_runs: Sequence[RunInfo] = ()
        with contextlib.suppress(errors.TrackingError):
            failed_runs = tracker.find(tags={schema.Tag.LISTED: tags[schema.Tag.LISTED]}, limit=1)
        return _outcome_of(
            build,
            "error",
            reason,
            transient=errors.is_transient(exc),
            run_id=failed_runs[0].id if failed_runs else "",
            url=failed_runs[0].url if failed_runs else "",
            seconds=time.monotonic() - start,
        )
    latency = result.evaluation.latency
    return _outcome_of(
        build,
        result.verdict,
        *result.reasons,
        run_id=result.run_id,
        url=result.url,
        called=result.called,
        reused=result.reused_from is not None,
        engine_bytes=result.engine_bytes,
        p50_ms=None if latency is None else latency.p50_ms,
        seconds=time.monotonic() - start,
    )


def _outcome_of(build: ListedBuild, outcome: Verdict, *reasons: str, **values: Any) -> BuildOutcome:
    same = {name: getattr(build, name) for name in ("model", "precision", "backend", "location")}
    failed = outcome == "error" or (outcome == "bad" and build.entry.policy.bad == "fail")
    return BuildOutcome(outcome=outcome, reasons=tuple(filter(None, reasons)), failed=failed, **same, **values)


def _title_of(build: ListedBuild | BuildOutcome) -> str:
    return f"{Path(build.model).name} {build.precision} {build.backend}"
