"""Campaigns in the memory: a parent run, one child run per iteration, and all of them in one table.

The child runs are the truth: an iteration counts when its run is whole. The table beside them, an artifact of the
parent, is there for speed: reading a thousand child runs takes ten seconds, reading the table some milliseconds. It is
written again and again while the campaign runs; whoever reads a campaign that is not finished takes from the table what it
has and the rest from the child runs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trtops import errors
from trtops.record import sha256
from trtops.tactics.record import TacticRecord
from trtops.tactics.table import CampaignTable
from trtops.tracking import schema
from trtops.tracking.base import Run, RunInfo, StoredRun, Tracker, Verdict
from trtops.tracking.owner import is_abandoned

_KILLED = "The campaign's process ended in the middle of this iteration; it was made again."


@dataclass(frozen=True)
class Iterations:
    """The iterations that a campaign has so far.

    Attributes:
        whole: Runs of finished iterations, by number.
        marked: Runs of iterations whose process was killed, and which are marked so.
        running: Numbers of iterations that a living process is working on.
    """

    whole: dict[int, RunInfo]
    marked: tuple[RunInfo, ...]
    running: frozenset[int]


def iterations(tracker: Tracker, campaign: RunInfo) -> Iterations:
    """Find a campaign's iterations, and close those whose process is gone."""
    whole: dict[int, RunInfo] = {}
    marked: list[RunInfo] = []
    running: set[int] = set()
    found = tracker.find(campaign.experiment, parent=campaign.id, tags={schema.Tag.KIND: "iteration"})
    for info in reversed(found):  # the oldest first: it is the one that counts, should there ever be two
        if info.status == "running":
            if not is_abandoned(info):
                running.add(_number(info))
                continue
            info = tracker.close(info.id, _KILLED)
        if info.status == "killed":
            marked.append(info)
        if info.status == "finished" and info.verdict is not None:
            whole.setdefault(_number(info), info)
    return Iterations(whole=dict(sorted(whole.items())), marked=tuple(marked), running=frozenset(running))


def _number(info: RunInfo) -> int:
    text = info.tags.get(schema.Tag.ITERATION, "")
    if not text.isdecimal():
        raise errors.StoreError(
            f"Run {info.id} is an iteration whose tag {schema.Tag.ITERATION} is {text!r}; expected a number."
        )
    return int(text)


def load_table(tracker: Tracker, campaign_id: str) -> CampaignTable:
    """The table of a campaign, finished or not; builds are named after their runs.

    Raises:
        RunNotFoundError: If there is no such run.
        ConfigError: If the run is no campaign.
        IncompleteRunError: If a finished campaign's table is damaged.
    """
    info = tracker.info(campaign_id)
    if info.tags.get(schema.Tag.KIND) != "debug_build":
        raise errors.ConfigError(
            f"Run {campaign_id} is of kind {info.tags.get(schema.Tag.KIND)!r}; expected a campaign, of kind 'debug_build'."
        )
    if info.status == "finished":
        return _parsed(tracker.load(campaign_id).read_bytes(schema.Artifact.CAMPAIGN_TABLE))
    return table_of(tracker, info, iterations(tracker, info).whole.values())


def table_of(tracker: Tracker, campaign: RunInfo, whole: Iterable[RunInfo]) -> CampaignTable:
    """The table of a campaign that is not finished: what was written of it, and what is missing from its iterations' runs.

    Args:
        tracker: The memory.
        campaign: The parent run.
        whole: Its finished iterations.
    """
    runs = {info.id: info for info in whole}
    table = _written(tracker, campaign)
    if not set(table.names) <= set(runs):  # a run was deleted since
        table = CampaignTable()
    known = set(table.names)
    for run_id in runs:
        if run_id not in known:
            append(table, tracker.load(run_id))
    return table


def _written(tracker: Tracker, campaign: RunInfo) -> CampaignTable:
    data = tracker.peek(campaign.id, schema.Artifact.CAMPAIGN_TABLE)
    if data is None:
        return CampaignTable()
    try:
        return CampaignTable.from_bytes(data)
    except errors.FormatError:
        return CampaignTable()  # the runs say the same


def append(table: CampaignTable, run: StoredRun) -> None:
    """Add a build's run to a table: its verdict and, unless it crashed before it had any, its tactics.

    Raises:
        ConfigError: If the run has no verdict.
    """
    verdict = run.info.verdict
    if verdict is None:
        raise errors.ConfigError(f"Run {run.info.id} has no verdict, so it says nothing about its tactics.")
    record = load_record(run)
    table.append(run.info.id, verdict if record is not None else "error", record)


def load_record(run: StoredRun) -> TacticRecord | None:
    """The tactics of a build's run, with what the campaign varied as further settings; None if it left none."""
    if all(entry.path != schema.Artifact.TACTICS for entry in run.manifest.artifacts):
        return None
    record = _record(run.read_bytes(schema.Artifact.TACTICS))
    return with_varied(record, json.loads(run.info.tags.get(schema.Tag.VARIED, "[]")))


def with_varied(record: TacticRecord, varied: Iterable[Iterable[str]]) -> TacticRecord:
    """A record with what a campaign varied as settings, so that the diff weighs it too."""
    settings = dict(record.settings) | {str(name): str(value) for name, value in varied}
    return replace(record, settings=tuple(sorted(settings.items())))


@functools.lru_cache(maxsize=256)  # builds that chose alike have the same file
def _record(data: bytes) -> TacticRecord:
    return TacticRecord.from_json(data)


_tables: dict[str, CampaignTable] = {}


def _parsed(data: bytes) -> CampaignTable:
    """A table, parsed once for as long as the next few have not been read; tables of finished campaigns do not change."""
    key = sha256(data)
    table = _tables.pop(key, None) or CampaignTable.from_bytes(data)
    _tables[key] = table
    while len(_tables) > 4:
        del _tables[next(iter(_tables))]
    return table


def log_table(run: Run, table: CampaignTable) -> None:
    """Write a campaign's table as it stands, and how many verdicts there are of each kind."""
    run.log_bytes(table.to_bytes(), schema.Artifact.CAMPAIGN_TABLE)
    run.log_metrics({("iterations", verdict): float(count) for verdict, count in counts(table).items()})


def counts(table: CampaignTable) -> dict[Verdict, int]:
    """How many builds of a table have each verdict."""
    verdicts: tuple[Verdict, ...] = ("good", "bad", "error")
    return {verdict: len(table.named(verdict)) for verdict in verdicts}
