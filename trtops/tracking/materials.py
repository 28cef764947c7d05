"""The inputs of a build other than its model, and how it was evaluated: enough to repeat both from the run alone.

Caches are logged unchanged. Random data is made again from its seed. Other data is logged if it is small enough; its
digest is always logged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trtops.backend.base import Caches, Feed
from trtops.calibration.data import FeedDigest
from trtops.json import to_json
from trtops.record import Record, sha256, sha256_file, to_jsonable
from trtops.tracking import schema
from trtops.tracking.base import Run

LARGEST_DATA = 64 << 20
"""Maximum bytes of input data in a run."""


@dataclass(frozen=True, kw_only=True)
class Material(Record):
    """One input of a build: a cache, ``replay``, ``denied``, ``data`` or ``golden``; its path is empty if not logged.

    The digest is that of the file's bytes, for ``data``, ``replay`` and ``denied`` that of their content.
    """

    name: str
    sha256: str
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Materials(Record):
    """The inputs of a build: the config of its evaluation as JSON; and caches, data and golden outputs."""

    check: Mapping[str, Any]
    given: tuple[Material, ...] = field(default=())

    def of(self, name: str) -> Material | None:
        """The input with this name, or None."""
        return next((each for each in self.given if each.name == name), None)


def log_materials(
    run: Run, *, caches: Caches, check: Record, feeds: Iterable[Feed], data: str | None, golden: str | None
) -> None:
    """Log the inputs of a build.

    ``feeds`` are the data for the evaluation, read once; ``data`` is their source, None if they are random and need not
    be kept. ``golden`` is a file of golden outputs, if they are not computed.
    """
    given = [*_log_caches(run, caches), _log_data(run, feeds, keep=data is not None)]
    if golden is not None:
        path = f"{schema.Artifact.MATERIALS_FOLDER}golden{Path(golden).suffix}"
        run.log_file(golden, path)
        given.append(Material(name="golden", sha256=sha256_file(golden), path=path))
    kept = to_jsonable(check)
    assert isinstance(kept, dict)
    run.log_json(Materials(check=kept, given=tuple(given)), schema.Artifact.MATERIALS)


def _log_caches(run: Run, caches: Caches) -> Iterable[Material]:
    for name, data in (("timing_cache", caches.timing), ("calibration_cache", caches.calibration)):
        if data is not None:
            path = f"{schema.Artifact.MATERIALS_FOLDER}{name.replace('_', '.')}"
            run.log_bytes(data, path)
            yield Material(name=name, sha256=sha256(data), path=path)
    for name, record in (("replay", caches.replay), ("denied", caches.denied if caches.denied.entries else None)):
        if record is not None:
            path = f"{schema.Artifact.MATERIALS_FOLDER}{name}.json"
            run.log_json(record, path)
            yield Material(name=name, sha256=record.digest, path=path)


def _log_data(run: Run, feeds: Iterable[Feed], *, keep: bool) -> Material:
    kept: list[dict[str, Any]] = []
    digest, size = FeedDigest(), 0
    for feed in feeds:
        digest.add(feed)
        if not keep:
            continue
        arrays = {name: np.asarray(array) for name, array in feed.items()}
        size += sum(array.nbytes for array in arrays.values())
        keep = size <= LARGEST_DATA
        kept = [*kept, arrays] if keep else []
    path = f"{schema.Artifact.MATERIALS_FOLDER}data.json" if keep and kept else ""
    if path:
        run.log_bytes(to_json(kept).encode("utf-8"), path)
    return Material(name="data", sha256=digest.hexdigest(), path=path)


def read_materials(data: bytes | None) -> Materials | None:
    """Read what :func:`log_materials` wrote; None for a run without it."""
    return None if data is None else Materials.from_dict(json.loads(data))
