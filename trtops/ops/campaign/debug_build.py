"""Debug build: build one model repeatedly, evaluate each build, and find the tactic behind the bad ones.

A campaign is a parent run with a child run per iteration. It can be killed at any moment and resumed: an iteration
counts once its run is complete, one that was cut short is marked and retried with the same seed, and none is built
twice.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from trtops import errors
from trtops.backend.base import Caches
from trtops.backend.onnx.model import Model
from trtops.json import save_json
from trtops.next_step import NextStep, arguments_of
from trtops.ops.arguments import checked_arguments
from trtops.ops.campaign.bisect import bisect
from trtops.ops.campaign.bisect_result import BisectConfig, BisectResult, Unit
from trtops.ops.campaign.bisection_planner import Planner
from trtops.ops.campaign.config import Campaign, DebugBuildConfig
from trtops.ops.campaign.diff_tactics import diff_body, log_diff
from trtops.ops.campaign.iteration import CampaignBuild, EngineEvaluator, iterate, keep_golden
from trtops.ops.campaign.open_campaign import stored_config
from trtops.ops.devices import warm_backend
from trtops.ops.engines.convert import log_model
from trtops.ops.engines.request import check_names
from trtops.ops.evaluation.data import check_source, golden_outputs
from trtops.ops.result import LONGEST_NAME, OpResult, OpRun, run_step, tracker_or_default
from trtops.record import sha256
from trtops.system.activity import mark_op
from trtops.system.allowed import check_command
from trtops.system.locks import held
from trtops.system.processes import temporary_prefix
from trtops.system.worker import kept_workers
from trtops.tables import counted
from trtops.tactics.diff import diff
from trtops.tactics.findings import TacticDiff
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import Run, RunInfo, Tracker, Verdict, ended_if_whole, run_id_of
from trtops.tracking.builds import log_materials
from trtops.verdict import PASSED

_ALWAYS_DIFFED = 100  # builds up to which the diff is updated after each; later in steps of 2 %


@dataclass(frozen=True, kw_only=True)
class CampaignProgress:
    """The state of a campaign: builds so far, those of earlier processes included, and mixtures in addition.

    ``last`` is the iteration that has just finished, None at the start; ``diff`` is that of the builds so far, in a
    campaign that runs until it is decided, else None.
    """

    done: int
    limit: int
    good: int
    bad: int
    error: int
    unproven: int = 0
    mixtures: int = 0
    last: CampaignBuild | None = None
    diff: TacticDiff | None = None


@dataclass(frozen=True, kw_only=True)
class DebugBuildResult(OpResult):
    """The result of a campaign."""

    title: str = "debug build"
    verdict: Verdict  # ``bad`` if a build was, else ``unproven`` if one was; ``error`` if none could be evaluated
    iterations: int
    good: int
    bad: int
    errors: int  # number of builds that crashed, hung or failed
    unproven: int = 0  # number of builds that showed no deviation on data that proves nothing
    drawn: int = 0  # number of builds with tactics drawn at random, in a campaign that starts with timed ones
    interrupted: tuple[str, ...] = ()  # runs of iterations that were cut short and retried
    bisections: tuple[BisectResult, ...] = ()  # results of mixing good and bad builds, if the campaign did
    confirmed: tuple[str, ...] = ()  # the culprits that these confirm, in words
    options: Mapping[str, Any] = field(default_factory=dict)  # of the config that are not the default
    diff: TacticDiff

    @property
    def mixtures(self) -> int:
        """Number of mixtures of a good and a bad build."""
        return sum(len(result.trials) for result in self.bisections)

    @property
    def headline(self) -> str:
        """The conclusion of the bisections, or else of the diff."""
        if self.confirmed or not self.bisections:
            return "confirmed" if self.confirmed else self.diff.conclusion
        outcomes = [r.outcome for r in self.bisections if r.outcome not in ("confirmed", "sufficient")]
        return outcomes[-1] if outcomes else "undecided"

    @property
    def next_step(self) -> NextStep | None:
        """Prove a culprit, or mix builds if more are needed; if all are bad, vary the tactics, or else triage."""
        if self.run_id and self.headline == "confirmed":
            return NextStep("debug prove", {"run": self.run_id})
        if self.run_id and self.diff.conclusion in ("narrowed down", "not enough runs"):
            return NextStep("debug bisect", {"run": self.run_id})
        if self.run_id and self.subject and self.diff.conclusion == "no good builds":
            options = {"model": self.subject, **self.options}
            if not (self.drawn or self.options.get("random_tactics")):
                return NextStep("debug build", {**options, "random_tactics": True, "experiment": self.experiment})
            return NextStep.after(options, "triage", {"model": self.subject, "experiment": self.experiment})
        return super().next_step

    @property
    def because(self) -> tuple[str, ...]:
        """The culprits, or how the last mixtures or the diff ended."""
        if self.confirmed:
            return self.confirmed
        return (self.bisections[-1].summary if self.bisections else self.diff.summary,)

    @property
    def figures(self) -> str:
        """The number of builds of each kind."""
        mixed = f", and {counted(self.mixtures, 'mixture')} of a good and a bad one" if self.bisections else ""
        unproven = f", {self.unproven} unproven (they count as good here)" if self.unproven else ""
        outcomes = f"{self.good} good, {self.bad} bad, {self.errors} crashed or hung{unproven}"
        return f"{counted(self.iterations, 'build')}: {outcomes}{mixed}"

    def body(self) -> Iterable[str]:
        """The number of builds of each kind, the culprits, every bisection, and the diff's page."""
        yield from (f"{self.figures}.", "")
        if self.drawn:
            yield from (f"Tactics of {self.drawn} were drawn at random; timing may never choose them.", "")
        for text in self.confirmed:
            yield f"**Culprit**: {text}"
        if self.confirmed:
            yield ""
        for result in self.bisections:
            yield f"- Mixtures of `{result.good_run[:8]}` and `{result.bad_run[:8]}`: {result.summary}"
        if self.confirmed and self.diff.conclusion == "not enough runs":
            return  # that is what the mixtures are for
        if self.bisections:
            yield from ("", "## Without the mixtures", "")
        yield from diff_body(self.diff)


