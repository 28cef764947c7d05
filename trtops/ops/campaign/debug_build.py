"""Debug build: build one model again and again, evaluate each build, and find out which tactic makes some of them bad.

A campaign is a parent run with a child run per iteration. It can be killed at any moment and resumed: an iteration counts
once its run is whole, one that was cut short is marked and retried with the same seed, and none is built twice.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from trtops import errors
from trtops.allowed import check_command
from trtops.backend.base import Caches
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.model import Model
from trtops.comparator.results import RunResults
from trtops.locks import held
from trtops.ops.campaign.benches import bench, close_benches
from trtops.ops.campaign.bisect import bisect
from trtops.ops.campaign.bisected import BisectConfig, BisectResult
from trtops.ops.campaign.config import Campaign, DebugBuildConfig
from trtops.ops.campaign.iteration import EngineEvaluator, IterationResult, iterate, keep_golden
from trtops.ops.campaign.opened import remembered_config
from trtops.ops.campaign.turning import Pair, Turning, bisections, results, summaries
from trtops.ops.evaluation.check import collect
from trtops.ops.evaluation.feeds import check_source
from trtops.ops.result import LONGEST_NAME, OpResult, finish_with
from trtops.ops.steps import run_step
from trtops.processes import temporary_prefix
from trtops.record import sha256
from trtops.tactics.diff import diff
from trtops.tactics.findings import TacticDiff
from trtops.tactics.report import markdown
from trtops.tactics.table import CampaignTable
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import Run, RunInfo, Tracker, Verdict, ended_if_whole
from trtops.tracking.materials import log_materials

_ALWAYS_DIFFED = 100  # builds up to which the diff is updated after each; later in steps of 2 %


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a campaign stands.

    Attributes:
        done: Iterations finished, those of earlier processes included.
        limit: The number it can come to.
        good: How many builds were good.
        bad: How many were bad.
        error: How many crashed, hung or failed.
        mixtures: How many mixtures of a good and a bad build were made beside.
        last: The iteration that was just finished; None at the start.
        found: What the diff says so far; None where nothing was asked of it.
    """

    done: int
    limit: int
    good: int
    bad: int
    error: int
    mixtures: int = 0
    last: IterationResult | None = None
    found: TacticDiff | None = None


@dataclass(frozen=True, kw_only=True)
class DebugBuildResult(OpResult):
    """What a campaign came to.

    Attributes:
        verdict: ``good`` if no build was bad, ``error`` if none could be evaluated.
        iterations: Builds made, those of earlier processes included.
        good: How many were good.
        bad: How many were bad.
        errors: How many crashed, hung or failed.
        interrupted: Runs of iterations that were cut short and retried.
        bisections: What mixtures of good and bad builds say, if the campaign made any.
        guilty: What these convict, in words: all that makes builds bad, what fails only together in one.
        doubted: What mixtures convicted, and all builds and mixtures together do not bear out; or not yet, where the budget ended.
        found: What the diff of all builds says.
    """

    title: str = "debug build"
    verdict: Verdict
    iterations: int
    good: int
    bad: int
    errors: int
    interrupted: tuple[str, ...] = ()
    bisections: tuple[BisectResult, ...] = ()
    guilty: tuple[str, ...] = ()
    doubted: tuple[str, ...] = ()
    found: TacticDiff

    @property
    def mixtures(self) -> int:
        """How many mixtures of a good and a bad build were made."""
        return sum(len(result.trials) for result in self.bisections)

    @property
    def headline(self) -> str:
        """What bisections conclude, or else the diff."""
        if self.guilty or not self.bisections:
            return "convicted" if self.guilty else self.found.conclusion
        # What was convicted at first, was withdrawn.
        outcomes = [r.outcome for r in self.bisections if r.outcome not in ("convicted", "enough")]
        return outcomes[-1] if outcomes else "cannot be told"

    @property
    def next_step(self) -> str:
        """A conviction is proved by swapping it in and out; where no tactic is guilty, the noise is measured."""
        if not self.run_id:
            return ""
        if self.headline == "convicted":
            return f"trtops debug prove {self.run_id}"
        if self.found.conclusion in ("narrowed down", "not enough runs"):
            return f"trtops debug bisect {self.run_id}"
        return f"trtops debug noise {self.run_id}"

    def body(self) -> Iterable[str]:
        """How many builds there were of each kind, and the diff's page."""
        again = f" {len(self.interrupted)} were interrupted and retried." if self.interrupted else ""
        counted = f"{self.good} good, {self.bad} bad, {self.errors} crashed or hung."
        mixed = f" Beside them {self.mixtures} mixtures of a good and a bad one." if self.bisections else ""
        builds = f"{self.iterations} builds: {counted}{again}{mixed}"
        alone = ["## Without the mixtures", ""] if self.bisections else []
        return [builds, "", *summaries(self.bisections, self.guilty, self.doubted), *alone, *diff_body(self.found)]


