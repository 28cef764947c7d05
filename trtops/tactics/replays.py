"""Good and bad tactic records from files: ours, and Polygraphy's replay files.

The folders are those that Polygraphy's ``debug build`` sorts into: ``good/`` and ``bad/``, with other artifacts among
them. Files do not say in which order builds were made, so the table has none.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from trtops import errors
from trtops.tactics.record import read_record
from trtops.tactics.table import CampaignTable
from trtops.verdict import Verdict

Skipped: TypeAlias = tuple[tuple[str, str], ...]
"""Files that hold no tactics, as ``(path, why)``."""


def load_replays(good: str | Path, bad: str | Path) -> tuple[CampaignTable, Skipped]:
    """Read good and bad tactic records, from a file or a folder each. Builds are named by their files."""
    return _load_places({"good": Path(good), "bad": Path(bad)})


def load_replay_folder(folder: str | Path) -> tuple[CampaignTable, Skipped]:
    """Read ``good/`` and ``bad/`` in a folder; one of the two may be missing, if no build is bad."""
    good, bad = Path(folder) / "good", Path(folder) / "bad"
    if not (good.is_dir() or bad.is_dir()):
        raise errors.ConfigError(f"{folder}: expected folders good/ and bad/ in it, found neither.")
    places: dict[Verdict, Path] = {"good": good, "bad": bad}
    return _load_places({verdict: place for verdict, place in places.items() if place.is_dir()})


def _load_places(places: Mapping[Verdict, Path]) -> tuple[CampaignTable, Skipped]:
    table, skipped = CampaignTable(ordered=False), []
    for verdict, place in places.items():
        if not place.exists():
            raise errors.ConfigError(f"{place}: no such file or folder; expected tactic records.")
        files = [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else [place]
        for path in sorted(files):
            try:
                table.append(str(path), verdict, read_record(path))
            except errors.FormatError as exc:
                if path == place:
                    raise
                skipped.append((str(path), str(exc)))
    return table, tuple(sorted(skipped))