Submit: TypeAlias = Callable[[Campaign, int], "Future[CampaignBuild]"]
"""Starts an iteration somewhere, by :func:`trtops.ops.campaign.iteration.iterate`, and may return before it is done."""


@checked_arguments
@kept_workers()
def debug_build(
    model: str | Path | Model | None = None,
    config: DebugBuildConfig | None = None,
    *,
    tracker: Tracker | None = None,
    resume: str | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    evaluate: EngineEvaluator | None = None,
    submit: Submit | None = None,
    progress: Callable[[CampaignProgress], None] | None = None,
    allow_scripts: bool = False,
) -> DebugBuildResult:
    """Build a model until enough is known about its bad builds.

    Args:
        model: The ONNX file or PyTorch model; not needed to resume a campaign.
        config: The campaign; by default FP32 on ONNX Runtime, compared with the model itself, until it is decided.
        tracker: The tracking store.
        resume: The run of a campaign to resume. Its own config holds unless another is given, which may differ in when
            to stop and in what runs in parallel, but not in what decides a build or its verdict.
        experiment: Experiment to log to (default: the model file's name without its ending).
        tags: Further tags of all runs.
        evaluate: A Python callable that evaluates engines instead of the config's check.
        submit: Where iterations run (default: one after the other in this thread).
        progress: Called after every iteration, and once at the start.
        allow_scripts: Run scripts and commands that the resumed campaign names; anyone with write access to the store
            can change them. Those of a given config need no permission.

    Raises ConfigError if the config contradicts itself, or that of the campaign to resume. Raises LogError if another
    process is working on the campaign. Raises TrtopsError for errors that prevent all builds; an error of one build is
    a verdict.

    >>> check = trtops.CheckConfig(data="feed.npz")
    >>> campaign = trtops.debug_build("model.onnx", trtops.DebugBuildConfig(check=check, until=2))
    >>> campaign.good, campaign.bad
    (2, 0)
    """
    tracker = tracker_or_default(tracker)
    mark_op()
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:  # since the lock needs the run's id, which either branch finds
        if resume is not None:
            resume = run_id_of(resume, tracker)
            campaign_info = ended_if_whole(tracker, tracker.info(resume))
            campaigns.require_campaign(campaign_info)
            if campaign_info.status == "finished":
                stored = tracker.load(resume).read_bytes(schema.Artifact.CAMPAIGN_RESULT)
                return DebugBuildResult.from_json(stored)
            stack.enter_context(_locked_campaign(resume, tracker))
            loaded, config = _check_resumed(campaign_info, model, config, tracker, allow_scripts, evaluate)
            experiment, run = campaign_info.experiment, tracker.reopen(resume)
            run.set_tags(tags or {})  # of the flow run that runs it now
        else:
            if model is None:
                raise errors.ConfigError("No model: give an ONNX file, or the run of a campaign to resume.")
            loaded = run_step("load", Model.load, model)
            config = config or DebugBuildConfig()
            check_names(loaded, config.build, config.check)
            config = _profiled(config, loaded, evaluate)
            experiment = experiment or loaded.name
            name = f"debug build {loaded.name} {config.build.precision} {config.build.backend}"[:LONGEST_NAME]
            first = {schema.Tag.MODEL_PATH: str(loaded.path), schema.Tag.MODEL_SHA256: loaded.info.sha256}
            run = tracker.start(experiment, name, kind="debug_build", tags={**(tags or {}), **first})
            stack.enter_context(_locked_campaign(run.id, tracker))
        try:
            campaign = Campaign(
                run_id=run.id,
                experiment=experiment,
                model=str(loaded.path),
                model_sha256=loaded.info.sha256,
                config=config,
                golden_sha256=_log_beginning(config, run, loaded, tracker, evaluate),
                tags=tuple((tags or {}).items()),
            )
            return _CampaignState(campaign, run, tracker, evaluate, progress, began).run_to_end(submit)
        except BaseException as exc:
            run.fail(exc)
            raise