class Submit(Protocol):
    """Runs an iteration somewhere, by :func:`trtops.ops.campaign.iteration.iterate`."""

    def __call__(self, campaign: Campaign, number: int) -> Future[IterationResult]:
        """Start an iteration and return at once, or run it and return when it is done."""
        ...


def debug_build(
    model: str | Path | None = None,
    config: DebugBuildConfig | None = None,
    *,
    tracker: Tracker,
    resume: str | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    evaluate: EngineEvaluator | None = None,
    submit: Submit | None = None,
    progress: Callable[[Progress], None] | None = None,
    allow_scripts: bool = False,
) -> DebugBuildResult:
    """Build a model until enough is known about its bad builds.

    Args:
        model: The ONNX file; not needed to resume a campaign.
        config: The campaign; by default FP32 on ONNX Runtime, compared with the model itself, until it is decided.
        tracker: The memory.
        resume: The run of a campaign to resume, or what its id begins with. Its own config holds unless another is given,
            which may differ in when to stop and in what runs in parallel, but in nothing that decides a build or its
            verdict.
        experiment: Experiment to log to; the model file's name without its ending unless given.
        tags: Further tags of all runs.
        evaluate: A Python callable that evaluates engines in place of the config's check.
        submit: Where iterations are made; one after the other in this thread unless given.
        progress: Called after every iteration, and once at the start.
        allow_scripts: Run scripts and commands that the campaign to resume names; whoever may write to the store can change
            them. What a given config names needs no leave.

    Returns:
        How many builds were good and bad, and what the diff says about why. A campaign that has ended gives the result it
        had.

    Raises:
        ConfigError: If the config contradicts itself, or that of the campaign to resume.
        LogError: If another process is working on the campaign.
        TrtopsError: Whatever keeps all builds from being made or evaluated; what one build does is a verdict.
    """
    if config is not None:
        config.check_limit()
    if resume is not None:
        resume = tracker.whole_id(resume)
        if (ended := _result_if_ended(tracker, resume)) is not None:
            return ended
        opened = _resume_campaign(resume, model, config, tracker, allow_scripts)
    else:
        opened = _start_campaign(model, config, experiment, tracker, tags)
    with opened as begun:
        try:
            campaign = _log_beginning(begun, tracker, tags, evaluate)
            state = _CampaignState.read(tracker, campaign, begun.run)
            one = submit or _in_this_thread(tracker, evaluate)
            state.report(progress, None)
            while True:
                for result in _results_as_they_come(state, one):
                    state.add(result)
                    state.report(progress, result)
                if not state.turns:
                    return run_step("log", state.finish, tracker)
                run_step("bisect", state.bisect, tracker, tags, evaluate, progress)
        except BaseException as exc:
            begun.run.fail(exc)
            raise
        finally:
            close_benches()


