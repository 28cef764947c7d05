"""Campaigns in the tracking store: a parent run, one child run per iteration, and all iterations in one table.

An iteration counts when its child run is complete. The table, an artifact of the parent, is for speed: reading a
thousand child runs takes ten seconds, reading the table milliseconds. It is rewritten while the campaign runs;
iterations that it lacks are read from their runs.
"""

import functools
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.tactics.record import TacticRecord
from trtops.tactics.table import CampaignTable
from trtops.tracking.base import Run, RunInfo, StoredRun, Tracker
from trtops.tracking.owner import host_of, is_abandoned
from trtops.tracking.schema import Artifact, Metric, Tag
from trtops.verdict import VERDICTS, Verdict

_KILLED = "The campaign's process ended in the middle of this iteration, which was repeated."


@dataclass(frozen=True)
class Iterations:
    """Runs of finished iterations by number, of killed ones, and the numbers of those in live processes."""

    whole: dict[int, RunInfo]
    marked: tuple[RunInfo, ...]
    running: frozenset[int]


def iterations(tracker: Tracker, campaign: RunInfo) -> Iterations:
    """Find a campaign's iterations, and close those of dead processes."""
    whole: dict[int, RunInfo] = {}
    marked: list[RunInfo] = []
    running: set[int] = set()
    children = tracker.find(campaign.experiment, parent=campaign.id, tags={Tag.KIND: "iteration"})
    # The oldest first: of two runs of an iteration, it counts.
    for info in reversed(children):
        info = closed_if_abandoned(tracker, info, _KILLED)
        if info.status == "running":
            running.add(_iteration_number(info))
        if info.status == "killed":
            marked.append(info)
        if info.status == "finished" and info.verdict is not None:
            whole.setdefault(_iteration_number(info), info)
    return Iterations(whole=dict(sorted(whole.items())), marked=tuple(marked), running=frozenset(running))


def closed_if_abandoned(tracker: Tracker, info: RunInfo, reason: str) -> RunInfo:
    """The run, closed first if it is running and its process is gone."""
    return tracker.close(info.id, reason) if info.status == "running" and is_abandoned(info) else info


def _iteration_number(info: RunInfo) -> int:
    text = info.tags.get(Tag.ITERATION, "")
    if not text.isdecimal():
        raise errors.StoreError(f"Run {info.id}: its tag {Tag.ITERATION} is {text!r}; expected a number.")
    return int(text)


def require_campaign(info: RunInfo) -> None:
    """Reject any run except a campaign."""
    if info.kind != "debug_build":
        raise errors.ConfigError(f"Run {info.id} is of kind {info.kind!r}; expected a campaign, of kind 'debug_build'.")


def read_config(tracker: Tracker, info: RunInfo) -> bytes | None:
    """The logged config of a campaign, or None; for a finished campaign, verified against the manifest."""
    if info.status == "finished":
        return tracker.load(info.id).read_bytes(Artifact.CAMPAIGN)
    return tracker.peek(info.id, Artifact.CAMPAIGN)


def load_table(tracker: Tracker, campaign_id: str) -> CampaignTable:
    """The table of a campaign, finished or not; builds are named by their runs' ids. Do not change it."""
    info = tracker.info(campaign_id)
    require_campaign(info)
    if info.status == "finished":
        return _parse_table(tracker.load(campaign_id).read_bytes(Artifact.CAMPAIGN_TABLE))
    return table_of(tracker, info, iterations(tracker, info).whole.values())


def table_of(tracker: Tracker, campaign: RunInfo, whole: Iterable[RunInfo]) -> CampaignTable:
    """The table of an unfinished campaign: the last written one, completed from its iterations' runs."""
    runs = {info.id: info for info in whole}
    table = CampaignTable()
    if (data := tracker.peek(campaign.id, Artifact.CAMPAIGN_TABLE)) is not None:
        # The runs have the same data as a damaged table.
        with suppress(errors.FormatError):
            table = CampaignTable.from_bytes(data)
    # A run that was deleted since must not count.
    if not set(table.names) <= set(runs):
        table = CampaignTable()
    table_names = set(table.names)
    for run_id in runs:
        if run_id not in table_names:
            append(table, tracker.load(run_id))
    return table


def append(table: CampaignTable, run: StoredRun) -> None:
    """Add a build's run to a table: its verdict, and its tactics unless it crashed before it had any."""
    verdict = run.info.verdict
    if verdict is None:
        raise errors.ConfigError(f"Run {run.info.id} has no verdict, so its tactics cannot be compared.")
    record = load_record(run)
    table.append(run.info.id, verdict if record is not None else "error", record)


def made_on(info: RunInfo) -> str:
    """The origin of a build: host, kind of device, release; the blocks of a diff."""
    parts = (host_of(info), info.fact(Tag.DEVICE_SHA256), info.fact(Tag.BACKEND_VERSION))
    return " ".join(part[:24] for part in parts).strip()


def load_record(run: StoredRun) -> TacticRecord | None:
    """The tactics of a build's run; None if it failed before it had any."""
    return None if (data := run.get(Artifact.TACTICS)) is None else _parse_record(data)


# Builds with the same choices have the same file.
@functools.lru_cache(maxsize=256)
def _parse_record(data: bytes) -> TacticRecord:
    return TacticRecord.from_json(data)


# Parsing takes longer than reading, and tables of finished campaigns do not change.
@functools.lru_cache(maxsize=4)
def _parse_table(data: bytes) -> CampaignTable:
    return CampaignTable.from_bytes(data)


def golden_file(run: StoredRun) -> Path | None:
    """The logged golden outputs of a campaign, or None. FormatError if they are not an archive, at any size."""
    if Artifact.GOLDEN not in run.manifest:
        return None
    file = run.local_path(Artifact.GOLDEN)
    with open(file, "rb") as stream:
        if stream.read(2) != b"PK":
            raise errors.FormatError(f"Run {run.info.id}: {Artifact.GOLDEN} is not an archive of arrays.")
    return file


def log_table(run: Run, table: CampaignTable) -> None:
    """Write a campaign's present table, and the number of builds with each verdict."""
    run.log_bytes(table.to_bytes(), Artifact.CAMPAIGN_TABLE)
    run.log_metrics({(Metric.ITERATIONS, verdict): float(count) for verdict, count in counts(table).items()})


def counts(table: CampaignTable) -> dict[Verdict, int]:
    """The number of builds with each verdict."""
    return {verdict: len(table.named(verdict)) for verdict in VERDICTS}