@dataclass
class _CampaignState:
    """The builds and bisections of a campaign so far; only this class writes the parent run."""

    campaign: Campaign
    run: Run
    tracker: Tracker
    evaluate: EngineEvaluator | None
    progress: Callable[[CampaignProgress], None] | None
    began: float

    def __post_init__(self) -> None:
        info, config = self.tracker.info(self.campaign.run_id), self.campaign.config
        iterations = campaigns.iterations(self.tracker, info)
        self._interrupted = iterations.marked
        self._table = campaigns.table_of(self.tracker, info, iterations.whole.values())
        # Where builds are bad on one machine only, the tactics that it prefers are no culprits.
        self._made_on: dict[str, str] = {}
        self._drawn: set[int] = set()  # numbers of iterations whose tactics were drawn after a timed first build
        for number, iteration in iterations.whole.items():
            self._made_on[iteration.id] = campaigns.made_on(iteration)
            if iteration.params.get("options.tactic_seed") and not config.random_tactics:
                self._drawn.add(number)
        self._planner = Planner.read(self.tracker, info, config, iterations.whole.values())
        # Numbers of the iterations to make. Each is given out once.
        self._missing = iter(sorted(set(range(config.limit)) - iterations.whole.keys() - iterations.running))
        self._diff: TacticDiff | None = None
        self._written = self._diffed = 0  # numbers of builds when the table was last written, and last diffed
        self._update_diff()

    def run_to_end(self, submit: Submit | None) -> DebugBuildResult:
        """Make iterations and bisections in turns, until neither is needed."""
        self.report(None)
        while True:
            for build in self.iterate(submit or self._iterate_in_this_thread):
                self.add(build)
                self.report(build)
            if not self.can_bisect:
                return self.finish()
            run_step("bisect", self.bisect)

    def _iterate_in_this_thread(self, campaign: Campaign, number: int) -> "Future[CampaignBuild]":
        future: Future[CampaignBuild] = Future()
        future.set_result(iterate(campaign, number, tracker=self.tracker, evaluate_engine=self.evaluate))
        return future

    def iterate(self, submit: Submit) -> Iterator[CampaignBuild]:
        """Make iterations until there are enough; yields them as they finish."""
        pending: set[Future[CampaignBuild]] = set()
        while True:
            while len(pending) < self.campaign.config.parallel and not self.has_enough:
                number = next(self._missing, None)
                if number is None:
                    break
                # Without the culprits found so far, so that builds show what else is bad.
                denied = self._planner.denied(self.tracker, self._table)
                draws = self._planner.draws(self._table)
                if draws:
                    self._drawn.add(number)
                pending.add(submit(replace(self.campaign, denied=denied, draws=draws), number))
            if not pending:
                return
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()

    @property
    def has_enough(self) -> bool:
        """Whether the campaign has reached its goal or its budget, or can bisect."""
        until = self.campaign.config.until
        if self._is_spent or self.can_bisect:
            return True
        if until == "good" or until == "bad":
            return len(self._table.named(*(PASSED if until == "good" else ("bad",)))) > 0
        if until == "decided":
            # The diff decides only without bisections, since their culprits are confirmed by all builds and mixtures.
            is_diff_decided = self._diff is not None and self._diff.decided and not self._planner.done
            return is_diff_decided or self._planner.is_answered(self._table)
        return False

    @property
    def can_bisect(self) -> bool:
        """Whether the campaign has a good and a bad build to mix, and the budget for it."""
        config = self.campaign.config
        if config.until != "decided" or not config.bisect or self._is_spent:
            return False
        has_pair = self._planner.unfinished is not None or self._planner.pair(self._table) is not None
        return has_pair and not self._planner.is_answered(self._table)

    @property
    def _is_spent(self) -> bool:
        is_late = self._minutes_left is not None and self._minutes_left <= 0
        return is_late or len(self._table) + self._planner.trials >= self.campaign.config.limit

    @property
    def _minutes_left(self) -> float | None:
        minutes = self.campaign.config.max_minutes
        return None if minutes is None else minutes - (time.perf_counter() - self.began) / 60

    def bisect(self) -> None:
        """Mix a good and a bad build with the rest of the budget, or resume an interrupted bisection."""
        config, planner = self.campaign.config, self._planner
        bisect_config = BisectConfig(allow_scripts=True)  # this campaign runs them already
        bad: str | None = None
        held: tuple[Unit, ...] = ()
        if planner.unfinished is not None:
            run = planner.unfinished.id  # its plan holds everything else
        else:
            pair = planner.pair(self._table)
            assert pair is not None
            run, bad, held = pair.good, pair.bad, pair.held
            # A bisection reads the campaign's builds from the store.
            campaigns.log_table(self.run, self._table)
            bisect_config = replace(
                bisect_config,
                confidence=planner.confidence(),
                max_builds=config.limit - len(self._table) - planner.trials,
                max_minutes=self._minutes_left,
                seed=config.seed + len(planner.done),
                devices=config.devices,
            )
        result = bisect(
            run,
            bad,
            bisect_config,
            tracker=self.tracker,
            tags=dict(self.campaign.tags),
            evaluate=self.evaluate,
            progress=lambda done, max_builds: self.report(None, done),
            held_units=held,
        )
        planner.add(result, len(self._table))

    def add(self, result: CampaignBuild) -> None:
        """Add an iteration."""
        self._table.append(result.run_id, result.verdict, result.tactics)
        self._made_on[result.run_id] = campaigns.made_on(self.tracker.info(result.run_id))
        count = len(self._table)
        # Diffing and writing read the whole table: at every build, they would cost the square of the campaign's length.
        if count <= _ALWAYS_DIFFED or count >= self._diffed * 1.02:
            self._update_diff()
        if count <= _ALWAYS_DIFFED // 4 or count >= self._written * 1.04:
            campaigns.log_table(self.run, self._table)
            self._written = count

    def _update_diff(self) -> None:
        self._diffed, config = len(self._table), self.campaign.config
        if config.until == "decided":
            self._diff = diff(self._table, confidence=config.confidence, blocks=self._made_on)

    def report(self, last: CampaignBuild | None, mixtures: int = 0) -> None:
        """Call the progress function; ``mixtures`` are those of a bisection in progress."""
        if self.progress is not None:
            progress = CampaignProgress(
                done=len(self._table),
                limit=self.campaign.config.limit,
                mixtures=self._planner.trials + mixtures,
                last=last,
                diff=self._diff,
                **campaigns.counts(self._table),
            )
            self.progress(progress)

    def finish(self) -> DebugBuildResult:
        """Log table, diff and result, and end the parent run."""
        config, counts = self.campaign.config, campaigns.counts(self._table)
        tactic_diff = diff(self._table, confidence=config.confidence, blocks=self._made_on)
        result = DebugBuildResult(
            verdict=next((verdict for verdict in ("bad", "unproven", "good") if counts[verdict]), "error"),
            iterations=len(self._table),
            good=counts["good"],
            bad=counts["bad"],
            errors=counts["error"],
            unproven=counts["unproven"],
            drawn=len(self._drawn),
            interrupted=tuple(info.id for info in self._interrupted),
            bisections=tuple(self._planner.done),
            confirmed=tuple(culprit.describe() for culprit in self._planner.culprits),
            # Without the seed of draws, since a command line only has that of the data.
            options=arguments_of(config) | {"seed": arguments_of(config.check).get("seed")},
            subject="" if config.command is not None else self.campaign.model,
            diff=tactic_diff,
        )
        campaigns.log_table(self.run, self._table)
        log_diff(self.run, tactic_diff)
        op = OpRun(self.run, self.tracker, self.campaign.experiment)
        title = f"debug build {Path(self.campaign.model).name}"
        return op.finish(result, artifact=schema.Artifact.CAMPAIGN_RESULT, title=title)


