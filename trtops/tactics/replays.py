"""Good and bad tactic records from files: ours, and Polygraphy's replay files.

The folders are those that Polygraphy's ``debug build`` sorts into: ``good/`` and ``bad/``, with other artifacts among
them. Files do not say in which order builds were made, so the table has none.
"""

from pathlib import Path
from typing import TypeAlias

from trtops import errors
from trtops.tactics.record import read_record
from trtops.tactics.table import CampaignTable
from trtops.verdict import Verdict

Skipped: TypeAlias = tuple[tuple[str, str], ...]
"""Files that hold no tactics, as ``(path, why)``."""


def load_replay_folder(folder: str | Path) -> tuple[CampaignTable, Skipped]:
    """Read ``good/`` and ``bad/`` in a folder; one of the two may be missing, if no build is bad."""
    good, bad = Path(folder, "good"), Path(folder, "bad")
    if not good.is_dir() and not bad.is_dir():
        raise errors.ConfigError(f"{folder}: expected folders good/ and bad/ in it, found neither.")
    return load_replays(good if good.is_dir() else None, bad if bad.is_dir() else None)


def load_replays(good: str | Path | None = None, bad: str | Path | None = None) -> tuple[CampaignTable, Skipped]:
    """Read good and bad tactic records, from a file or a folder each. Builds are named by their files."""
    sources: dict[Verdict, Path] = {"good": Path(good)} if good is not None else {}
    sources |= {"bad": Path(bad)} if bad is not None else {}
    table, skipped = CampaignTable(ordered=False), []
    for verdict, source in sources.items():
        if not source.exists():
            raise errors.ConfigError(f"{source}: no such file or folder; expected tactic records.")
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if path.is_dir():
                continue
            try:
                table.append(str(path), verdict, read_record(path))
            except errors.FormatError as exc:
                if path == source:
                    raise
                skipped.append((str(path), str(exc)))
    return table, tuple(sorted(skipped))
