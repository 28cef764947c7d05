"""Build every model of a list with the convert op; failing builds do not stop the others."""

import contextlib
import itertools
import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.torch import is_torch_model, model_stem
from trtops.ops.arguments import checked_arguments
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.model_list import ListedBuild, ModelList, read_model_list
from trtops.ops.evaluation.torch_models import exported_model
from trtops.ops.result import OpResult, op_run, tracker_or_default
from trtops.record import Config, Record, digest, setting, sha256_file
from trtops.reports.document import Table
from trtops.spec import BackendName, Precision
from trtops.system.allowed import split_script
from trtops.tables import counted, markdown_table, size
from trtops.tracking import owner, schema
from trtops.tracking.base import Tracker
from trtops.tracking.records import RunInfo
from trtops.verdict import VERDICTS, Verdict

log = logging.getLogger(__name__)

Outcome: TypeAlias = Literal[Verdict, "skipped"]
OUTCOMES: tuple[Outcome, ...] = (*VERDICTS, "skipped")
Convert: TypeAlias = Callable[[str | Model, ConvertConfig, str, Mapping[str, str]], ConvertResult]
"""Makes one build: called with model, config, experiment and tags."""
Exports: TypeAlias = dict[tuple[str, str, BackendName], tuple[Model, ConvertConfig]]
"""PyTorch models of a list that were exported, with their configs."""

_AGAIN_SECONDS = 20 * 3600.0
"""When a broken model is built again although nothing changed: less than a day, so that a nightly visit does so."""

_CHANGES = {
    "model": "the model's bytes", "release": "release {} → {}", "environment": "driver, libraries or system",
}  # fmt: skip
"""The first parts of :attr:`schema.Tag.LISTED`, and how a change of each is reported."""


