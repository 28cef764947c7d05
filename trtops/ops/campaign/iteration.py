"""One iteration of a campaign: build in a child process, evaluate, and log a complete run, whatever the build does."""

import contextlib
import functools
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, get_args

from trtops import errors
from trtops.backend.base import Build, Caches, Engine
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.report import Tolerances
from trtops.comparator.results import RunResults
from trtops.json import save_json
from trtops.next_step import NextStep, arguments_of
from trtops.ops.campaign.config import Campaign, TacticRequest
from trtops.ops.devices import warm_backend
from trtops.ops.engines.request import CommandData, read_cache_file
from trtops.ops.evaluation.check import CheckConfig, Evaluation, evaluate, log_evaluation, with_power
from trtops.ops.evaluation.data import Feeds
from trtops.ops.evaluation.precision_check import PrecisionCheck, check_precision, log_kernels
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.registry.deny import deny_list
from trtops.ops.result import op_run, run_name
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.submodel import CheckOutcome
from trtops.record import Record, digest, sha256
from trtops.reports.document import Document
from trtops.reports.present import present
from trtops.spec import BuildConfig
from trtops.system.processes import temporary_prefix
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import MetricName, Run, RunInfo, StoredRun, Tracker, Verdict, incomplete
from trtops.verdict import PASSED, BadIn

EngineEvaluator: TypeAlias = Callable[[Engine], bool | str | CheckOutcome]
"""A Python callable as check: True or ``pass`` for a good engine, False or ``fail`` for a bad one, ``error``, or an
outcome."""

_VERDICTS: dict[str, Verdict] = {"pass": "good", "fail": "bad", "error": "error"}
# Errors that prevent all builds, and so end a campaign.
_NOT_OF_THE_BUILD = (errors.BackendUnavailableError, errors.UnsupportedFeatureError)
_LOST = "Its process ended in the middle of this iteration, which was handed out again."


@dataclass(frozen=True, kw_only=True)
class CampaignBuild(Record):
    """One build of a campaign: an iteration, a mixture, or a build of a proof."""

    number: int = 0  # of an iteration
    run_id: str
    verdict: Verdict  # ``error`` if the build or a first inference failed, crashed or hung
    reasons: tuple[str, ...] = ()
    tactics: TacticRecord | None = None


def iterate(
    campaign: Campaign, number: int, *, tracker: Tracker, evaluate_engine: EngineEvaluator | None = None
) -> CampaignBuild:
    """Run an iteration of a campaign, in any thread, process or machine with access to store and model."""
    requested = TacticRequest(build=campaign.config.build_of(number, campaign.draws))
    builder = CampaignBuilder(campaign, tracker, evaluate_engine)
    tags = {schema.Tag.ITERATION: str(number)}
    built = builder.build(requested, f"iteration {number}", parent=campaign.run_id, tags=tags)
    return replace(built, number=number)


def iterate_once(campaign: Campaign, number: int, *, tracker: Tracker) -> CampaignBuild:
    """Run an iteration unless it is in the store already, as when a cluster repeats it after losing a worker.

    Runs that a dead process left half done are closed. Those of another machine are closed there (``trtops store
    reap``).
    """
    tags = {schema.Tag.KIND: "iteration", schema.Tag.ITERATION: str(number)}
    for info in tracker.find(campaign.experiment, parent=campaign.run_id, tags=tags):
        info = campaigns.closed_if_abandoned(tracker, info, _LOST)
        if info.status == "finished" and info.verdict is not None:
            return CampaignBuild(  # its reasons are in the run's report
                number=number,
                run_id=info.id,
                verdict=info.verdict,
                tactics=campaigns.load_record(tracker.load(info.id)),
            )
    return iterate(campaign, number, tracker=tracker)


@dataclass(frozen=True)
class EvaluationCase:
    """What the builds of a campaign are compared with, as a child process needs it."""

    model: Model
    check: CheckConfig
    build: BuildConfig
    golden: str  # path of the golden outputs
    calibration: bytes | None = None

    def feeds(self) -> Feeds:
        """Open the check's data."""
        return self.check.open_for(self.model, profiles=self.build.profiles)


