"""The data of runs: ids, logged values, manifests, searches, and registered versions."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from trtops import errors
from trtops.extras import require
from trtops.record import Record, sha256
from trtops.tracking.schema import AS_PARAM, KINDS, MAX_TAG, Kind, MetricName, Tag
from trtops.verdict import VERDICTS, Verdict

if TYPE_CHECKING:
    import pandas as pd
RunStatus: TypeAlias = Literal["running", "finished", "failed", "killed"]
Tags: TypeAlias = Mapping[str, str]

# Marks a run where a file could be meant as well.
RUN_PREFIX = "run:"


def is_run_id(text: str) -> bool:
    """True for 32 hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{32}", text) is not None


def may_be_run_id(text: str) -> bool:
    """True for the first eight digits of a run's id or more, also after ``run:``."""
    return re.fullmatch("[0-9a-f]{8,32}", text.removeprefix(RUN_PREFIX).lower()) is not None


def new_local_id() -> str:
    """A run id made by the run's own process. Every run has one, as a tag."""
    # It keeps a run from being made twice after an interruption, and a run of the spool can be found by it after the
    # upload. Stores use UUIDs of version 4, so version 8 at this place distinguishes it.
    digits = uuid.uuid4().hex
    return f"{digits[:12]}8{digits[13:]}"


def is_local(run_id: str) -> bool:
    """True for an id of :func:`new_local_id`."""
    return len(run_id) == 32 and run_id[12] == "8"


LISTING = "**Files**"  # heading of the artifacts in a description


