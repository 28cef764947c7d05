"""Good and bad tactic records from files: ours, and Polygraphy's replay files.

The folders are those that Polygraphy's ``debug build`` sorts into: ``good/`` and ``bad/``, with other artifacts among
them. Files do not say in which order builds were made, so the table has none. They are read in the order of their
digests, good ones first, so that a file's name decides nothing but the name of its build.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.record import sha256_file
from trtops.tactics.record import TacticChoice, TacticRecord, TensorFormat
from trtops.tactics.table import CampaignTable
from trtops.verdict import Verdict


@dataclass(frozen=True)
class LoadedReplays:
    """A table, and the files that were skipped.

    Attributes:
        table: The builds, named by their files; without an order of arrival.
        skipped: Files that hold no tactics, as ``(path, why)``.
    """

    table: CampaignTable
    skipped: tuple[tuple[str, str], ...]


def load_replays(good: str | Path, bad: str | Path) -> LoadedReplays:
    """Read good and bad tactic records."""
    return _load_places({"good": Path(good), "bad": Path(bad)})


def load_replay_folder(folder: str | Path) -> LoadedReplays:
    """Read ``good/`` and ``bad/`` in a folder; one of the two may be missing, if no build is bad."""
    good, bad = Path(folder) / "good", Path(folder) / "bad"
    if not (good.is_dir() or bad.is_dir()):
        raise errors.ConfigError(f"{folder}: expected folders good/ and bad/ in it, found neither.")
    places: dict[Verdict, Path] = {"good": good, "bad": bad}
    return _load_places({verdict: place for verdict, place in places.items() if place.is_dir()})


def read_record(path: str | Path) -> TacticRecord:
    """Read one tactic record: ours, or a replay file of Polygraphy's."""
    try:
        data = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise errors.FormatError(f"{path}: not a tactic record: not JSON ({exc}).") from None
    if not isinstance(data, dict) or not {"replay", "mechanism"} & data.keys():
        raise errors.FormatError(f"{path}: not a tactic record: expected a JSON object with 'replay' or 'mechanism'.")
    try:
        return _record_from_replay(data["replay"]) if "replay" in data else TacticRecord.from_dict(data)
    except (errors.FormatError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise errors.FormatError(f"{path}: a damaged tactic record: {exc!r}.") from None


def _load_places(places: Mapping[Verdict, Path]) -> LoadedReplays:
    table, skipped = CampaignTable(ordered=False), []
    for verdict, place in places.items():
        for path in _files_by_digest(place):
            try:
                table.append(str(path), verdict, read_record(path))
            except errors.FormatError as exc:
                if path == place:
                    raise
                skipped.append((str(path), str(exc)))
    return LoadedReplays(table=table, skipped=tuple(sorted(skipped)))


def _files_by_digest(place: Path) -> Sequence[Path]:
    if not place.exists():
        raise errors.ConfigError(f"{place}: no such file or folder; expected tactic records.")
    if not place.is_dir():
        return [place]
    return sorted((path for path in place.rglob("*") if path.is_file()), key=lambda path: (_content_digest(path), path))


def _content_digest(path: Path) -> str:
    """The content's digest; empty for a file that cannot be read, which is reported when it is."""
    try:
        return sha256_file(path)
    except OSError:
        return ""


def _record_from_replay(replay: Mapping[str, Any]) -> TacticRecord:
    """The replay file's content: layer names to algorithms, in the engine's order."""
    return TacticRecord(
        mechanism="algorithm_selector",
        backend_version="",
        device_sha256="",
        choices=tuple(_read_choice(layer, algorithm) for layer, algorithm in replay.items()),
    )


def _read_choice(layer: str, algorithm: Mapping[str, Any]) -> TacticChoice:
    implementation, tactic = int(algorithm["implementation"]), int(algorithm["tactic"])
    return TacticChoice(
        layer=layer,
        op="",
        tactic=f"implementation {implementation}, tactic {tactic}",
        implementation=implementation,
        tactic_id=tactic,
        inputs=tuple(map(_read_format, algorithm["inputs"])),
        outputs=tuple(map(_read_format, algorithm["outputs"])),
    )


def _read_format(info: Mapping[str, Any]) -> TensorFormat:
    return _tensor_format(
        str(info["dtype"]), tuple(info["strides"]), info.get("vectorized_dim"), info.get("components_per_element")
    )


@functools.lru_cache(maxsize=4096)  # a campaign's files repeat a few hundred formats a hundred thousand times
def _tensor_format(dtype: str, strides: tuple[Any, ...], dim: Any, components: Any) -> TensorFormat:
    return TensorFormat(
        dtype=dtype,
        strides=tuple(map(int, strides)),
        vectorized_dim=None if dim is None else int(dim),
        components_per_element=None if components is None else int(components),
    )