@dataclass(frozen=True)
class CampaignBuilder:
    """Makes the builds of a campaign; ``evaluate`` is the Python callable that evaluates engines, if one does."""

    campaign: Campaign
    tracker: Tracker
    evaluate: EngineEvaluator | None = None

    def build(self, requested: TacticRequest, name: str, *, parent: str, tags: Mapping[str, str]) -> CampaignBuild:
        """Build, evaluate, and log a complete run of this name, whatever the build does."""
        experiment, tags = self.campaign.experiment, {**dict(self.campaign.tags), **tags}
        with op_run(self.tracker, experiment, name, kind="iteration", tags=tags, parent=parent) as op:
            return self._build_in(op.run, requested, name)

    def bad_by_default_limits(self, bad: StoredRun) -> bool:
        """Whether the model's own limits find a build bad as well, not only limits or a check of the campaign's own."""
        check = self.campaign.config.check
        if self.evaluate is not None or self.campaign.config.command is not None:
            return False
        if check.tolerances is None or tested_aspect(bad.info) == "precision":
            return True
        with contextlib.suppress(errors.TrtopsError):  # such as a number that was not recorded
            build = builds.load_build(bad, engine=False)
            report = Evaluation.from_json(bad.read_bytes(schema.Artifact.ACCURACY)).report
            with self._warm_backend() as backend:
                limits = backend.worker.run(default_limits, self._case(build), timeout=backend.timeout)
            return not report.evaluate(limits)
        return False

    def _case(self, build: Build) -> EvaluationCase:
        golden, model = str(_golden_file(self.tracker, self.campaign)), _load_model(self.campaign.model)
        check, config = self.campaign.config.check, build.spec.config
        return EvaluationCase(model, check, config, golden, build.calibration_cache)

    def _warm_backend(self) -> AbstractContextManager[IsolatedBackend]:
        place = self.campaign.config.place
        return warm_backend(place.backend, place.devices, place.timeout_seconds)

    def _build_in(self, run: Run, requested: TacticRequest, name: str) -> CampaignBuild:
        campaign, model = self.campaign, _load_model(self.campaign.model)
        # The file may have changed while the campaign was interrupted, or between two iterations.
        if model.info.sha256 != campaign.model_sha256:
            raise errors.InvalidModelError(
                f"{campaign.model} has digest {model.info.sha256[:12]}; the campaign began with "
                f"{campaign.model_sha256[:12]}. Restore it, or begin another campaign."
            )
        build: Build | None
        with self._warm_backend() as backend:
            try:
                build = self._build_engine(backend, model, requested, run)
                verdict, reasons, bad_in = self._evaluate_build(backend, model, build, run)
            except errors.BackendError as exc:
                if isinstance(exc, _NOT_OF_THE_BUILD):
                    raise
                # An error of the build is a verdict, with the last output of the child.
                text = f"{type(exc).__name__}: {exc}"
                run.log_text(text, schema.Artifact.BUILD_LOG)
                run.set_tags({schema.Tag.ERROR: text[: schema.MAX_TAG]})
                build, verdict, reasons, bad_in = None, "error", (text,), ()
        differences = () if build is None else (build.tactics.label,)
        run.rename(run_name(Path(campaign.model).stem, name, *differences, verdict=verdict))
        if bad_in:
            run.set_tags({schema.Tag.BAD_IN: " ".join(bad_in)})
        precision = requested.build.precision.upper() if build is None else check_precision(build).name
        title = f"build {Path(campaign.model).name} in {precision}"
        options = arguments_of(campaign.config.build) | arguments_of(campaign.config.check)
        arguments = {"model": campaign.model, "experiment": campaign.experiment}
        next_steps = {
            "good": NextStep("runs promote", {"run": run.id}),
            "bad": NextStep.after(options, "debug accuracy", arguments),
        }
        step = str(next_steps.get(verdict, ""))
        document = Document(title=title, verdict=verdict, headline=verdict, reasons=reasons, next=step)
        present(run, self.tracker, document)
        run.finish(verdict)
        tactics = None if build is None else build.tactics
        return CampaignBuild(run_id=run.id, verdict=verdict, reasons=reasons, tactics=tactics)

    def _build_engine(self, backend: IsolatedBackend, model: Model, requested: TacticRequest, run: Run) -> Build:
        campaign, config = self.campaign, self.campaign.config
        environment = backend.environment(requested.build)
        run.log_params({schema.DEVICE_STATE.strip("."): backend.device_state(requested.build)})
        calibrates = requested.build.calibrates
        ranges = read_cache_file(config.calibration_cache, "calibration_cache") if calibrates else None
        if requested.replay is None:
            denied = campaign.denied
            if config.use_deny_list:
                listed = deny_list(self.tracker, environment)
                denied = DenyList(entries=(*listed.entries, *denied.entries))
            caches = Caches(calibration=ranges, denied=denied)
        else:  # a mixture or a proof has to make denied choices, to show what they do
            timing = None
            if requested.replayed_run:
                timing = self.tracker.load(requested.replayed_run).get(schema.Artifact.TIMING_CACHE)
            caches = Caches.replaying(requested.replay, timing, calibration=ranges)
        if campaign.golden_sha256 is not None:
            run.log_params({schema.AS_PARAM[schema.Tag.GOLDEN_SHA256]: campaign.golden_sha256})
        data = CommandData(model, config.check, config.calibration_data)
        build_request, spec = data.request(requested.build, environment, caches)
        builds.log_spec(run, spec, environment)  # before the build, which may crash
        build = backend.build(build_request)
        builds.log_build(run, build, model.info, backend.engine_suffix)
        return build

    def _evaluate_build(
        self, backend: IsolatedBackend, model: Model, build: Build, run: Run
    ) -> tuple[Verdict, tuple[str, ...], tuple[BadIn, ...]]:
        """The verdict of a build, the reasons for it, and its bad aspects."""
        config = self.campaign.config
        precision_check = check_precision(build, config.check.min_precision_share)
        log_kernels(run, build)
        if self.evaluate is None and config.command is None:
            # In the child, since an engine that crashes when it runs must not end the campaign.
            arguments = (build.engine, self._case(build), precision_check)
            evaluation, pictures = backend.worker.run(evaluate_in_child, *arguments, timeout=backend.timeout)
            log_evaluation(run, evaluation.leaving_out(build.denied))
            for path, png in pictures:
                run.log_bytes(png, f"{schema.Artifact.ACCURACY_PLOTS}{path}")
            return evaluation.verdict, evaluation.reasons, evaluation.bad_in
        if self.evaluate is not None:
            outcome = CheckOutcome.of(self.evaluate(build.engine))
        else:
            assert config.command is not None
            outcome = self._check_by_command(config.command, build.engine, backend.engine_suffix, model)
        # A check from outside does not see the precision that an engine computes in. Nothing is emulated for it: where
        # that would count, the verdict stays the check's.
        if precision_check.share is not None:
            run.log_metrics({schema.Metric.KERNELS_LOWERED: precision_check.share})
        verdict, reasons = _VERDICTS[outcome.verdict], (outcome.detail,) if outcome.detail else ()
        if verdict != "good" or precision_check.lowered or precision_check.emulation_counts:
            return verdict, reasons, ("outputs",) if verdict == "bad" else ()
        return "bad", (*reasons, precision_check.reason()), ("precision",)

    def _check_by_command(self, check: CommandCheck, engine: Engine, suffix: str, model: Model) -> CheckOutcome:
        """Evaluate an engine by an external command."""
        config = self.campaign.config
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("check")) as folder:
            file = Path(folder, f"engine{suffix}") if check.artifact is None else Path(check.artifact)
            paths = {"{model}": file, "{engine}": file}
            if check.wants("{golden}"):
                paths["{golden}"] = Path(folder, "golden.json")
                save_json(RunResults.load(_golden_file(self.tracker, self.campaign)), paths["{golden}"])
            if check.wants("{inputs}"):
                paths["{inputs}"] = Path(folder, "inputs.json")
                feeds = config.check.open_for(model, profiles=config.build.profiles)
                save_json(list(map(dict, feeds)), paths["{inputs}"])
            # The name of an artifact is the same for every build, so a later command must not find this build's.
            file.write_bytes(engine.plan)
            try:
                return check.run(paths)
            finally:
                if check.artifact is not None:
                    file.unlink(missing_ok=True)


