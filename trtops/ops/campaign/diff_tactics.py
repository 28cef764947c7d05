"""Diff tactics: read good and bad builds back, and say which tactic the bad ones have and the good ones lack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtops import errors
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.iteration import largest_error
from trtops.ops.result import OpResult, finish_with, op_run
from trtops.ops.steps import run_step
from trtops.record import Record
from trtops.tactics.choice_keys import By, algorithm_text
from trtops.tactics.diff import diff
from trtops.tactics.error_sizes import SizeFindings, compare_sizes, size_lines
from trtops.tactics.findings import TacticDiff
from trtops.tactics.replays import LoadedReplays, load_replay_folder, load_replays
from trtops.tactics.report import markdown
from trtops.tactics.table import CampaignTable, merge
from trtops.tracking import campaigns, schema
from trtops.tracking.base import Run, RunInfo, Tracker, Verdict

_CAMPAIGN, _BUILDS = "debug_build", ("build", "iteration")
_SHOWN = 10  # runs and files that were passed over, on a page


@dataclass(frozen=True, kw_only=True)
class DiffTacticsConfig(Record):
    """Where good and bad builds come from, and what is compared. One source, or several campaigns.

    Builds of the store are compared in the order in which they ended, so the diff may be repeated as more of them end.
    Files have no order: their diff is valid once, for a number of builds that was fixed beforehand.

    Attributes:
        runs: Campaigns, by the ids of their runs or what those begin with; and single builds or iterations, by theirs.
        experiment: All evaluated builds of an experiment, campaigns' among them.
        tags: Only builds whose runs have these tags.
        folder: A folder with ``good/`` and ``bad/`` in it, as Polygraphy sorts its replays.
        good: A tactic record or replay of a good build, or a folder of them; with ``bad``.
        bad: Likewise, of bad builds.
        by: What is compared.
        also: What is compared as well; the more of these there are, the more confidence each of them needs.
        confidence: The probability of guilt from which on a tactic is convicted.
    """

    runs: tuple[str, ...] = ()
    experiment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    good: str | None = None
    bad: str | None = None
    by: By = "tactic"
    also: tuple[By, ...] = ()
    confidence: float = 0.95

    def __post_init__(self) -> None:
        sources = [bool(self.runs), self.experiment is not None, self.folder is not None, self.good is not None]
        if sum(sources) != 1 or (self.good is None) != (self.bad is None):
            raise errors.ConfigError("Give one source of builds: runs, an experiment, a folder, or good and bad.")
        if self.tags and self.experiment is None:
            raise errors.ConfigError("Tags choose among the builds of an experiment; give one.")


@dataclass(frozen=True, kw_only=True)
class DiffTacticsResult(OpResult):
    """What the builds say.

    Attributes:
        builds: How many builds were read.
        found: The diff by what was asked for first.
        also: Those by what was asked for beside.
        sizes: What the size of errors says, where the memory knows the errors of enough builds.
        skipped: Files and runs that hold no tactics, with why.
    """

    title: str = "diff tactics"
    builds: int
    found: TacticDiff
    also: tuple[TacticDiff, ...] = ()
    sizes: SizeFindings | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Always ``good``: a diff evaluates no build, it tells evaluated ones apart."""
        return "good"

    @property
    def headline(self) -> str:
        """What the diff concludes."""
        return self.found.conclusion

    def difference_lines(self) -> Iterator[str]:
        """The plain difference between good and bad builds, in the lines that Polygraphy prints."""
        yield f"Loaded {self.found.good} good tactic replays."
        yield f"Loaded {self.found.bad} bad tactic replays."
        if self.found.set_difference:
            yield "Found potentially bad tactics:"
        else:
            yield "Could not determine potentially bad tactics. Try providing more tactic replay files if possible."
        for only_bad in self.found.set_difference:
            yield f"Layer: {only_bad.layer}\n    Algorithms: {list(map(algorithm_text, only_bad.choices))}"

    def body(self) -> Iterable[str]:
        """The diff's page, those by what was asked for beside in short, and what was passed over."""
        yield from diff_body(self.found)
        if self.sizes is not None:
            yield from ("", "## By the size of errors", "", *size_lines(self.sizes))
        for other in self.also:
            yield from ("", f"## By {other.by}: {other.conclusion}", "", other.summary)
        if self.skipped:
            yield from ("", f"{len(self.skipped)} runs or files were passed over:", "")
            yield from (f"- `{name}`: {why}" for name, why in self.skipped[:_SHOWN])
        if len(self.skipped) > _SHOWN:
            yield f"- and {len(self.skipped) - _SHOWN} more"


