"""Diff tactics: compare good and bad builds, and report the tactic shared by the bad ones only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtops import errors
from trtops.ops.arguments import checked_arguments
from trtops.ops.result import OpResult, op_run, run_step, tracker_or_default
from trtops.record import Config, setting
from trtops.tables import listed
from trtops.tactics.diff import diff
from trtops.tactics.findings import Conclusion, TacticDiff
from trtops.tactics.record import algorithm_text
from trtops.tactics.replays import Skipped, load_replay_folder, load_replays
from trtops.tactics.table import By, CampaignTable
from trtops.tracking import campaigns, schema
from trtops.tracking.base import Run, RunInfo, Tracker, Verdict, run_id_of

_CAMPAIGN, _BUILDS = "debug_build", ("build", "iteration")
_MAX_LISTED_SKIPS = 10  # skipped runs and files on a page


@dataclass(frozen=True, kw_only=True)
class DiffTacticsConfig(Config):
    """The source of good and bad builds, and the granularity of the comparison.

    Builds of the store are compared in the order in which they ended, so the diff may be repeated as more of them end.
    Files have no order: their diff is valid once, for a number of builds that was fixed beforehand.

    Attributes:
        runs: Campaigns, by the ids of their runs; and single builds or iterations.
        experiment: All evaluated builds of an experiment, those of campaigns included.
        tags: Only builds whose runs have these tags.
        folder: A folder with ``good/`` and ``bad/`` in it, as Polygraphy sorts its replays.
        good: A tactic record or replay of a good build, or a folder of them; with ``bad``.
        bad: Likewise, of bad builds.
        by: What is compared: tactic, format, precision, or algorithm (tactic and format).
        confidence: The probability from which a tactic is confirmed as culprit.
    """

    runs: tuple[str, ...] = ()
    experiment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = setting(None, file="reads")
    good: str | None = setting(None, file="reads")
    bad: str | None = setting(None, file="reads")
    by: By = "tactic"
    confidence: float = setting(0.95, most=1)

    def __post_init__(self) -> None:
        sources = [bool(self.runs), self.experiment is not None, self.folder is not None, self.good is not None]
        if sum(sources) != 1 or (self.good is None) != (self.bad is None):
            raise errors.ConfigError("Give one source of builds: runs, an experiment, a folder, or good and bad.")
        if self.tags and self.experiment is None:
            raise errors.ConfigError("Tags choose among the builds of an experiment; give one.")


_DECIDED: tuple[Conclusion, ...] = ("confirmed", "no single tactic explains this", "no bad builds")
"""Conclusions that further builds are not needed for."""


@dataclass(frozen=True, kw_only=True)
class DiffTacticsResult(OpResult):
    """The diff, and files and runs without tactics, with the reason."""

    is_named_by_outcome = True

    title: str = "diff tactics"
    verdict: Verdict = "good"  # ``unproven`` if there were not enough builds; a diff evaluates none itself
    builds: int
    diff: TacticDiff
    skipped: Skipped = ()

    @property
    def exit_code(self) -> int:
        """0, as of Polygraphy's command: a diff was made."""
        return 0

    @property
    def headline(self) -> str:
        """The diff's conclusion."""
        return self.diff.conclusion

    @property
    def because(self) -> tuple[str, ...]:
        """The conclusion in sentences."""
        return (self.diff.summary,)

    @property
    def figures(self) -> str:
        """The number of builds."""
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"builds: {self.diff.good} good, {self.diff.bad} bad{skipped}"

    def difference_lines(self) -> Iterator[str]:
        """The plain difference between good and bad builds, in Polygraphy's lines."""
        yield f"Loaded {self.diff.good} good tactic replays."
        yield f"Loaded {self.diff.bad} bad tactic replays."
        if self.diff.set_difference:
            yield "Found potentially bad tactics:"
        else:
            yield "Could not determine potentially bad tactics. Try providing more tactic replay files if possible."
        for only_bad in self.diff.set_difference:
            yield f"Layer: {only_bad.layer}\n    Algorithms: {list(map(algorithm_text, only_bad.choices))}"

    def body(self) -> Iterable[str]:
        """The diff's page, and the skipped runs and files."""
        yield from diff_body(self.diff)
        if self.skipped:
            yield from ("", f"{len(self.skipped)} runs or files were skipped:", "")
            yield listed([f"- `{name}`: {reason}" for name, reason in self.skipped], _MAX_LISTED_SKIPS, "\n")