@functools.lru_cache(maxsize=4)
def _load_model(path: str) -> Model:
    return Model.load(path)


def evaluate_in_child(
    engine: Engine, case: EvaluationCase, precision_check: PrecisionCheck
) -> tuple[Evaluation, Sequence[tuple[str, bytes]]]:
    """Load an engine, run it on the check's data and compare; and draw the errors, if the config requests it."""
    feeds, check = case.feeds(), case.check
    right = _right_model(case, feeds)
    with engine_backend(engine.backend).runner(engine) as runner:
        expected = _load_golden(case.golden)
        evaluation, outputs = evaluate(runner, expected, feeds, check, right)
    emulated = None if precision_check.low_precision is None else right.emulation(check.tolerances)
    evaluation = replace(evaluation, computed=precision_check, emulated=emulated)
    evaluation = with_power(evaluation, expected, check, right.tolerances(check.tolerances))
    if check.plots == "never" or (check.plots == "bad" and evaluation.verdict in PASSED):
        return evaluation, ()
    from trtops.comparator.plot import error_figures  # imports matplotlib

    return evaluation, list(error_figures(outputs, expected))


def default_limits(case: EvaluationCase) -> Tolerances:
    """The limits from the model's own noise, for engines without explicit limits."""
    return _right_model(case, case.feeds()).tolerances(None)


