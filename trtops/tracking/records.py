"""The data of runs: manifests, searches, registered versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from trtops import errors
from trtops.record import JSONValue, Record
from trtops.tracking.schema import KINDS, Kind, MetricName, Tag
from trtops.verdict import VERDICTS, Verdict

RunStatus: TypeAlias = Literal["running", "finished", "failed", "killed"]
Tags: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ArtifactEntry(Record):
    """One artifact in a manifest: its path inside the run, its bytes, and the SHA-256 of its content."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """Every artifact of a finished run but the manifest itself, and those deleted since; both ordered by path."""

    artifacts: tuple[ArtifactEntry, ...]
    dropped: tuple[ArtifactEntry, ...] = ()

    def to_dict(self) -> dict[str, JSONValue]:
        """The manifest as JSON values."""
        values = super().to_dict()
        if not self.dropped:  # a signature covers the manifest as it was first written
            del values["dropped"]
        return values

    def original(self) -> Manifest:
        """The manifest as it was when the run finished."""
        return Manifest(artifacts=tuple(sorted((*self.artifacts, *self.dropped), key=lambda entry: entry.path)))

    def without(self, paths: Collection[str]) -> Manifest:
        """The manifest after these artifacts were deleted."""
        gone = tuple(entry for entry in self.artifacts if entry.path in paths)
        return Manifest(artifacts=tuple(e for e in self.artifacts if e not in gone), dropped=(*self.dropped, *gone))

    def __contains__(self, path: object) -> bool:
        """True if there is an artifact with this path."""
        return any(entry.path == path for entry in self.artifacts)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A run without its artifacts, as searches return it. Times are in seconds since the epoch."""

    id: str
    experiment: str
    name: str
    parent: str | None
    status: RunStatus
    start_time: float
    end_time: float | None
    tags: Mapping[str, str] = field(repr=False)
    params: Mapping[str, str] = field(repr=False)
    metrics: Mapping[MetricName, float] = field(repr=False)
    url: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, if one was reached."""
        return next((verdict for verdict in VERDICTS if verdict == self.tags.get(Tag.VERDICT)), None)

    @property
    def kind(self) -> Kind | None:
        """The kind of work; None if trtops did not make the run."""
        return next((kind for kind in KINDS if kind == self.tags.get(Tag.KIND)), None)


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion(Record):
    """One version of a registered model: an artifact of a run, with tags of its own."""

    name: str
    version: str
    run_id: str
    path: str
    tags: Mapping[str, str] = field(default_factory=dict)


def incomplete(run_id: str, why: str) -> errors.IncompleteRunError:
    """The error for a run that is not complete, with the reason and what to do."""
    return errors.IncompleteRunError(
        f"Run {run_id} is incomplete: {why}. It was interrupted while logging, or its files were changed since. "
        "Use another run, or repeat this one."
    )