@dataclass(frozen=True, kw_only=True)
class BuildListConfig(Config):
    """Which builds of a list are made.

    Attributes:
        backends: Only builds for these back ends; all by default.
        only_new: Only builds that the tracking store does not have: of this model's content, with this config, in this
            environment. The outcome of others is that of their last build.
        attempts: With ``only_new``, how often a failed build is repeated at once. Later, and after a bad verdict, it is
            repeated once a day.
        settle_seconds: With ``only_new``, the time since a model file was changed; it may still be being copied.
    """

    backends: tuple[BackendName, ...] | None = None
    only_new: bool = False
    attempts: int = setting(3, least=1)
    settle_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BuildOutcome(Record):
    """The outcome of one build of a list; ``failed`` if it makes the whole list fail.

    An ``unproven`` build does not fail the list, but the list is unproven then. ``transient`` failures are those of the
    machine or the store: the model is neither broken nor verified, and is built again the next time.
    """

    model: str
    precision: Precision
    backend: BackendName
    location: str
    outcome: Outcome
    failed: bool = False
    transient: bool = False
    reasons: tuple[str, ...] = ()
    run_id: str = ""
    url: str = ""
    called: str = ""  # what the engine computes in; empty without one
    reused: bool = False
    engine_bytes: int = 0
    p50_ms: float | None = None
    of_limit: float | None = None  # the largest share of a limit that an error takes; above 1 is bad
    device: str = ""  # empty if nothing could be built
    seconds: float = 0.0

    def of_run(self, info: RunInfo) -> "BuildOutcome":
        """The outcome with id, page, device and numbers of its run."""
        return replace(
            self,
            run_id=info.id,
            url=info.url,
            device=info.fact(schema.Tag.DEVICE),
            p50_ms=info.metrics.get((schema.Metric.LATENCY, "p50_ms")),
            of_limit=info.metrics.get((schema.Metric.ERROR, "of_limit")),
        )


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
        text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        if not self.failed:
            return text or "nothing to build"
        names = ", ".join(dict.fromkeys(model_stem(build.model) for build in self.failed))
        return f"{len(self.failed)} of {len(self.builds)} failed ({text}): {names}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Each build not good, with its reasons."""
        lines = []
        for build in self.builds:
            if build.outcome not in ("good", "skipped"):
                reasons = " ".join(build.reasons)
                lines.append(f"{_title_of(build)}: {build.outcome}. {reasons} ({build.location})")
        return tuple(lines)

    def overview(self) -> Table | None:
        """Return the builds that were not skipped, those that are not good first."""
        builds = sorted(
            (build for build in self.builds if build.outcome != "skipped"), key=lambda build: build.outcome == "good"
        )
        columns = ("model", "precision", "verdict", "p50", "engine", "run")
        rows = [tuple(_cells(build)[column] for column in columns) for build in builds]
        return Table(columns=columns, rows=tuple(rows)) if rows else None

    def body(self) -> Iterable[str]:
        """A table of all builds not skipped, and the reasons of those skipped."""
        rows, skip_reasons = [], Counter[str]()
        for build in self.builds:
            if build.outcome == "skipped":
                skip_reasons.update(build.reasons)
                continue
            cells = _cells(build)
            if build.url.startswith("http"):
                cells["run"] = f"[{cells['run']}]({build.url})"
            rows.append(cells)
        if rows:
            yield markdown_table(tuple(rows[0]), [tuple(cells.values()) for cells in rows])
        if skip_reasons:
            yield ""
            yield from (f"- {count} skipped: {reason}" for reason, count in skip_reasons.items())


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
    exports: Exports = {}
    plans = [_plan_build(build, config, tracker, exports) for build in selected]
    title = f"build list {Path(listed.path).name}"
    experiment = experiment or Path(listed.path).stem
    # A folder may be watched every minute: a visit that builds nothing leaves no run, unless it finds other failures.
    outcomes = [plan for plan in plans if isinstance(plan, BuildOutcome)]
    if config.only_new and len(outcomes) == len(plans):
        result = BuildListResult(title=title, builds=tuple(outcomes))
        visits, host = tracker.find(experiment, tags={schema.Tag.KIND: "build_list"}, limit=100), owner.current().host
        last = next((info for info in visits if owner.host_of(info) == host), None)
        last_headline = "" if last is None else last.tags.get(schema.Tag.HEADLINE, "")  # may be shortened
        still_good = result.verdict == "good" and (last is None or last.verdict == "good")
        if still_good or (last_headline and result.headline.startswith(last_headline)):
            return result
    with op_run(tracker, experiment, title, kind="build_list", tags=tags) as op:
        outcomes = []
        for build, plan in zip(selected, plans):
            if not isinstance(plan, BuildOutcome):
                plan = _make_build(build, tracker, convert_one, tags or {}, plan, exports)
            outcomes.append(plan)
        result = BuildListResult(title=title, builds=tuple(outcomes))
        counts = Counter(build.outcome for build in result.builds)
        by_outcome = {outcome: counts[outcome] for outcome in OUTCOMES}
        op.run.log_metrics(schema.family("builds", failed=len(result.failed), **by_outcome))
        return op.finish(result, artifact=schema.Artifact.BUILD_LIST)


