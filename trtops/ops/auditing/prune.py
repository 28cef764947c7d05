"""Retention: delete engines of old runs. All other files stay, so the engine can be rebuilt."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from trtops import errors
from trtops.ops.arguments import checked_arguments
from trtops.ops.auditing.integrity import BUILDS
from trtops.ops.result import OpResult
from trtops.reports.document import Table
from trtops.tables import counted, markdown_table, size
from trtops.tracking import builds, schema
from trtops.tracking.base import ArtifactEntry, Tracker
from trtops.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class PruneResult(OpResult):
    """Deleted engines, or those to delete, by run id."""

    engines: dict[str, ArtifactEntry]
    applied: bool
    verdict: Verdict = "good"

    @property
    def headline(self) -> str:
        """Number and bytes of the engines."""
        total = size(sum(entry.size for entry in self.engines.values()))
        return f"{counted(len(self.engines), 'engine')} ({total}) {'deleted' if self.applied else 'would be deleted'}"

    def overview(self) -> Table:
        """Return a row for each engine."""
        rows = tuple((run[:8], entry.path, size(entry.size)) for run, entry in self.engines.items())
        return Table(columns=("run", "engine", "size"), rows=rows)

    def body(self) -> Iterable[str]:
        """A table of the engines."""
        engines = self.overview()
        yield markdown_table(engines.columns, engines.rows)
        yield "" if self.applied else "This was a dry run: nothing was deleted."


@checked_arguments
def prune_runs(*, tracker: Tracker, older_than_days: float = 30.0, apply: bool = False) -> PruneResult:
    """List engines of old runs, except promoted, accepted and reused ones.

    ``apply`` deletes them. Raises AccessDeniedError if the server has accounts, and this one is no administrator's.
    """
    if not older_than_days >= 0:
        raise errors.ConfigError(f"older_than_days is {older_than_days}; expected 0 or more.")
    if apply:
        tracker.check_access()
    before = round(time.time() - older_than_days * 86400.0, 3)  # as ends of runs: a run may end in this millisecond
    # Engines that are deployed, are the evidence for one, or belong to a run that reused them instead of a copy.
    needed: set[str] = set()
    for _, version in tracker.accepted():
        needed |= {version.run_id, version.tags.get(schema.Tag.EVIDENCE, "")}
    runs = tracker.find()
    needed |= {info.tags.get(schema.Tag.REUSED_FROM, "") for info in runs}
    engines = {}
    for info in runs:
        if info.status != "finished" or info.kind not in BUILDS or info.kind == "promote" or info.id in needed:
            continue
        if (info.end_time or before) > before:
            continue
        try:
            stored = tracker.load(info.id)
        except errors.IncompleteRunError:
            continue  # an audit reports it
        entry = builds.engine_entry(stored.manifest)
        if entry is not None:
            engines[info.id] = entry
            # Only the engine: all that rebuilds it stays, and the manifest keeps its digest.
            if apply:
                tracker.drop(info.id, [entry.path])
    return PruneResult(title="prune", engines=engines, applied=apply)
