"""Retention: drop large artifacts of old bad runs. Records stay, and the manifest lists what was dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from trtops import errors
from trtops.ops.result import OnProgress, OpResult
from trtops.record import Record
from trtops.reports.document import Section, Table
from trtops.tables import size
from trtops.tracking import schema
from trtops.tracking.base import ArtifactEntry, Tracker
from trtops.verdict import Verdict

_RECORDS = (".json", ".jsonl", ".log", ".md", ".table", ".txt")
"""Suffixes of records and statistics, which are never dropped."""
_DATA = (schema.Artifact.MODEL, schema.Artifact.MATERIALS_FOLDER)
"""Folders of models and data of users, which are not records."""


@dataclass(frozen=True, kw_only=True)
class PruneConfig(Record):
    """What is dropped.

    Attributes:
        older_than_days: Only runs that ended at least this many days ago.
        verdicts: Only runs with one of these verdicts.
        larger_than_bytes: Only larger artifacts.
        kinds: Only runs of these kinds.
        experiment: Only runs of this experiment.
        apply: Drop the artifacts; otherwise only list them.
    """

    older_than_days: float = 30.0
    verdicts: tuple[Verdict, ...] = ("bad", "error")
    larger_than_bytes: int = 1 << 20
    kinds: tuple[str, ...] = ("build", "iteration", "compare", "reduce", "gate")
    experiment: str | None = None
    apply: bool = False

    def __post_init__(self) -> None:
        for name in ("older_than_days", "larger_than_bytes"):
            if getattr(self, name) < 0:
                raise errors.ConfigError(f"{name} is {getattr(self, name)}; expected 0 or more.")

    @property
    def rule(self) -> str:
        """The rule in words, as stored in the manifest."""
        return (
            f"artifacts larger than {size(self.larger_than_bytes)} of {' and '.join(self.verdicts)} runs, "
            f"{self.older_than_days:g} days after they ended"
        )


@dataclass(frozen=True, kw_only=True)
class PrunedRun(Record):
    """A run with the artifacts that are dropped; ``why_not`` is empty unless they could not be."""

    id: str
    name: str
    verdict: str
    artifacts: tuple[ArtifactEntry, ...]
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class PruneResult(OpResult):
    """The result of pruning.

    Attributes:
        runs: Runs with artifacts that match the rule.
        applied: Whether the artifacts were dropped.
        rule: The rule in words.
        spared: Number of matching runs that are kept because an accepted engine or another run needs them.
    """

    title: str = "prune"
    runs: tuple[PrunedRun, ...]
    applied: bool
    rule: str
    spared: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the dropped artifacts."""
        return sum(entry.size for run in self.runs if not run.why_not for entry in run.artifacts)

    @property
    def verdict(self) -> Verdict:
        """``good`` unless something could not be dropped."""
        return "error" if any(run.why_not for run in self.runs) else "good"

    @property
    def headline(self) -> str:
        """Bytes and number of runs."""
        return f"{size(self.bytes)} of {len(self.runs)} runs {'dropped' if self.applied else 'would be dropped'}"

    def sections(self) -> Iterable[Section]:
        """The rule, and the artifacts of each run."""
        text = f"Rule: {self.rule}. {self.spared} runs are kept because an accepted engine or another run needs them."
        if not self.applied:
            text += " This was a dry run: nothing was changed."
        rows = []
        for run in self.runs:
            names = ", ".join(f"{entry.path} ({size(entry.size)})" for entry in run.artifacts)
            rows.append((run.id[:8], run.name, run.verdict, run.why_not or names))
        yield Section(text=text, table=Table(columns=("run", "name", "verdict", "dropped"), rows=tuple(rows)))


def prune_runs(
    config: PruneConfig | None = None,
    *,
    tracker: Tracker,
    progress: OnProgress | None = None,
    now: Callable[[], float] = time.time,
) -> PruneResult:
    """Drop large artifacts of old bad runs, or list those that would be dropped.

    Records, statistics and golden outputs are kept, and so is every run that the registry points to, that an accepted
    engine was built from, or whose engine another run reuses.

    Args:
        config: The rule.
        tracker: The tracking store.
        progress: Called after each run.
        now: The time in seconds since the epoch.

    Raises:
        TrackingUnavailableError: If the store becomes unavailable. Manifests say what was dropped before.
    """
    config = PruneConfig() if config is None else config
    before = now() - config.older_than_days * 86400.0
    needed = {run for _, v in tracker.accepted() for run in (v.run_id, v.tags.get(schema.Tag.EVIDENCE, ""))}
    needed |= {info.tags.get(schema.Tag.REUSED_FROM, "") for info in tracker.find()}
    matching = [
        info
        for info in tracker.find(config.experiment, status="finished")
        if info.verdict in config.verdicts and info.kind in config.kinds and (info.end_time or before) < before
    ]
    pruned = []
    for number, info in enumerate(matching, 1):
        if info.id not in needed:
            large: tuple[ArtifactEntry, ...] = ()
            why_not = ""
            try:
                large = tuple(
                    entry
                    for entry in tracker.load(info.id).manifest.artifacts
                    if entry.size > config.larger_than_bytes
                    and (entry.path.startswith(_DATA) or PurePosixPath(entry.path).suffix not in _RECORDS)
                    and entry.path != schema.Artifact.GOLDEN
                )
                if large and config.apply:
                    tracker.drop(info.id, {entry.path for entry in large}, config.rule)
            except errors.TrackingUnavailableError:
                raise
            except errors.TrackingError as exc:
                large, why_not = (), str(exc)
            if large or why_not:
                verdict = info.verdict or ""
                pruned.append(PrunedRun(id=info.id, name=info.name, verdict=verdict, artifacts=large, why_not=why_not))
        if progress is not None:
            progress(number, len(matching))
    spared = sum(info.id in needed for info in matching)
    return PruneResult(runs=tuple(pruned), applied=config.apply, rule=config.rule, spared=spared)