def _profiled(config: DebugBuildConfig, model: Model, evaluate: EngineEvaluator | None) -> DebugBuildConfig:
    """The config with a profile of its data's shapes; other evaluators use data of their own."""
    if evaluate is not None or config.command is not None:
        return config
    return replace(config, build=config.check.profiled(config.build, model, config.calibration_data))


def _check_resumed(
    info: RunInfo,
    model: str | Path | Model | None,
    config: DebugBuildConfig | None,
    tracker: Tracker,
    allow_scripts: bool,
    evaluate: EngineEvaluator | None,
) -> tuple[Model, DebugBuildConfig]:
    """The model and the config to resume a campaign with; ConfigError if they would make other builds or verdicts."""
    loaded = Model.load(model or builds.find_model(tracker, info))
    began_with = info.tags.get(schema.Tag.MODEL_SHA256, "")
    if loaded.info.sha256 != began_with:
        raise errors.ConfigError(
            f"{loaded.path} has digest {loaded.info.sha256[:12]}, and campaign {info.id} was started with "
            f"{began_with[:12]}. Give the same model, or start another campaign."
        )
    stored = campaigns.read_config(tracker, info)
    if stored is None:
        if config is None:
            raise errors.ConfigError(f"Campaign {info.id} was killed before it had logged its config. Give it again.")
    elif config is None:
        config = stored_config(info.id, stored, allow_scripts=allow_scripts)
    elif not (config := _profiled(config, loaded, evaluate)).same_builds(DebugBuildConfig.from_json(stored)):
        raise errors.ConfigError(
            f"The config is not that of campaign {info.id}: resuming may change until, max_iterations, parallel, "
            "devices, timeout_seconds and confidence, and nothing that decides a build or its verdict."
        )
    return loaded, config