@checked_arguments
def diff_tactics(
    config: DiffTacticsConfig,
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> DiffTacticsResult:
    """Compare good and bad builds, and log the report to a run.

    Args:
        config: Which builds, and what to compare.
        tracker: The tracking store.
        experiment: Experiment to log to (default: the builds' own, or ``tactics`` for files).
        tags: Further tags of the run.

    Raises ConfigError if there is no such source, or it holds no evaluated build; RunNotFoundError if a run does not
    exist.

    >>> build = trtops.convert("model.onnx")
    >>> trtops.diff_tactics(trtops.DiffTacticsConfig(runs=(build.run_id,))).headline
    'no bad builds'
    """
    tracker = tracker_or_default(tracker)
    config = replace(config, runs=tuple(run_id_of(run, tracker) for run in config.runs))
    infos = [tracker.info(run_id) for run_id in config.runs]
    if config.experiment is not None:
        builds = tracker.find(config.experiment, tags=config.tags, status="finished")
    else:
        builds = []
        for info in infos:
            builds += tracker.find(info.experiment, parent=info.id)
        builds += infos
    builds = [info for info in builds if info.kind in _BUILDS]
    table, skipped = run_step("read builds", _load_builds, config, builds, tracker)
    if not len(table):
        raise errors.ConfigError(
            "There is no evaluated build to compare. Give runs, or files, with tactics and a verdict."
        )
    name = f"diff of {len(table)} builds"
    experiment = experiment or config.experiment or (infos[0].experiment if infos else "tactics")
    parent = infos[0].id if len(infos) == 1 and infos[0].kind == _CAMPAIGN else None
    with op_run(tracker, experiment, name, kind="diff_tactics", tags=tags, parent=parent) as op:
        op.run.log_params(config)
        blocks = {info.id: campaigns.made_on(info) for info in builds}
        tactic_diff = run_step("compare", diff, table, confidence=config.confidence, by=config.by, blocks=blocks)
        op.run.log_bytes(table.to_bytes(), schema.Artifact.CAMPAIGN_TABLE)
        log_diff(op.run, tactic_diff)
        verdict: Verdict = "good" if tactic_diff.conclusion in _DECIDED else "unproven"
        result = DiffTacticsResult(verdict=verdict, builds=len(table), diff=tactic_diff, skipped=skipped)
        return op.finish(result, title=name, evaluated=False)


def diff_body(tactic_diff: TacticDiff) -> list[str]:
    """A diff as lines of Markdown, without a heading."""
    return tactic_diff.markdown().splitlines()[2:]


def log_diff(run: Run, tactic_diff: TacticDiff) -> None:
    """Log a diff as JSON and as a page."""
    run.log_json(tactic_diff, schema.Artifact.DIFF)
    run.log_text(tactic_diff.markdown(), schema.Artifact.DIFF_PAGE)
    run.log_metrics({(schema.Metric.DIFF, name): getattr(tactic_diff, name) for name in ("p_chance", "e_value_log10")})


def _load_builds(
    config: DiffTacticsConfig, builds: Sequence[RunInfo], tracker: Tracker
) -> tuple[CampaignTable, Skipped]:
    """Read files or runs; those of campaigns from their tables, in a thousandth of the time."""
    if config.folder is not None:
        return load_replay_folder(config.folder)
    if config.good is not None and config.bad is not None:
        return load_replays(Path(config.good), Path(config.bad))
    # A later diff then adds builds at the end, which keeps the evidence valid.
    in_order = sorted(builds, key=lambda info: info.end_time or 0.0)
    by_parent: dict[str | None, dict[str, RunInfo]] = {}
    for info in in_order:
        by_parent.setdefault(info.parent, {})[info.id] = info
    table, skipped = CampaignTable(), []
    for parent, infos in by_parent.items():
        if parent is not None and tracker.info(parent).kind == _CAMPAIGN:
            # A campaign's table is in the order in which it got its builds, which is the one that its own diffs saw.
            stored = campaigns.load_table(tracker, parent)
            table.take(stored, [name for name in stored.names if name in infos])
            continue
        for info in infos.values():
            reason = _why_unfit(info)
            try:
                if reason is None:
                    campaigns.append(table, tracker.load(info.id))
            except errors.IncompleteRunError as exc:
                reason = str(exc)
            if reason is not None:
                skipped.append((info.id, reason))
    if len(by_parent) > 1:
        together = CampaignTable(ordered=table.ordered)
        together.take(table, [info.id for info in in_order])
        table = together
    return table, tuple(skipped)


def _why_unfit(info: RunInfo) -> str | None:
    if info.verdict is None:
        return "it has no verdict"
    if schema.Tag.REUSED_FROM in info.tags:
        return "it took its engine from another run"
    return "its tactics were prescribed, by a proof" if schema.Tag.TRIAL in info.tags else None