def _plan_build(
    build: ListedBuild, config: BuildListConfig, tracker: Tracker, exports: Exports
) -> BuildOutcome | dict[str, str]:
    """The outcome of an unnecessary build, or the tags of a necessary one; ``exports`` receives its export."""
    convert_config = build.entry.config(build.precision, build.backend)
    options = convert_config.digest
    # On another machine, the same path is another file, and another release would change back and forth.
    named = {schema.Tag.KIND: "build", schema.Tag.LISTED_AS: digest([platform.node(), build.model, options])}
    try:
        if build.missing:
            raise errors.BackendError(build.missing)
        environment = engine_backend(build.backend).environment(convert_config.build)
    except errors.BackendError as exc:
        return _with_history(_outcome_of(build, "error", str(exc)), tracker, named)
    file = Path(split_script(build.model)[0])
    try:
        export_key = _key_of(build)
        if export_key not in exports and is_torch_model(build.model):
            exports[export_key] = exported_model(build.model, convert_config, allow_bad=True)
        model_sha256 = Model.load(exports[export_key][0] if export_key in exports else build.model).info.sha256
    except errors.TrtopsError:  # its build will fail, and is found again by the file's bytes
        model_sha256 = sha256_file(file)
    # The environment is a part of the key: a new release or driver can choose other tactics, so all is built again.
    values = (model_sha256[:32], environment.backend_version, environment.build_digest()[:32], options[:32])
    listed = "; ".join(map(" ".join, zip((*_CHANGES, "options"), values)))
    of_model = {schema.Tag.KIND: "build", schema.Tag.MODEL_SHA256: model_sha256}
    key = {**named, **of_model, schema.Tag.LISTED: listed}
    if not config.only_new:
        return key
    named_runs = tracker.find(tags=named)
    last = next((info for info in named_runs if _verdict_of(info)), None)
    broken = last if last is not None and _verdict_of(last) != "good" else None
    # The same content may be known by another name. A repair of this name is built, so that the store shows it.
    same = [info for info in named_runs if info.fact(schema.Tag.LISTED) == listed]
    same += [] if broken else [info for info in tracker.find(tags=of_model) if info.fact(schema.Tag.LISTED) == listed]
    # Attempts since this name had other content. Those that the machine spoiled do not count.
    latest = itertools.takewhile(
        lambda info: info.fact(schema.Tag.LISTED) == listed and schema.Tag.TRANSIENT not in info.tags, named_runs
    )
    tries = [info for info in latest if time.time() - info.start_time < _AGAIN_SECONDS]
    reason = ""
    if time.time() - file.stat().st_mtime < config.settle_seconds:
        reason = "The file was changed just now; it may still be being copied."
    # A run whose process died stays "running", and would keep the model from being built for ever.
    elif any(info.status == "running" and not owner.is_abandoned(info) for info in same):
        reason = "It is being built."
    elif not broken and (good := next(filter(_verdict_of, same), None)) is not None and good.verdict == "good":
        return _outcome_of(build, "skipped", "The tracking store has it.").of_run(good)
    elif len(tries) >= config.attempts or any(info.status == "finished" for info in tries):
        reason = f"It was tried {counted(len(tries), 'time')}, and is tried again a day after the last time."
        if not broken:
            return _outcome_of(build, "error", "Its process was killed.", reason, transient=True, run_id=tries[0].id)
    if broken and reason:
        failure = broken.tags.get(schema.Tag.ERROR) or broken.tags.get(schema.Tag.HEADLINE, "")
        outcome = _outcome_of(build, _verdict_of(broken) or "error", failure, reason).of_run(broken)
        return _with_history(outcome, tracker, named)
    return _outcome_of(build, "skipped", reason) if reason else key


def _key_of(build: ListedBuild) -> tuple[str, str, BackendName]:
    return build.location, build.model, build.backend


def _make_build(
    build: ListedBuild,
    tracker: Tracker,
    convert_one: Convert | None,
    tags: Mapping[str, str],
    build_tags: Mapping[str, str],
    exports: Exports,
) -> BuildOutcome:
    """Make one build. Any error in it is its outcome; its runs are found by their ``build_tags`` tags."""
    start = time.monotonic()
    config, experiment = build.entry.config(build.precision, build.backend), build.entry.experiment
    experiment, tags = experiment or model_stem(build.model), {**tags, **build_tags}
    build_tags = {name: build_tags[name] for name in (schema.Tag.KIND, schema.Tag.LISTED_AS)}
    before = list[RunInfo]()
    with contextlib.suppress(errors.TrackingError):  # the build is kept on disk until the store is back
        before = tracker.find(tags=build_tags, limit=1)
    try:
        model: str | Model = build.model
        if _key_of(build) in exports:  # compared with its module once, for all precisions
            model, exported_config = exports[_key_of(build)]
            check = replace(config.check, data=exported_config.check.data)
            config = replace(config, check=check, calibration_data=exported_config.calibration_data)
        if convert_one is None:
            result = convert(model, config, tracker=tracker, experiment=experiment, tags=tags)
        else:
            result = convert_one(model, config, experiment, tags)
    except Exception as exc:  # a defect of ours or of a library must not stop the other builds either
        is_expected = isinstance(exc, errors.TrtopsError)
        if not is_expected:
            log.exception("%s failed", _title_of(build))
        reason, transient = str(exc) if is_expected else f"{type(exc).__name__}: {exc}", errors.is_transient(exc)
        outcome = _outcome_of(build, "error", reason, transient=transient, seconds=time.monotonic() - start)
        with contextlib.suppress(errors.TrackingError):
            if not transient and tracker.find(tags=build_tags, limit=1) == before:
                # A model that cannot be read leaves no run. Without one, a watched folder would try it again each time.
                with (
                    contextlib.suppress(Exception),
                    op_run(tracker, experiment, model_stem(build.model), kind="build", model=build.model, tags=tags),
                ):
                    raise
            for info in tracker.find(tags=build_tags, limit=1):
                if info not in before:
                    outcome = outcome.of_run(info)
        return _with_history(outcome, tracker, build_tags)
    outcome = _outcome_of(
        build,
        result.verdict,
        *result.reasons,
        run_id=result.run_id,
        url=result.url,
        called=result.called,
        reused=result.reused_from is not None,
        engine_bytes=result.engine_bytes,
        seconds=time.monotonic() - start,
    )
    with contextlib.suppress(errors.TrackingError):  # the run may be in the spool
        outcome = outcome.of_run(tracker.info(result.run_id))
    return outcome if result.verdict == "good" else _with_history(outcome, tracker, build_tags)


