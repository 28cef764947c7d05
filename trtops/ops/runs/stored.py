"""Runs: what the memory holds, found, put side by side, and re-evaluated.

Runs are given by their ids or what those begin with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.check import Evaluation
from trtops.record import Record
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, RunStatus, Tracker, Verdict


@dataclass(frozen=True, kw_only=True)
class Row(Record):
    """One run in a list.

    Attributes:
        id: Its id.
        experiment: Its experiment.
        kind: What it is of.
        name: Its name.
        status: How it ended.
        verdict: Its verdict; empty if there is none.
        start_time: Seconds since the epoch.
        parent: Id of its parent run; empty if it has none.
    """

    id: str
    experiment: str
    kind: str
    name: str
    status: str
    verdict: str
    start_time: float
    parent: str = ""


def list_runs(
    tracker: Tracker,
    *,
    experiment: str | None = None,
    kind: str | None = None,
    verdict: str | None = None,
    status: RunStatus | None = None,
    parent: str | None = None,
    tags: Mapping[str, str] | None = None,
    limit: int | None = 50,
) -> list[Row]:
    """Runs, newest first.

    Args:
        tracker: The memory.
        experiment: Only of this experiment.
        kind: Only of this kind (:data:`trtops.tracking.schema.KINDS`).
        verdict: Only with this verdict.
        status: Only with this status.
        parent: Only below this run, given by its id or what that begins with.
        tags: Only with these tags.
        limit: So many at most.
    """
    wanted = dict(tags or {})
    wanted |= {tag: value for tag, value in ((schema.Tag.KIND, kind), (schema.Tag.VERDICT, verdict)) if value}
    parent = None if parent is None else tracker.whole_id(parent)
    found = tracker.find(experiment, tags=wanted, parent=parent, status=status, limit=limit)
    return [_list_row(info) for info in found]


def _list_row(info: RunInfo) -> Row:
    return Row(
        id=info.id,
        experiment=info.experiment,
        kind=info.tags.get(schema.Tag.KIND, ""),
        name=info.name,
        status=info.status,
        verdict=info.verdict or "",
        start_time=info.start_time,
        parent=info.parent or "",
    )


@dataclass(frozen=True, kw_only=True)
class Line(Record):
    """One param or number of several runs.

    Attributes:
        name: Its name; of a number, its parts with ``/`` between them.
        kind: ``param`` or ``metric``.
        values: What each run has; empty where it has none.
        same: Whether all have the same.
    """

    name: str
    kind: str
    values: tuple[str, ...]
    same: bool


def side_by_side(run_ids: Sequence[str], tracker: Tracker) -> list[Line]:
    """Params, then numbers, of runs side by side.

    Raises:
        RunNotFoundError: If one is not there.
    """
    infos = [tracker.info(tracker.whole_id(run_id)) for run_id in run_ids]
    params = [{name: value for name, value in info.params.items()} for info in infos]
    metrics = [{"/".join(name): f"{value:.6g}" for name, value in info.metrics.items()} for info in infos]
    tables: tuple[tuple[str, list[dict[str, str]]], ...] = (("param", params), ("metric", metrics))
    lines = []
    for kind, held in tables:
        for name in sorted({name for each in held for name in each}):
            values = tuple(each.get(name, "") for each in held)
            lines.append(Line(name=name, kind=kind, values=values, same=len(set(values)) == 1))
    return lines


@dataclass(frozen=True, kw_only=True)
class Reevaluated(Record):
    """A stored comparison, re-evaluated.

    Attributes:
        id: The run.
        name: Its name.
        before: Its verdict as it was logged.
        verdict: Its verdict now.
        reasons: Why it is bad now.
    """

    id: str
    name: str
    before: str
    verdict: Verdict
    reasons: tuple[str, ...]


def reevaluate(run_ids: Iterable[str], tolerances: Tolerances, tracker: Tracker) -> list[Reevaluated]:
    """Re-evaluate stored comparisons by other tolerances; nothing is run, and nothing is changed in the memory.

    Raises:
        RunNotFoundError: If a run is not there.
        IncompleteRunError: If it is not whole, or holds no comparison.
    """
    evaluated = []
    for run_id in run_ids:
        stored = tracker.load(tracker.whole_id(run_id))
        report = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY)).report.evaluate(tolerances)
        evaluated.append(
            Reevaluated(
                id=stored.info.id,
                name=stored.info.name,
                before=stored.info.verdict or "",
                verdict=report.verdict,
                reasons=report.reasons,
            )
        )
    return evaluated