def diff_tactics(
    config: DiffTacticsConfig,
    *,
    tracker: Tracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> DiffTacticsResult:
    """Compare good and bad builds, and keep the report in a run.

    Args:
        config: Which builds, and what to compare.
        tracker: The memory.
        experiment: Experiment to log to; the builds' own, or ``tactics`` for files, unless given.
        tags: Further tags of the run.

    Raises:
        ConfigError: If there is no such source, or it holds no evaluated build.
        RunNotFoundError: If a run does not exist.
    """
    config = replace(config, runs=tuple(tracker.whole_id(run) for run in config.runs))
    place, parent, loaded = run_step("read builds", _load_builds, config, tracker)
    if not len(loaded.table):
        raise errors.ConfigError(
            "There is no evaluated build to compare. Give runs, or files, with tactics and a verdict."
        )
    beside = [by for by in dict.fromkeys(config.also) if by != config.by]
    confidence = 1 - (1 - config.confidence) / max(1, len(beside))
    experiment, name = experiment or place, f"diff of {len(loaded.table)} builds"
    with op_run(tracker, experiment, name, kind="diff_tactics", tags=tags, parent=parent) as run:
        run.log_params(schema.flat_params(config))
        infos = _infos_of(config, tracker)
        blocks = {info.id: _block_of(info) for info in infos}
        found = run_step("compare", diff, loaded.table, confidence=config.confidence, by=config.by, blocks=blocks)
        also = [diff(loaded.table, confidence=confidence, by=by, blocks=blocks) for by in beside]
        known = {info.id: error for info in infos if (error := largest_error(info)) is not None}
        sizes = compare_sizes(loaded.table, known, found, tolerance=_tolerance_of(tracker, parent))
        run.log_bytes(loaded.table.to_bytes(), schema.Artifact.CAMPAIGN_TABLE)
        log_diff(run, loaded.table, found)
        if sizes is not None:
            run.log_json(sizes, schema.Artifact.DIFF.replace("diff", "sizes"))
        for other in also:
            run.log_json(other, schema.Artifact.DIFF.replace("diff", f"diff_{other.by}"))
        result = DiffTacticsResult(
            builds=len(loaded.table), found=found, also=tuple(also), sizes=sizes, skipped=loaded.skipped
        )
        run_step("log", finish_with, run, result, tracker, title=name, evaluated=False)
    return result.kept_in(run, experiment)


def diff_body(found: TacticDiff) -> list[str]:
    """A diff as lines of Markdown, without a heading."""
    return markdown(found).splitlines()[2:]


def log_diff(run: Run, table: CampaignTable, found: TacticDiff) -> None:
    """Log a diff as JSON, as a page, and as a picture if something varies."""
    run.log_json(found, schema.Artifact.DIFF)
    run.log_text(markdown(found), schema.Artifact.DIFF_PAGE)
    run.log_metrics(
        {
            (schema.Metric.DIFF, "p_chance"): found.p_chance,
            (schema.Metric.DIFF, "e_value_log10"): found.e_value_log10,
        }
    )
    if found.varying_layers:
        from trtops.tactics.plot import draw

        run.log_bytes(draw(table, found), schema.Artifact.DIFF_PICTURE)


def _load_builds(config: DiffTacticsConfig, tracker: Tracker) -> tuple[str, str | None, LoadedReplays]:
    """The builds, the experiment that they belong to, and their campaign if it is one."""
    if config.folder is not None:
        return "tactics", None, load_replay_folder(config.folder)
    if config.good is not None and config.bad is not None:
        return "tactics", None, load_replays(Path(config.good), Path(config.bad))
    if config.experiment is not None:
        return config.experiment, None, _load_experiment(config.experiment, config.tags, tracker)
    infos = [tracker.info(run_id) for run_id in config.runs]
    parent = infos[0].id if len(infos) == 1 and _kind_of(infos[0]) == _CAMPAIGN else None
    return infos[0].experiment, parent, _load_runs(infos, tracker)


def _infos_of(config: DiffTacticsConfig, tracker: Tracker) -> list[RunInfo]:
    """What the memory knows of the builds; nothing of files."""
    if config.experiment is not None:
        infos = tracker.find(config.experiment, status="finished")
    else:
        infos = [tracker.info(run_id) for run_id in config.runs]
        infos += [child for info in infos for child in tracker.find(info.experiment, parent=info.id)]
    return [info for info in infos if _kind_of(info) in _BUILDS]


def _block_of(info: RunInfo) -> str:
    """Where and with what a build was made: host, kind of device, release."""
    names = (schema.Tag.HOST, schema.Tag.DEVICE_SHA256, schema.Tag.BACKEND_VERSION)
    return " ".join(info.tags.get(name, "")[:24] for name in names).strip()


def _tolerance_of(tracker: Tracker, campaign: str | None) -> float | None:
    """The absolute tolerance that a campaign's builds were evaluated by, if that is all that decided."""
    data = None if campaign is None else campaigns.read_config(tracker, tracker.info(campaign))
    if data is None:
        return None
    config = DebugBuildConfig.from_json(data)  # nothing of it is run: neither its model nor its scripts are needed
    tolerances = config.check.tolerances
    return tolerances.atol if tolerances is not None and config.command is None else None


def _kind_of(info: RunInfo) -> str:
    return info.tags.get(schema.Tag.KIND, "")


def _load_runs(infos: Sequence[RunInfo], tracker: Tracker) -> LoadedReplays:
    infos = sorted(infos, key=lambda info: info.start_time)
    whole = [info for info in infos if _kind_of(info) == _CAMPAIGN]
    single, skipped = _load_single_builds((info for info in infos if _kind_of(info) != _CAMPAIGN), tracker)
    table = merge([*((campaigns.load_table(tracker, info.id), None) for info in whole), (single, None)])
    if len(infos) > 1:
        children = [child for info in whole for child in tracker.find(info.experiment, parent=info.id)]
        table = _in_order_of_arrival(table, [*children, *infos])
    return LoadedReplays(table=table, skipped=skipped)


def _load_experiment(experiment: str, tags: Mapping[str, str], tracker: Tracker) -> LoadedReplays:
    """All evaluated builds; those of campaigns from their tables, which takes a thousandth of the time."""
    found = [info for info in tracker.find(experiment, tags=tags, status="finished") if _kind_of(info) in _BUILDS]
    by_parent: dict[str | None, list[RunInfo]] = {}
    for info in reversed(found):
        by_parent.setdefault(info.parent, []).append(info)
    parts: list[tuple[CampaignTable, Sequence[str] | None]] = []
    singles: list[RunInfo] = []
    for parent, infos in by_parent.items():
        if parent is None or _kind_of(tracker.info(parent)) != _CAMPAIGN:
            singles += infos
        else:
            parts.append((campaigns.load_table(tracker, parent), [info.id for info in infos]))
    single, skipped = _load_single_builds(singles, tracker)
    return LoadedReplays(table=_in_order_of_arrival(merge([*parts, (single, None)]), found), skipped=skipped)


def _in_order_of_arrival(table: CampaignTable, infos: Iterable[RunInfo]) -> CampaignTable:
    """The builds in the order in which they ended: whoever looks again later finds all that was there, and more after it."""
    ended = {info.id: info.end_time or 0.0 for info in infos}
    return merge([(table, sorted(table.names, key=lambda name: ended.get(name, 0.0)))])


def _load_single_builds(
    infos: Iterable[RunInfo], tracker: Tracker
) -> tuple[CampaignTable, tuple[tuple[str, str], ...]]:
    table, skipped = CampaignTable(), []
    for info in infos:
        if (why := _why_unfit(info)) is not None:
            skipped.append((info.id, why))
            continue
        try:
            campaigns.append(table, tracker.load(info.id))
        except errors.IncompleteRunError as exc:
            skipped.append((info.id, str(exc)))
    return table, tuple(skipped)


def _why_unfit(info: RunInfo) -> str | None:
    if info.verdict is None:
        return "it has no verdict"
    if schema.Tag.REUSED_FROM in info.tags:
        return "it took its engine from another run"
    return "its tactics were prescribed, by a proof" if schema.Tag.TRIAL in info.tags else None