def _in_this_thread(tracker: Tracker, evaluate: EngineEvaluator | None) -> Submit:
    def make(campaign: Campaign, number: int) -> Future[IterationResult]:
        future: Future[IterationResult] = Future()
        future.set_result(iterate(campaign, number, tracker=tracker, evaluate_engine=evaluate))
        return future

    return make


def _results_as_they_come(state: _CampaignState, submit: Submit) -> Iterator[IterationResult]:
    """Results in the order in which iterations finish, as many at a time as the config allows, until there are enough."""
    pending: set[Future[IterationResult]] = set()
    while True:
        while len(pending) < state.parallel and not state.enough:
            number = next(state.missing, None)
            if number is None:
                break
            pending.add(submit(state.campaign, number))
        if not pending:
            return
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


class _CampaignState:
    """What is known of a campaign so far; the parent run is written from here alone.

    Attributes:
        missing: Numbers of iterations that nobody has made or is making; each is given out once.
    """

    def __init__(
        self,
        campaign: Campaign,
        run: Run,
        table: CampaignTable,
        found: campaigns.Iterations,
        turning: Turning,
        tracker: Tracker,
    ) -> None:
        self._campaign = campaign
        self._tracker = tracker
        self._turning = turning
        self._began = time.perf_counter()
        self._run = run
        self._table = table
        self._found = found
        self._diff: TacticDiff | None = None
        self._written = self._weighed = 0
        taken = found.whole.keys() | found.running
        self.missing = iter([number for number in range(campaign.config.limit) if number not in taken])
        self._update_diff()

    @classmethod
    def read(cls, tracker: Tracker, campaign: Campaign, run: Run) -> _CampaignState:
        """What the memory has; iterations that were cut short are marked."""
        info = tracker.info(campaign.run_id)
        found = campaigns.iterations(tracker, info)
        table = campaigns.table_of(tracker, info, found.whole.values())
        turning = Turning.read(tracker, info, campaign.config, found.whole.values())
        return cls(campaign, run, table, found, turning, tracker)

    @property
    def parallel(self) -> int:
        """How many iterations are under way at a time."""
        return self._campaign.config.parallel

    @property
    def campaign(self) -> Campaign:
        """The campaign, with what its next builds are not to choose."""
        return replace(self._campaign, denied=self._turning.denied(self._tracker, self._table))

    @property
    def enough(self) -> bool:
        """Whether the campaign has what it is for."""
        until, counts = self._campaign.config.until, campaigns.counts(self._table)
        if self._is_spent or self.turns:
            return True
        if until == "good" or until == "bad":
            return counts[until] > 0
        if until == "decided":
            told = self._diff is not None and self._diff.decided and not self._turning.done
            return told or self._turning.is_answered(self._table)
        return False

    @property
    def turns(self) -> bool:
        """Whether the campaign has a good and a bad build to mix, and the budget for it."""
        config = self._campaign.config
        if config.until != "decided" or not config.bisect or self._is_spent:
            return False
        waits = self._turning.unfinished is not None or self._turning.pair(self._table) is not None
        return waits and not self._turning.is_answered(self._table)

    @property
    def _is_spent(self) -> bool:
        """Whether there is no budget left, in builds or in minutes."""
        late = self._minutes_left is not None and self._minutes_left <= 0
        return late or len(self._table) + self._turning.trials >= self._campaign.config.limit

    @property
    def _minutes_left(self) -> float | None:
        minutes = self._campaign.config.max_minutes
        return None if minutes is None else minutes - (time.perf_counter() - self._began) / 60

    def bisect(
        self,
        tracker: Tracker,
        tags: Mapping[str, str] | None,
        evaluate: EngineEvaluator | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        """Mix a good and a bad build, with what is left of the budget; or resume what was interrupted."""
        config, turning = self._campaign.config, self._turning
        before = turning.trials
        pair = turning.pair(self._table)
        if turning.unfinished is not None:
            pair = Pair(turning.unfinished.id, "")  # it knows the rest itself
        assert pair is not None
        campaigns.log_table(self._run, self._table)
        result = bisect(
            pair.good,
            pair.bad or None,
            BisectConfig(
                allow_scripts=True,  # this campaign runs them already: they were given now, or allowed when it was resumed
                confidence=turning.confidence(),
                confidence_of_one=turning.confidence_of_one(pair),
                max_builds=config.limit - len(self._table) - before,
                max_minutes=self._minutes_left,
                seed=config.seed + len(turning.done),
                devices=config.devices,
            ),
            tracker=tracker,
            tags=tags,
            evaluate=evaluate,
            progress=lambda done, most: self.report(progress, None, before + done),
            given=pair.given,
            together=pair.together,
            chance=pair.chance,
        )
        turning.take(result, len(self._table))

    def add(self, result: IterationResult) -> None:
        """Take in an iteration."""
        self._table.append(result.run_id, result.verdict, result.tactics)
        count = len(self._table)
        # A diff reads the whole table, and so does writing it: done at every build, a campaign would cost its square.
        if count <= _ALWAYS_DIFFED or count >= self._weighed * 1.02:
            self._update_diff()
        if count <= _ALWAYS_DIFFED // 4 or count >= self._written * 1.04:
            campaigns.log_table(self._run, self._table)
            self._written = count

    def _update_diff(self) -> None:
        self._weighed = len(self._table)
        if self._campaign.config.until == "decided":
            self._diff = self._diff_now()

    def _diff_now(self) -> TacticDiff:
        config = self._campaign.config
        return diff(self._table, confidence=config.confidence, by=config.by)

    def report(
        self, progress: Callable[[Progress], None] | None, last: IterationResult | None, mixtures: int | None = None
    ) -> None:
        """Report where the campaign stands."""
        if progress is not None:
            limit, counts = self._campaign.config.limit, campaigns.counts(self._table)
            mixed = self._turning.trials if mixtures is None else mixtures
            progress(
                Progress(done=len(self._table), limit=limit, mixtures=mixed, last=last, found=self._diff, **counts)
            )

    def finish(self, tracker: Tracker) -> DebugBuildResult:
        """Log table, diff and page, and end the parent run."""
        run, table = self._run, self._table
        found = self._diff_now()
        campaigns.log_table(run, table)
        log_diff(run, table, found)
        result = _campaign_result(table, found, self._found.marked, self._turning)
        title = f"debug build {Path(self._campaign.model).name}"
        finish_with(run, result, tracker, title=title)
        return result.kept_in(run, self._campaign.experiment)


def _campaign_result(
    table: CampaignTable, found: TacticDiff, interrupted: Iterable[RunInfo], turning: Turning
) -> DebugBuildResult:
    """What a table of builds comes to, without the run that holds it."""
    counts = campaigns.counts(table)
    guilty, doubted = turning.guilty_and_doubted(table)
    return DebugBuildResult(
        verdict="bad" if counts["bad"] else "good" if counts["good"] else "error",
        iterations=len(table),
        good=counts["good"],
        bad=counts["bad"],
        errors=counts["error"],
        interrupted=tuple(info.id for info in interrupted),
        bisections=tuple(turning.done),
        guilty=tuple(each.describe() for each in guilty),
        doubted=tuple(each.describe() for each in doubted),
        found=found,
    )


def diff_body(found: TacticDiff) -> list[str]:
    """A diff as lines of Markdown, without a heading."""
    return markdown(found).splitlines()[2:]


def log_diff(run: Run, table: CampaignTable, found: TacticDiff) -> None:
    """Log a diff as JSON, as a page, as the run's note, and as a picture if something varies."""
    page = markdown(found)
    run.log_json(found, schema.Artifact.DIFF)
    run.log_text(page, schema.Artifact.DIFF_PAGE)
    run.log_metrics(
        {
            (schema.Metric.DIFF, "p_innocent"): found.p_innocent,
            (schema.Metric.DIFF, "e_value_log10"): found.e_value_log10,
        }
    )
    if found.varying_layers:
        from trtops.tactics.plot import draw

        run.log_bytes(draw(table, found), schema.Artifact.DIFF_PICTURE)


def _result_if_ended(tracker: Tracker, run_id: str) -> DebugBuildResult | None:
    """The result of a campaign that has ended; None if it can be resumed."""
    info = ended_if_whole(tracker, _campaign_info(tracker, run_id))
    if info.status != "finished":
        return None
    stored = tracker.load(run_id)
    table = campaigns.load_table(tracker, run_id)
    found = TacticDiff.from_json(stored.read_bytes(schema.Artifact.DIFF))
    ended = [child for child in bisections(tracker, info) if child.status == "finished"]
    # Whoever bisects a campaign that has ended does not change what it came to.
    mixed = results(tracker, [child for child in ended if child.start_time <= (info.end_time or math.inf)])
    config = DebugBuildConfig.from_json(stored.read_bytes(schema.Artifact.CAMPAIGN))
    result = _campaign_result(table, found, campaigns.iterations(tracker, info).marked, Turning(config, mixed))
    return replace(result, run_id=run_id, url=info.url, experiment=info.experiment)


def _campaign_info(tracker: Tracker, run_id: str) -> RunInfo:
    info = tracker.info(run_id)
    campaigns.require_campaign(info)
    return info


@dataclass(frozen=True)
class _Begun:
    """A campaign that was started or resumed, and is this process's alone.

    Attributes:
        run: The parent run.
        path: The ONNX file, absolute.
        model: The same, loaded.
        config: The campaign's config.
        experiment: Its experiment.
    """

    run: Run
    path: Path
    model: Model
    config: DebugBuildConfig
    experiment: str


@contextlib.contextmanager
def _start_campaign(
    model: str | Path | None,
    config: DebugBuildConfig | None,
    experiment: str | None,
    tracker: Tracker,
    tags: Mapping[str, str] | None,
) -> Iterator[_Begun]:
    """A new campaign, and its parent run, which is nobody else's for as long as the block lasts."""
    if model is None:
        raise errors.ConfigError("No model: give an ONNX file, or the run of a campaign to resume.")
    config = DebugBuildConfig() if config is None else config
    path = Path(model).absolute()
    loaded = Model.load(path)
    experiment = experiment or path.stem
    name = f"debug build {path.stem} {config.build.precision} {config.build.backend}"[:LONGEST_NAME]
    first = {**(tags or {}), schema.Tag.MODEL_PATH: str(path), schema.Tag.MODEL_SHA256: loaded.info.sha256}
    run = tracker.start(experiment, name, kind="debug_build", tags=first)
    with _locked_campaign(run.id, tracker):
        yield _Begun(run, path, loaded, config, experiment)


@contextlib.contextmanager
def _resume_campaign(
    run_id: str, model: str | Path | None, config: DebugBuildConfig | None, tracker: Tracker, allow_scripts: bool
) -> Iterator[_Begun]:
    """A campaign that was interrupted, likewise; with what a given config may change."""
    with _locked_campaign(run_id, tracker):
        info = _campaign_info(tracker, run_id)
        path = Path(model or info.tags.get(schema.Tag.MODEL_PATH, "")).absolute()
        loaded = Model.load(path)
        if loaded.info.sha256 != info.tags.get(schema.Tag.MODEL_SHA256):
            raise errors.ConfigError(
                f"{path} has digest {loaded.info.sha256[:12]}, and campaign {info.id} was started with "
                f"{info.tags.get(schema.Tag.MODEL_SHA256, '')[:12]}. Give the same model, or start another campaign."
            )
        config = _resumed_config(info.id, campaigns.read_config(tracker, info), config, allow_scripts)
        yield _Begun(tracker.reopen(run_id), path, loaded, config, info.experiment)


def _resumed_config(
    run_id: str, stored: bytes | None, given: DebugBuildConfig | None, allow_scripts: bool
) -> DebugBuildConfig:
    """The config to resume with: the given one, if nothing in it that decides a build or a verdict is new."""
    if stored is None:
        if given is None:
            raise errors.ConfigError(f"Campaign {run_id} was killed before it had logged its config. Give it again.")
        return given
    if given is None:
        return remembered_config(run_id, stored, allow_scripts=allow_scripts)
    if not given.same_builds(DebugBuildConfig.from_json(stored)):
        raise errors.ConfigError(
            f"The config is not that of campaign {run_id}: resuming may change until, max_iterations, parallel, devices, "
            "timeout_seconds, by and confidence, and nothing that decides a build or its verdict."
        )
    return given


def _check_scripts(config: DebugBuildConfig) -> None:
    """Refuse scripts that may not be run here, before they are sent to where iterations are made."""
    for source in (config.check.data, config.calibration_data):
        check_source(source)
    if config.command is not None:
        check_command(config.command.command)


def _log_beginning(
    begun: _Begun, tracker: Tracker, tags: Mapping[str, str] | None, evaluate: EngineEvaluator | None
) -> Campaign:
    """Log what the campaign is, unless an earlier process did, and compute the golden outputs."""
    run, model, config = begun.run, begun.model, begun.config
    _check_scripts(config)
    campaign = Campaign(
        run_id=run.id,
        experiment=begun.experiment,
        model=str(begun.path),
        model_sha256=model.info.sha256,
        config=config,
        tags=tuple((tags or {}).items()),
    )
    run.log_json(config, schema.Artifact.CAMPAIGN)
    info = tracker.info(run.id)
    if schema.Tag.ENVIRONMENT_SHA256 not in info.tags:
        with bench(config.place) as backend:
            environment = backend.environment()
        run.log_params(schema.flat_params(config.build))
        run.log_json(environment, schema.Artifact.ENVIRONMENT)
        for file in model.files() if config.keep_model else ():
            run.log_file(file, f"{schema.Artifact.MODEL}{file.name}")
        feeds = config.check.open_for(model)
        log_materials(
            run, caches=Caches(), check=config.check, feeds=feeds, data=config.check.data, golden=config.check.golden
        )
        run.set_tags(builds.environment_tags(environment))
    if evaluate is not None or (config.command is not None and not config.command.wants("{golden}")):
        return campaign
    return replace(campaign, golden_sha256=_ensure_golden(model, config, run, info, tracker))


def _ensure_golden(model: Model, config: DebugBuildConfig, run: Run, info: RunInfo, tracker: Tracker) -> str:
    """Digest of the golden outputs in the parent; computed if it has none yet."""
    known = info.tags.get(schema.Tag.GOLDEN_SHA256)
    data = tracker.peek(run.id, schema.Artifact.GOLDEN) if known is not None else None
    if known is not None and data is not None and sha256(data) == known:
        return known
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("golden")) as folder:
        file = Path(folder, "golden.npz")
        _golden_results(model, config).save(str(file))
        digest = sha256(file.read_bytes())
        run.log_file(file, schema.Artifact.GOLDEN)
        keep_golden(file, digest)
    run.set_tags({schema.Tag.GOLDEN_SHA256: digest})
    return digest


def _golden_results(model: Model, config: DebugBuildConfig) -> RunResults:
    check = config.check
    if check.golden is not None:
        return RunResults.load(check.golden)
    feeds = check.open_for(model)
    with reference_runner(model, name="golden") as runner:
        return collect(runner, feeds)


@contextlib.contextmanager
def _locked_campaign(campaign_id: str, tracker: Tracker) -> Iterator[None]:
    """Keep other processes from working on a campaign: those of the store, or, of one behind a server, this machine's."""
    with held(f"campaign {campaign_id}", tracker.lock_folder) as mine:
        if not mine:
            raise errors.LogError(f"Another process is working on campaign {campaign_id}. Wait for it, or stop it.")
        yield