def _cells(build: BuildOutcome) -> dict[str, str]:
    """The cells of a build by their columns."""
    return {
        "model": Path(build.model).name,
        "back end": build.backend,
        "precision": build.called or build.precision.upper(),
        "verdict": build.outcome,
        "p50": "-" if build.p50_ms is None else f"{build.p50_ms:.3f} ms",
        "engine": size(build.engine_bytes) if build.engine_bytes else "-",
        "time": "reused" if build.reused else f"{build.seconds:.1f} s",
        "run": build.run_id[:8] or "-",
    }


def _verdict_of(info: RunInfo) -> Verdict | None:
    """What a run says of its model; None if it says nothing, since it was killed or failed for a transient reason."""
    return None if schema.Tag.TRANSIENT in info.tags else info.verdict


def _with_history(outcome: BuildOutcome, tracker: Tracker, tags: Mapping[str, str]) -> BuildOutcome:
    """Add the start of a broken build's failures, its last good run, and the changes, from all runs of its name."""
    build_runs: list[RunInfo] = []
    with contextlib.suppress(errors.TrackingError):
        build_runs = tracker.find(tags=tags)
    runs = [info for info in build_runs if _verdict_of(info)]
    broken = [*itertools.takewhile(lambda info: _verdict_of(info) != "good", runs)]
    good = next(iter(runs[len(broken) :]), None)
    lines = [f"Broken since {_moment(broken[-1])}."] if broken else []
    lines.append(
        "No good run of it is known here." if good is None else f"Last good: run {good.id[:8]} of {_moment(good)}."
    )
    if broken and good is not None:
        first = broken[-1]
        old, new = (dict(p.split(" ", 1) for p in info.fact(schema.Tag.LISTED).split("; ")) for info in (good, first))
        changes = [text.format(old[name], new[name]) for name, text in _CHANGES.items() if old[name] != new[name]]
        if first.tags.get(schema.Tag.ENGINE_SHA256) not in (None, good.tags.get(schema.Tag.ENGINE_SHA256)):
            changes.append("the engine")
        lines.append(f"Changed in between: {', '.join(changes) or 'nothing that is recorded'}.")
    return replace(outcome, transient=outcome.transient and not broken, reasons=(*outcome.reasons, *lines))


def _outcome_of(build: ListedBuild, outcome: Outcome, *reasons: str, **values: Any) -> BuildOutcome:
    same = {name: getattr(build, name) for name in ("model", "precision", "backend", "location")}
    failed = outcome == "error" or (outcome == "bad" and build.entry.policy.bad == "fail")
    return BuildOutcome(outcome=outcome, reasons=tuple(filter(None, reasons)), failed=failed, **same, **values)


def _title_of(build: ListedBuild | BuildOutcome) -> str:
    return f"{Path(build.model).name} {build.precision} {build.backend}"


def _moment(info: RunInfo) -> str:
    return f"{datetime.fromtimestamp(info.start_time, timezone.utc):%Y-%m-%d %H:%M} UTC"
