"""Facts that a run states in several places, compared by an audit.

Each op declares in ``audit_facts`` what its runs state, and where. A fact has claims: values with their sources. Two
different values are a contradiction, and so is an unreadable file.
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from trtops.backend.onnx.model import Model
from trtops.record import Record
from trtops.spec import ModelInfo
from trtops.tracking import schema
from trtops.tracking.base import MetricName, RegisteredVersion, RunInfo, StoredRun, Tracker
from trtops.tracking.schema import Artifact

T = TypeVar("T")

NOTHING = "nothing"
"""The value of a fact in a place that does not state it."""


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """A value with its source: a file, tag or metric."""

    source: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Contradiction(Record):
    """A disagreement of sources about a file or fact, or a problem without values."""

    subject: str
    claims: tuple[Claim, ...] = ()
    reason: str = ""

    def text(self) -> str:
        """The contradiction in one line."""
        values = "; ".join(f"{claim.source} says {claim.value}" for claim in self.claims)
        return f"{self.subject}: {'. '.join(filter(None, (self.reason, values)))}"


class Facts:
    """Claims about a run, grouped by fact."""

    def __init__(self, info: RunInfo) -> None:
        """Start without claims."""
        self._info = info
        self._claims: dict[str, list[Claim]] = {}
        self.problems: list[Contradiction] = []
        self.unverified: list[str] = []

    def add(self, fact: str, values: Mapping[str, object]) -> None:
        """Add the values of a fact, by source; None is ignored."""
        claims = [Claim(source=source, value=str(value)) for source, value in values.items() if value is not None]
        self._claims.setdefault(fact, []).extend(claims)

    def tag(self, fact: str, tag: str, other_source: str, value: object, missing: str | None = None) -> None:
        """Add a tag of the run, or a value for a missing one, and the same fact in another place."""
        source = f"tag {tag}" if tag in self._info.tags else f"param {schema.AS_PARAM.get(tag, tag)}"
        self.add(fact, {source: self._info.fact(tag) or missing, other_source: value})

    def metric(self, fact: str, name: MetricName, other_source: str, value: float) -> None:
        """Add a metric of the run, and the same fact in another place."""
        self.add(fact, {f"metric {'/'.join(name)}": self._info.metrics.get(name), other_source: float(value)})

    def metrics(self, expected: Mapping[MetricName, float], other_source: str, further: Collection[str]) -> None:
        """Compare metrics with the values of a file, and search for metrics of these families without one."""
        stored, expected = self._info.metrics, {schema.fitting(name): value for name, value in expected.items()}
        for name in sorted({*expected, *(stored_name for stored_name in stored if stored_name[0] in further)}):
            expected_value, stored_value = expected.get(name), stored.get(name)
            if expected_value is None or stored_value is None or not same_number(expected_value, stored_value):
                values = {
                    "the store": NOTHING if stored_value is None else stored_value,
                    other_source: NOTHING if expected_value is None else expected_value,
                }
                self.add(f"metric {'/'.join(name)}", values)

    def wrong(self, fact: str, reason: str) -> None:
        """Add a problem without a second source."""
        self.problems.append(Contradiction(subject=fact, reason=reason))

    def contradictions(self) -> tuple[Contradiction, ...]:
        """Groups with differing values, and problems."""
        differing = (
            Contradiction(subject=fact, claims=tuple(dict.fromkeys(claims)))
            for fact, claims in self._claims.items()
            if len({claim.value for claim in claims}) > 1
        )
        return (*self.problems, *differing)


def same_number(first: float, second: float) -> bool:
    """True for equal numbers; a database may store fewer digits than a float has."""
    return math.isclose(first, second, rel_tol=1e-12) or (math.isnan(first) and math.isnan(second))


@dataclass
class SharedReads:
    """Data shared by several runs of an audit, read once."""

    tracker: Tracker
    _values: dict[Hashable, Any] = field(default_factory=dict, init=False)

    def once(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the value of a key; read it if it is the first time."""
        if key not in self._values:
            self._values[key] = read()
        value: T = self._values[key]
        return value

    @cached_property
    def accepted(self) -> list[tuple[str, RegisteredVersion]]:
        """All aliases of the registry, with their versions."""
        return list(self.tracker.accepted())

    def model(self, run: StoredRun) -> ModelInfo | None:
        """A run's model; None if it logged none, InvalidModelError if it is no model."""
        # By the files' digests: many runs log the same model, and reading it takes longer than all other checks.
        key = tuple(entry.sha256 for entry in run.holder.manifest.artifacts if entry.path.startswith(Artifact.MODEL))
        return self.once(("model", *key), lambda: Model.load(model_path(run)).info) if key else None


def model_path(run: StoredRun) -> Path:
    """The model file logged by a run, next to its external data."""
    files = [run.local_path(path) for path in run.paths(Artifact.MODEL)]
    return next((file for file in files if file.suffix == ".onnx"), files[0])