_right: dict[str, RightModel] = {}


def _right_model(case: EvaluationCase, feeds: Feeds) -> RightModel:
    """The right model, rounded once for all builds of a campaign to give them the same limits."""
    model, build = case.model, case.build
    # Everything that decides it. The calibration cache is not part of it: builds of a campaign share its data.
    chosen = (build.precision, build.backend, list(build.keep))
    key = digest([model.info.sha256, *chosen, case.check.to_dict(), case.golden])
    if key not in _right:
        _right.clear()  # a warm child may serve campaigns of many models, one after the other
        _right[key] = RightModel(
            model=model,
            build=build,
            feeds=feeds,
            golden=_load_golden(case.golden),
            golden_given=case.check.golden is not None,
            calibration=case.calibration,
        )
    return _right[key]


@functools.lru_cache(maxsize=1)  # a warm child evaluates the builds of one campaign, all by the same outputs
def _load_golden(path: str) -> RunResults:
    return RunResults.load(path)


_fetching = threading.Lock()


@functools.cache
def _golden_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=temporary_prefix("golden"))


def _golden_file(tracker: Tracker, campaign: Campaign) -> Path:
    """A local file with a campaign's golden outputs, fetched once per process."""
    golden_sha256 = campaign.golden_sha256
    if golden_sha256 is None:
        raise incomplete(campaign.run_id, "it has no golden outputs")
    with _fetching:  # or each of a campaign's threads would fetch them
        file = Path(_golden_folder().name, f"{golden_sha256}.npz")
        if not file.exists():
            data = tracker.peek(campaign.run_id, schema.Artifact.GOLDEN)
            if data is None:
                raise incomplete(campaign.run_id, "its golden outputs are gone")
            if sha256(data) != golden_sha256:
                digests = f"{sha256(data)[:12]}, expected {golden_sha256[:12]}"
                raise incomplete(campaign.run_id, f"its golden outputs have digest {digests}")
            file.write_bytes(data)
    return file


def keep_golden(file: Path, digest: str) -> None:
    """Copy golden outputs to the folder read by the iterations of this process."""
    # The store may be away when the first iteration needs them.
    with _fetching:
        shutil.copyfile(file, Path(_golden_folder().name, f"{digest}.npz"))


def tested_aspect(bad: RunInfo) -> BadIn | None:
    """The aspect to search for culprits: the outputs of a bad build, if they are bad, else its precision."""
    named = bad.tags.get(schema.Tag.BAD_IN, "").split()
    return next((aspect for aspect in get_args(BadIn) if aspect in named), None)


def verdict_in(aspect: BadIn | None, info: RunInfo) -> Verdict | None:
    """A build's verdict in one aspect: good if bad in another one only, and the same for unproven."""
    # An engine that computes in FP32 throughout, and is bad for that, shows that right outputs are possible.
    named = info.tags.get(schema.Tag.BAD_IN, "").split()
    is_good = info.verdict in PASSED or (named and aspect is not None and aspect not in named)
    return "good" if is_good else info.verdict


def errors_of(info: RunInfo) -> dict[MetricName, float]:
    """All errors of an evaluated build, sorted by their names: of each output, and the worst of all outputs."""
    return {name: value for name, value in sorted(info.metrics.items()) if name[0] == schema.Metric.ERROR}
