"""Runs being written: checks, encodings, the manifest written last, and a single end.

A store implements the abstract methods of :class:`Run`.
"""

from __future__ import annotations

import json
import logging
import math
import textwrap
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from trtops import errors
from trtops.next_step import NextStep
from trtops.record import JSONValue, Record, sha256, to_jsonable
from trtops.system import signing
from trtops.system.masking import masked, masked_json
from trtops.tracking import owner, schema
from trtops.tracking.artifact_files import check_path
from trtops.tracking.records import ArtifactEntry, Manifest, RunInfo, RunStatus, Statement, Values, new_local_id
from trtops.tracking.schema import Artifact, Kind, MetricName, Tag
from trtops.tracking.signatures import sign_run
from trtops.verdict import MARKS, Verdict, unmarked

log = logging.getLogger(__name__)

# Tags given to a new run that are long, and so become params.
_FIRST_PARAMS = {Tag.MODEL_PATH, Tag.GOLDEN_SHA256, Tag.LISTED, Tag.PREFECT_URL}


class Run(ABC):
    """A run being written, with its id and page. Get one from :func:`trtops.tracking.base.tracked`."""

    outlives_process = True

    def __init__(self, run_id: str, url: str) -> None:
        self.id = run_id
        self.url = url
        self._lock = threading.RLock()
        self._artifacts: dict[str, ArtifactEntry] = {}
        self._history: dict[str, list[float]] = {}
        self._resumed = False
        self._sealed = False
        self._whole = False
        self._ended: RunStatus | None = None

    @property
    def is_spooling(self) -> bool:
        """True while the run is written to the spool."""
        return False

    @property
    def store_folder(self) -> str | None:
        """The folder to name in commands; None for the default store, and for stores without a folder."""
        return None

    def rename(self, name: str) -> None:
        """Replace the run's name, for example by one with a result.

        Raises LogError if it is empty or too long.
        """
        self._must_be_open()
        check_name("run", name, errors.LogError)
        self._put(Values(name=masked(name)))

    def log_params(self, params: Record | Mapping[str, object]) -> None:
        """Log options as text; nested ones get names such as ``options.builder_level``.

        Raises LogError if a param has another value already, or a name that MLflow refuses.
        """
        self._must_be_open()
        texts = masked_json(schema.flat_params(params))
        for name, value in texts.items():
            schema.check_text("Param", name, value)
        self._put(Values(params=texts))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set or replace tags.

        Raises LogError if a name or value is one that MLflow refuses.
        """
        self._must_be_open()
        texts = masked_json(tags)
        for name, value in texts.items():
            schema.check_text("Tag", name, value)
        self._put(Values(tags=texts))

    def log_metrics(self, metrics: Mapping[MetricName, float], *, engine: str = "") -> None:
        """Log numbers, in one batch; NaN and infinities are kept, and long names are shortened.

        Numbers about another run's engine name that run as ``engine``, and are found by it
        (:meth:`trtops.tracking.base.Tracker.engines`); those of a run that goes to the spool are not.

        Raises LogError if a value is not a number, or a name has no parts.
        """
        self._must_be_open()
        numbers = {schema.fitting(tuple(name)): schema.number(name, value) for name, value in metrics.items()}
        with self._lock:
            self._put(Values(metrics=numbers, engine="" if engine == self.id else engine))
            for name, value in numbers.items():
                values = self._history.setdefault(schema.metric_key(name), [])
                # Stores keep a value that did not change once; NaN is equal to itself here.
                if not values or repr(values[-1]) != repr(value):
                    values.append(value)

    def log_file(self, source: str | Path, path: str) -> None:
        """Copy a file into the run as artifact ``path``, replacing an earlier one.

        Raises LogError if there is no such file, ``path`` is not a relative path, or the artifact could not be written
        whole (a full disk); the run then does not have it.
        """
        source = Path(source)
        if not source.is_file():
            description = "a folder" if source.is_dir() else "nothing"
            raise errors.LogError(f"Artifact {path!r}: expected a file at {source}, found {description}.")
        self._log_artifact(source, path)

    def log_bytes(self, data: bytes, path: str) -> None:
        """Write bytes as artifact ``path``."""
        self._log_artifact(data, path)

    def log_text(self, text: str, path: str) -> None:
        r"""Write text, in UTF-8, as artifact ``path``; a lone surrogate becomes ``\udc80``, as in JSON."""
        self._log_artifact(masked(text).encode("utf-8", "backslashreplace"), path)

    def log_json(self, value: Record | JSONValue, path: str) -> None:
        """Write a record or JSON value as artifact ``path``."""
        if isinstance(value, Record):
            self.log_text(value.to_json(), path)
        else:
            self.log_text(json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False), path)

    def log_table(self, path: str, columns: Sequence[str], rows: Iterable[Sequence[JSONValue]]) -> None:
        """Write a table in the format of ``mlflow.log_table``, for display in the UI; a run can have one."""
        # JSON has no NaN and no infinities, so they become null.
        data: list[JSONValue] = [
            [None if isinstance(value, float) and not math.isfinite(value) else value for value in row] for row in rows
        ]
        self.log_json({"columns": list(columns), "data": data}, path)
        self.set_tags({Tag.TABLES: json.dumps([{"path": path, "type": "table"}])})

    def logged(self) -> tuple[ArtifactEntry, ...]:
        """The artifacts logged so far."""
        with self._lock:
            return tuple(self._artifacts.values())

    def finish(self, verdict: Verdict | None = None) -> None:
        """Write the verdict as a tag and then the manifest, and end the run as finished.

        Nothing can be logged afterwards. A run ends once: finishing or failing it again does nothing.
        """
        with self._lock:
            if self._ended:
                return
            entries = tuple(entry for _, entry in sorted(self._artifacts.items()))
            tags = {} if verdict is None else {Tag.VERDICT: str(verdict)}
            if note := self._info().tags.get(Tag.NOTE):
                tags[Tag.NOTE] = Manifest(artifacts=entries).noted(note)
            statement = self._statement(tags)
            manifest = Manifest(artifacts=entries, run=statement, log=self._log_head()).to_json().encode("utf-8")
            tags[Tag.MANIFEST_SHA256] = sha256(manifest)
            self._sealed = True
            self._put(Values(tags=tags))
            last = [Artifact.MANIFEST]
            if signing.signs_here():
                self._put_artifact(sign_run(self.id, manifest, entries, verdict), Artifact.SIGNATURE)
                last.append(Artifact.SIGNATURE)
            # The manifest must not reach the disk before the files that it lists.
            self._sync([entry.path for entry in entries])
            self._put_artifact(manifest, Artifact.MANIFEST)
            self._sync(last)
            # Only the status is missing now, and fail() must not undo the rest.
            self._whole = True
            self._end("finished", at=statement.end_time)
            self._ended = "finished"

    def fail(self, error: BaseException | str) -> None:
        """End the run as failed, without a manifest. Never raises.

        The error's text becomes the tag ``trtops.error``, and the verdict is ``error``. A run that was interrupted (by
        Ctrl-C, or a signal) is ended as killed, without a verdict.
        """
        interrupted = isinstance(error, BaseException) and not isinstance(error, Exception)
        with self._lock:
            if self._ended:
                return
            self._ended = "finished" if self._whole else "killed" if interrupted else "failed"
            try:
                if not self._whole:
                    text = "interrupted" if interrupted else error_text(error)
                    info = self._info()
                    name = unmarked(info.name)
                    tags = {Tag.ERROR: text, Tag.NOTE: failure_note(self.id, info.kind, text)}
                    if not interrupted:
                        tags |= {Tag.VERDICT: "error", Tag.HEADLINE: textwrap.shorten(text, 100, placeholder=" …")}
                        name = f"{MARKS['error']} {name}"[: schema.MAX_KEY]
                    elif info.parent is None and self.outlives_process:
                        step = step_after_failure(self.id, info.kind).in_store(self.store_folder)
                        log.warning("Run %s was interrupted. Next: %s", self.id, step)
                    if errors.is_transient(error):
                        tags[Tag.TRANSIENT] = "true"
                    if self._sealed:
                        # The digest of a manifest that could not be written would make the run look finished.
                        tags[Tag.MANIFEST_SHA256] = ""
                    self._put(Values(name=name, tags=tags))
                self._end(self._ended)
            except Exception as exc:
                # The error that made the run fail is more important than this one.
                log.warning("Run %s could not be marked as %s: %s", self.id, self._ended, exc)

    def continue_from(self, artifacts: Iterable[ArtifactEntry]) -> None:
        """Start with the artifacts logged to this run by an earlier process."""
        with self._lock:
            self._resumed = True
            self._artifacts = {entry.path: entry for entry in artifacts if entry.path != Artifact.SIGNATURE}

    def restore(self, info: RunInfo, artifacts: Mapping[str, Path]) -> None:
        """Write all of a run from the spool, the manifest last, and end it with its own status and time."""
        with self._lock:
            self._put(Values(name=info.name, params=info.params, tags=info.tags, metrics=info.metrics))
            for path, file in artifacts.items():
                self._put_artifact(file, path)
            self._end(info.status, at=info.end_time)
            self._ended = info.status

    def _statement(self, last: Mapping[str, str]) -> Statement:
        """The run's row in the database with these last tags set, to detect later changes."""
        info = self._info()
        tags, params = ({n: Statement.short(v) for n, v in d.items()} for d in ({**info.tags, **last}, info.params))
        metrics = {schema.metric_key(name): [value] for name, value in info.metrics.items()} | self._history
        return Statement(
            id=self.id,
            experiment=info.experiment,
            name=info.name,
            parent=info.parent,
            start_time=round(info.start_time, 3),
            end_time=round(time.time(), 3),  # in milliseconds, as MLflow keeps it
            spooled=self.is_spooling,
            resumed=self._resumed,
            signed=signing.signs_here(),
            tags=tags,
            params=params,
            metrics={name: tuple(values) for name, values in sorted(metrics.items())},
            linked=self._linked_metrics(),
        )

    def _must_be_open(self) -> None:
        if self._ended:
            raise errors.LogError(
                f"Run {self.id} has ended ({self._ended}); nothing can be logged to it. Start another."
            )

    def _log_artifact(self, source: Path | bytes, path: str) -> None:
        self._must_be_open()
        check_path(path)
        if path in (Artifact.MANIFEST, Artifact.SIGNATURE):
            raise errors.LogError(f"Artifact path {path!r} is the manifest's, which finish() writes. Choose another.")
        with self._lock:
            for other in self._artifacts:
                if other.startswith(f"{path}/") or path.startswith(f"{other}/"):
                    raise errors.LogError(
                        f"Artifact path {path!r} conflicts with {other!r}, as a folder and a file. Choose another."
                    )
        entry = self._put_artifact(source, path)
        with self._lock:
            self._artifacts[path] = entry

    def _sync(self, paths: Iterable[str]) -> None:  # noqa: B027 - only a local store has a disk
        """Wait until the disk holds these artifacts, if they are on a disk of this machine."""

    def _log_head(self) -> str:
        """The head of the store's log; empty if it has none, or does not answer."""
        return ""

    def _linked_metrics(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        """The metrics linked to other runs' engines, for the statement."""
        return {}

    @abstractmethod
    def _info(self) -> RunInfo:
        """The run as a search returns it now."""

    @abstractmethod
    def _put(self, values: Values) -> None:
        """Store values, one call at a time. LogError, and nothing is stored, if a param has another value already."""

    @abstractmethod
    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        """Store an artifact, whole or not at all, replacing an earlier one."""

    @abstractmethod
    def _end(self, status: RunStatus, at: float | None = None) -> None:
        """Add the end to the log, and store status and time, in seconds since the epoch (default: now)."""


def new_run(
    experiment: str, name: str, kind: Kind, tags: Mapping[str, str] | None
) -> tuple[str, str, dict[str, str], dict[str, str]]:
    """The names of an experiment and of a new run in it with secrets masked, and the first tags and params of the run.

    Raises ConfigError if the kind is unknown, a name is empty or too long, or the signing key cannot be read.
    """
    if signing.signs_here():
        signing.private_key()  # a key that cannot be read is reported before hours of work
    errors.check_known(kind, schema.KINDS, "Unknown kind of run")
    check_name("experiment", experiment, errors.ConfigError)
    check_name("run", name, errors.ConfigError)
    first = {
        Tag.KIND: kind,
        Tag.OWNER: owner.current().text(),
        Tag.LOCAL_ID: new_local_id(),
        **masked_json(tags or {}),
    }
    params = {schema.AS_PARAM[tag]: first.pop(tag) for tag in _FIRST_PARAMS & first.keys()}
    for tag, value in first.items():
        schema.check_text("Tag", tag, value)
    return masked(experiment), masked(name), first, params


def check_name(label: Literal["experiment", "run"], name: str, error: type[errors.TrtopsError]) -> None:
    """Raise an error of the given type for an empty or overlong name."""
    limit = {"experiment": 500, "run": 250}[label]
    if not name or len(name) > limit:
        raise error(f"The {label}'s name has {len(name)} characters; expected 1 to {limit}: {name[:60]!r}.")


def check_reopening(info: RunInfo, *, whole: bool) -> None:
    """Refuse to resume a run if it is complete, or if its process may still be writing it."""
    if whole or info.status == "finished":
        raise errors.LogError(f"Run {info.id} is complete; nothing can be logged to it. Start another.")
    owner.check_abandoned(info)


def failure_note(run_id: str, kind: str | None, error: str) -> str:
    """The description of an unfinished run: the error, and the next step."""
    shown = error.replace("```", "~~~")[: schema.MAX_TAG // 2]
    lines = ("**error** · did not finish", "", "```text", shown, "```", "", "**Next**", "", "```sh")
    return "\n".join([*lines, str(step_after_failure(run_id, kind)), "```"])


def step_after_failure(run_id: str, kind: str | None) -> NextStep:
    """The command to resume an unfinished run, or else to show it."""
    if kind == "debug_build":
        return NextStep("debug build", {"resume": run_id})
    return NextStep("debug bisect" if kind == "bisect" else "inspect run", {"run": run_id})


def error_text(error: BaseException | str) -> str:
    """An error as a text short enough for a tag; the middle of a very long one is left out."""
    text = masked(error if isinstance(error, str) else f"{type(error).__name__}: {error}")
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > schema.MAX_TAG:
        half = schema.MAX_TAG // 2 - 40
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return text