@dataclass(frozen=True, kw_only=True)
class ArtifactEntry(Record):
    """One artifact in a manifest: its path inside the run, its bytes, and the SHA-256 of its content."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Statement(Record):
    """The row of a run in the database at the run's end. Times are in seconds since the epoch.

    Metrics have all their values, in order, by :func:`trtops.tracking.schema.metric_key`; those of a ``resumed`` run
    lack what earlier processes logged. ``linked`` are those that were also linked to other runs' engines, by the id of
    the engine's logged model. Texts of more than 100 characters are stated as their digest.
    """

    id: str  # a local one if the run was spooled
    experiment: str
    name: str
    parent: str | None
    start_time: float
    end_time: float
    spooled: bool
    resumed: bool
    signed: bool
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, tuple[float, ...]]
    linked: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)

    @staticmethod
    def short(text: str) -> str:
        """A tag's or param's value as it is stated."""
        return text if len(text) <= 100 else f"SHA-256 {sha256(text.encode())}"


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """Every artifact of a finished run but the manifest itself, and those deleted since; both ordered by path.

    ``log`` is the head of the store's log before the run's end (:mod:`trtops.tracking.store_log`), if it has one.
    """

    artifacts: tuple[ArtifactEntry, ...]
    dropped: tuple[ArtifactEntry, ...] = ()
    run: Statement | None = None
    log: str = ""

    def original(self) -> Manifest:
        """The manifest as it was when the run finished."""
        every = sorted((*self.artifacts, *self.dropped), key=lambda entry: entry.path)
        return replace(self, artifacts=tuple(every), dropped=())

    def without(self, paths: Collection[str]) -> Manifest:
        """The manifest after these artifacts were deleted."""
        gone = tuple(entry for entry in self.artifacts if entry.path in paths)
        left = tuple(entry for entry in self.artifacts if entry not in gone)
        return replace(self, artifacts=left, dropped=(*self.dropped, *gone))

    def noted(self, note: str) -> str:
        """A run's description, followed by all artifacts with their digests if it has space for them.

        An audit names changed and removed artifacts by it, also if the manifest was changed as well.
        """
        lines = (f"- `{entry.path}` `{entry.sha256[:16]}`" for entry in self.artifacts)
        listing = "\n".join((f"\n\n{LISTING}\n", *lines))
        return note[: MAX_TAG - len(listing)] + listing if note and 2 * len(listing) < MAX_TAG else note

    def __contains__(self, path: object) -> bool:
        return any(entry.path == path for entry in self.artifacts)


@dataclass(frozen=True, kw_only=True)
class RunDetails:
    """What only an audit reads of a run: user and status, all values of each metric, and the paths of all files.

    ``model`` is the id of MLflow's logged model of the run's engine. ``derived`` is what MLflow holds of engine and
    data besides the run: by fact, the value in MLflow and the one that the run's own data gives. ``unverified`` names
    what it holds of them by runs that have not ended.
    """

    user: str | None
    status: tuple[str, str]  # as MLflow shows it, and as it shows a finished run with this verdict
    history: Mapping[str, tuple[float, ...]]  # by metric_key
    files: tuple[str, ...]
    model: str | None = None
    derived: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unverified: tuple[str, ...] = ()


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
    deleted: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, if one was reached."""
        return next((verdict for verdict in VERDICTS if verdict == self.tags.get(Tag.VERDICT)), None)

    def fact(self, tag: str) -> str:
        """The value of a tag, or of its replacement param (:data:`schema.AS_PARAM`); empty without either."""
        return self.tags.get(tag) or self.params.get(AS_PARAM.get(tag, ""), "")

    @property
    def kind(self) -> Kind | None:
        """The kind of work; None if trtops did not make the run."""
        return next((kind for kind in KINDS if kind == self.tags.get(Tag.KIND)), None)


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs a search returns; None and empty values match all."""

    experiment: str | None = None
    tags: Tags = field(default_factory=dict)
    parent: str | None = None
    status: RunStatus | None = None
    id_prefix: str = ""

    def matches(self, info: RunInfo) -> bool:
        """Whether a run passes the filter."""
        return (
            self.tags.items() <= info.tags.items()
            and self.experiment in (None, info.experiment)
            and self.parent in (None, info.parent)
            and self.status in (None, info.status)
            and info.id.startswith(self.id_prefix)
        )


@dataclass(frozen=True, kw_only=True)
class Values:
    """Values logged to a run at once; later names, tags and metrics replace earlier ones.

    ``engine`` is another run, with the engine that the metrics are about.
    """

    name: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[MetricName, float] = field(default_factory=dict)
    engine: str = ""


@dataclass(kw_only=True)
class RunData:
    """Everything logged to a run except the content of its artifacts, as it changes."""

    experiment: str
    name: str
    parent: str | None
    start_time: float
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[MetricName, float] = field(default_factory=dict)
    status: RunStatus = "running"
    end_time: float | None = None

    def info_as(self, run_id: str) -> RunInfo:
        """The run as searches return it, under this id."""
        return RunInfo(
            id=run_id, experiment=self.experiment, name=self.name, parent=self.parent, status=self.status,
            start_time=self.start_time, end_time=self.end_time, tags=dict(self.tags), params=dict(self.params),
            metrics=dict(self.metrics),
        )  # fmt: skip

    def check_params(self, values: Values) -> None:
        """Raise LogError if a param has another value already."""
        for name, value in values.params.items():
            if (old := self.params.get(name, value)) != value:
                raise errors.LogError(f"Param {name!r} of run {self.name!r} is {old!r}; it cannot become {value!r}.")

    def add(self, values: Values) -> None:
        """Add logged values."""
        self.name = values.name or self.name
        self.params.update(values.params)
        self.tags.update(values.tags)
        self.metrics.update(values.metrics)


@dataclass(frozen=True, kw_only=True)
class EngineQuery(Record):
    """Which engines are searched; empty fields match all. Metrics are named as in MLflow, such as ``error/max_abs``."""

    best: str = ""  # the metric that engines are sorted by, the lowest first; those without it are left out
    data: str = ""  # ``name`` or ``name@digest``, as in the params evidence.source and evidence.data
    device: str = ""
    kernel: str = ""
    above: tuple[tuple[str, float], ...] = ()  # metrics with the values that they exceed
    accepted: bool = False  # only those that an alias of the registry points to
    experiment: str | None = None
    verdict: str | None = None
    without_models: tuple[str, ...] = ()  # digests of models


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion(Record):
    """One version of a registered model: an artifact of a run, with tags of its own.

    ``source`` is where MLflow's clients load it from: the engine's logged model, or the artifact itself.
    """

    name: str
    version: str
    run_id: str
    path: str
    tags: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    description: str = ""

    def facts(self) -> dict[str, str]:
        """What the log of a store states about the version."""
        ours = {f"tag {name}": value for name, value in self.tags.items() if name.startswith("trtops.")}
        source = re.sub(r".*/models/(m-[0-9a-f]{32})/artifacts", r"models:/\1", self.source)  # wherever the store is
        return {
            "name": self.name, "version": self.version, "run": self.run_id, "path": self.path, "source": source,
            "description": self.description, **ours,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReusedBuild(Record):
    """A build reused from another run: the run's id, and the build's files in it (``schema.BUILD_FILES``)."""

    run: str
    artifacts: tuple[ArtifactEntry, ...]


def check_registration(name: str, alias: str) -> None:
    """Reject names of registered models and aliases refused by MLflow, or read as a version by it."""
    if not re.fullmatch(r"[\w\-]{1,255}", alias) or alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias):
        raise errors.ConfigError(
            f"Alias {alias!r}: expected 1 to 255 letters, digits, '_' or '-', and neither 'latest' nor a version's "
            "number."
        )
    if not name.strip() or len(name) > 250 or set("/:") & set(name):
        raise errors.ConfigError(f"Registered model {name[:60]!r}: expected 1 to 250 characters without '/' and ':'.")


def incomplete(run_id: str, reason: str) -> errors.IncompleteRunError:
    """The error for an incomplete run, with the reason and the next action."""
    return errors.IncompleteRunError(
        f"Run {run_id} is incomplete: {reason}. It was interrupted while logging, or its files were changed since. "
        "Use another run, or repeat this one."
    )


class Runs(tuple[RunInfo, ...]):
    """Runs of a store."""

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each run, and its id as index.

        Params and metrics are columns named ``params.<name>`` and ``metrics.<part>/<part>``; start times are in UTC.
        """
        require("pandas")
        import pandas as pd  # takes half a second

        rows = [
            {
                "run_id": run.id, "experiment": run.experiment, "name": run.name, "kind": run.kind,
                "status": run.status, "verdict": run.verdict,
                "started": pd.to_datetime(run.start_time, unit="s", utc=True),
                **{f"params.{name}": value for name, value in run.params.items()},
                **{f"metrics.{'/'.join(name)}": value for name, value in run.metrics.items()},
            }
            for run in self
        ]  # fmt: skip
        fixed = ["run_id", "experiment", "name", "kind", "status", "verdict", "started"]
        frame: pd.DataFrame = (pd.DataFrame(rows) if rows else pd.DataFrame(columns=fixed)).set_index("run_id")
        return frame
