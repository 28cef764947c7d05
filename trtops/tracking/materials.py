"""What a build was given beside its model, and how it was evaluated: enough to do both again from the run alone.

Caches that decide a build are logged as they were given. Data made of a seed is made again; other data is logged where it
is small enough, and told by its digest in any case.
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
"""Bytes of input data that a run keeps."""


@dataclass(frozen=True, kw_only=True)
class Material(Record):
    """One thing that a build was given.

    Attributes:
        name: What it is: ``timing_cache``, ``calibration_cache``, ``replay``, ``denied``, ``data`` or ``golden``.
        sha256: Its digest: of the file's bytes, or of what is in it where its name says so (``data``, ``replay``, ``denied``).
        path: The artifact that holds it; empty if it was not logged.
    """

    name: str
    sha256: str
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Materials(Record):
    """What a build was given.

    Attributes:
        check: How it was evaluated, as the JSON of its config.
        given: Caches, data and golden outputs.
    """

    check: Mapping[str, Any]
    given: tuple[Material, ...] = field(default=())

    def of(self, name: str) -> Material | None:
        """The material of a name, if the build was given one."""
        return next((each for each in self.given if each.name == name), None)


def log_materials(
    run: Run, *, caches: Caches, check: Record, feeds: Iterable[Feed], data: str | None, golden: str | None
) -> None:
    """Log what a build is given.

    Args:
        run: Its run.
        caches: What the builder is given.
        check: How the engine will be evaluated.
        feeds: The inputs that it will be evaluated on; read once.
        data: Where they come from; None if they are made of a seed, and need not be kept.
        golden: A file of golden outputs, if they are not computed.
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
    files = {"timing_cache": caches.timing, "calibration_cache": caches.calibration}
    for name, data in files.items():
        if data is not None:
            path = f"{schema.Artifact.MATERIALS_FOLDER}{name.replace('_', '.')}"
            run.log_bytes(data, path)
            yield Material(name=name, sha256=sha256(data), path=path)
    if caches.replay is not None:
        path = f"{schema.Artifact.MATERIALS_FOLDER}replay.json"
        run.log_json(caches.replay, path)
        yield Material(name="replay", sha256=caches.replay.digest, path=path)
    if caches.denied.entries:
        path = f"{schema.Artifact.MATERIALS_FOLDER}denied.json"
        run.log_json(caches.denied, path)
        yield Material(name="denied", sha256=caches.denied.digest, path=path)


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
    """What :func:`log_materials` wrote; None for a run that was logged before there was such a thing."""
    return None if data is None else Materials.from_dict(json.loads(data))
