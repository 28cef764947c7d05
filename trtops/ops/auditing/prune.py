"""Retention: large artifacts of old bad runs are dropped; what they were is said in the manifest, and all records stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trtops import errors
from trtops.ops.result import OnProgress, OpResult
from trtops.record import Record
from trtops.tables import size
from trtops.tracking import schema
from trtops.tracking.base import ArtifactEntry, RunInfo, Tracker
from trtops.verdict import VERDICTS, Verdict

_DAY = 86400.0
_KEPT = (
    schema.Artifact.ACCURACY,
    schema.Artifact.AUDIT_PAGE,
    schema.Artifact.AUDIT_PART,
    schema.Artifact.AUDIT_RESULT,
    schema.Artifact.AUDIT_RUNS,
    schema.Artifact.BISECTION,
    schema.Artifact.BISECTION_PLAN,
    schema.Artifact.BUILD_LIST,
    schema.Artifact.BUILD_LIST_PAGE,
    schema.Artifact.BUILD_LOG,
    schema.Artifact.CALIBRATION_JSON,
    schema.Artifact.CALIBRATION_RANGES,
    schema.Artifact.CAMPAIGN,
    schema.Artifact.CAMPAIGN_TABLE,
    schema.Artifact.DENIED,
    schema.Artifact.DIFF,
    schema.Artifact.DIFF_PAGE,
    schema.Artifact.ENGINE_OPTIONS,
    schema.Artifact.ENVIRONMENT,
    schema.Artifact.GATE,
    schema.Artifact.GATE_PAGE,
    schema.Artifact.GATE_TABLE,
    schema.Artifact.GOLDEN,
    schema.Artifact.TRIAGE,
    schema.Artifact.TRIAGE_PAGE,
    schema.Artifact.LAYERS,
    schema.Artifact.MATERIALS,
    schema.Artifact.NAMES,
    schema.Artifact.NOISE,
    schema.Artifact.PRECISION_KEPT,
    schema.Artifact.PRECISION_RESULT,
    schema.Artifact.PROMOTION,
    schema.Artifact.PROOF,
    schema.Artifact.REDUCE_RESULT,
    schema.Artifact.REDUCE_STEPS,
    schema.Artifact.REPORT_DATA,
    schema.Artifact.SENSITIVITY,
    schema.Artifact.SENSITIVITY_RESULT,
    schema.Artifact.SPEC,
    schema.Artifact.TACTICS,
    schema.Artifact.ACCURACY_FINDINGS,
    schema.Artifact.ACCURACY_RESULT,
    schema.Artifact.ACCURACY_TENSORS,
)
"""Records and statistics, which no rule drops, however large they are."""


@dataclass(frozen=True, kw_only=True)
class PruneConfig(Record):
    """The rule of what is dropped.

    Attributes:
        older_than_days: Only runs that ended so long ago.
        verdicts: Only runs with one of these verdicts.
        larger_than_bytes: Only artifacts that are larger.
        kinds: Only runs of these kinds.
        experiment: Only runs of this experiment.
        apply: Drop them; without, it is only said what would be dropped.
    """

    older_than_days: float = 30.0
    verdicts: tuple[Verdict, ...] = ("bad", "error")
    larger_than_bytes: int = 1 << 20
    kinds: tuple[str, ...] = ("build", "iteration", "compare", "reduce", "gate")
    experiment: str | None = None
    apply: bool = False

    def __post_init__(self) -> None:
        if self.older_than_days < 0 or self.larger_than_bytes < 0:
            raise errors.ConfigError(
                f"older_than_days={self.older_than_days} and larger_than_bytes={self.larger_than_bytes}; expected 0 or more."
            )
        for verdict in self.verdicts:
            if verdict not in VERDICTS:
                raise errors.ConfigError(f"verdicts: {verdict!r}. {errors.near(verdict, VERDICTS)}")
        for kind in self.kinds:
            if kind not in schema.KINDS:
                raise errors.ConfigError(f"kinds: {kind!r}. {errors.near(kind, schema.KINDS)}")

    @property
    def rule(self) -> str:
        """The rule in words, as the manifest keeps it."""
        return (
            f"artifacts larger than {size(self.larger_than_bytes)} of {' and '.join(self.verdicts)} runs, "
            f"{self.older_than_days:g} days after they ended"
        )


@dataclass(frozen=True, kw_only=True)
class PrunedRun(Record):
    """A run, and what of it falls under the rule.

    Attributes:
        id: Its id.
        name: Its name.
        verdict: Its verdict.
        artifacts: What is dropped, or would be.
        why_not: Why nothing could be dropped, if that went wrong.
    """

    id: str
    name: str
    verdict: str
    artifacts: tuple[ArtifactEntry, ...]
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class PruneResult(OpResult):
    """What was dropped, or would be.

    Attributes:
        runs: Runs of which something falls under the rule.
        applied: Whether it was dropped.
        rule: The rule in words.
        spared: How many runs fall under the rule and are kept, since an accepted engine or another run needs them.
    """

    title: str = "prune"
    runs: tuple[PrunedRun, ...]
    applied: bool
    rule: str
    spared: int = 0

    @property
    def bytes(self) -> int:
        """How much room that makes."""
        return sum(entry.size for run in self.runs if not run.why_not for entry in run.artifacts)

    @property
    def verdict(self) -> Verdict:
        """``good`` unless something could not be dropped."""
        return "error" if any(run.why_not for run in self.runs) else "good"

    @property
    def headline(self) -> str:
        """How much is dropped of how many runs."""
        done = "dropped" if self.applied else "would be dropped"
        return f"{size(self.bytes)} of {len(self.runs)} runs {done}"

    def body(self) -> Iterable[str]:
        """The rule, and each run with what is dropped of it."""
        yield f"Rule: {self.rule}. {self.spared} runs are kept, since an accepted engine or another run needs them."
        yield from ("", "| run | name | verdict | dropped |", "|---|---|---|---|")
        for run in self.runs:
            names = ", ".join(f"{entry.path} ({size(entry.size)})" for entry in run.artifacts)
            name = run.name.replace("|", "\\|")
            yield f"| `{run.id[:8]}` | {name} | {run.verdict} | {run.why_not or names} |"
        if not self.applied and self.runs:
            yield from ("", "Nothing was changed: this was a dry run.")


def prune_runs(
    config: PruneConfig | None = None,
    *,
    tracker: Tracker,
    progress: OnProgress | None = None,
    now: Callable[[], float] = time.time,
) -> PruneResult:
    """Drop large artifacts of old bad runs, or say which would be dropped.

    Records, statistics and golden outputs stay, and so does every run that the registry points to, that an accepted one was
    built from, or whose engine another run reuses.

    Args:
        config: The rule.
        tracker: The memory.
        progress: Called after each run.
        now: The time, in seconds since the epoch.

    Raises:
        TrackingUnavailableError: If the store goes away; what was dropped until then is said in the manifests.
    """
    config = PruneConfig() if config is None else config
    before = now() - config.older_than_days * _DAY
    runs = tracker.find(config.experiment, status="finished")
    old = [info for info in runs if _falls_under(info, config, before)]
    needed = _runs_needed(tracker)
    pruned = []
    for number, info in enumerate(old, 1):
        if info.id not in needed and (found := _prune_run(info, config, tracker)) is not None:
            pruned.append(found)
        if progress is not None:
            progress(number, len(old))
    spared = sum(info.id in needed for info in old)
    return PruneResult(runs=tuple(pruned), applied=config.apply, rule=config.rule, spared=spared)


def _falls_under(info: RunInfo, config: PruneConfig, before: float) -> bool:
    return (
        info.verdict in config.verdicts
        and info.kind in config.kinds
        and info.end_time is not None
        and info.end_time < before
    )


def _runs_needed(tracker: Tracker) -> set[str]:
    """Ids of runs that accepted engines, or engines reused by other runs, come from. In any experiment."""
    needed = set()
    for _, version in tracker.accepted():
        needed |= {version.run_id, version.tags.get(schema.Tag.EVIDENCE, "")}
    for info in tracker.find():
        if (holder := info.tags.get(schema.Tag.REUSED_FROM)) is not None:
            needed.add(holder)
    return needed


def _prune_run(info: RunInfo, config: PruneConfig, tracker: Tracker) -> PrunedRun | None:
    try:
        large = _large_artifacts(tracker.load(info.id).manifest.artifacts, config)
        if large and config.apply:
            tracker.drop(info.id, {entry.path for entry in large}, config.rule)
    except errors.TrackingUnavailableError:
        raise
    except errors.TrackingError as exc:
        return PrunedRun(id=info.id, name=info.name, verdict=info.verdict or "", artifacts=(), why_not=str(exc))
    return PrunedRun(id=info.id, name=info.name, verdict=info.verdict or "", artifacts=large) if large else None


def _large_artifacts(entries: Iterable[ArtifactEntry], config: PruneConfig) -> tuple[ArtifactEntry, ...]:
    return tuple(entry for entry in entries if entry.size > config.larger_than_bytes and entry.path not in _KEPT)