@contextlib.contextmanager
def _locked_campaign(campaign_id: str, tracker: Tracker) -> Iterator[None]:
    """Keep other processes of this machine, or of the store's folder, from working on a campaign."""
    with held(f"campaign {campaign_id}", tracker.lock_folder) as acquired:
        if not acquired:
            raise errors.LogError(f"Another process is working on campaign {campaign_id}. Wait for it, or stop it.")
        yield


def _log_beginning(
    config: DebugBuildConfig, run: Run, model: Model, tracker: Tracker, evaluate: EngineEvaluator | None
) -> str | None:
    """Log config, model and materials, unless an earlier process did; returns the digest of the golden outputs."""
    # Scripts that may not be run here are refused before they are sent to where iterations are made.
    for source in (config.check.data, config.calibration_data):
        check_source(source)
    if config.command is not None:
        check_command(config.command.command)
    run.log_json(config, schema.Artifact.CAMPAIGN)
    run.set_tags({schema.Tag.SPEC_SHA256: config.digest})
    feeds = config.check.open_for(model, profiles=config.build.profiles)
    info = tracker.info(run.id)
    # This tag is set last, so with it everything before it is logged too.
    if schema.Tag.BACKEND not in info.tags:
        with warm_backend(config.build.backend, config.devices, config.timeout_seconds) as backend:
            environment = backend.environment(config.build)
        run.log_params(config.build)
        run.log_json(environment, schema.Artifact.ENVIRONMENT)
        log_model(run, model, keep=config.keep_model)
        log_materials(
            run, caches=Caches(), check=config.check, feeds=feeds, data=config.check.data, golden=config.check.golden
        )
        run.log_params(builds.environment_params(environment))
        run.set_tags({schema.Tag.BACKEND: environment.backend})
    if evaluate is not None or (config.command is not None and not config.command.wants("{golden}")):
        return None
    logged_digest = info.tags.get(schema.Tag.GOLDEN_SHA256)
    data = tracker.peek(run.id, schema.Artifact.GOLDEN) if logged_digest is not None else None
    if data is not None and sha256(data) == logged_digest:
        return logged_digest
    golden = golden_outputs(model, feeds, config.check.golden)
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("golden")) as folder:
        file = Path(folder, "golden.npz")
        save_json(golden, file)
        digest = sha256(file.read_bytes())
        run.log_file(file, schema.Artifact.GOLDEN)
        keep_golden(file, digest)
    run.set_tags({schema.Tag.GOLDEN_SHA256: digest})
    return digest
