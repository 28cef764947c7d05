"""The deny-list: tactics that later builds must not choose, and the run that confirmed them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.record import JSONValue, Record
from trtops.spec import Environment
from trtops.tactics.record import TacticChoice
from trtops.tactics.replays import read_record

_CONTEXT = ("model_sha256", "tolerance", "effect")


@dataclass(frozen=True, kw_only=True)
class DeniedTactic(Record):
    """Choices that were confirmed together, on one kind of device and one release.

    A choice is identified by its layer's name and its tactic, whose text includes TensorRT's tensor formats. So it is
    denied in every model with such a layer, for instance after exporting the model again, and in no other.

    Attributes:
        backend_version: Release of the back end that chose them.
        device_sha256: Kind of device that they ran on.
        choices: The layers and what they got.
        settings: Choices for the whole engine, where no layer shows them; denied if a build has all of them.
        evidence: Id of the run that confirmed them.
        model_sha256: The model that they were confirmed in; empty if unknown.
        tolerance: What its builds were compared by, in words.
        effect: What they do to the error, in words.
    """

    backend_version: str
    device_sha256: str
    choices: tuple[TacticChoice, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    evidence: str = ""
    model_sha256: str = ""
    tolerance: str = ""
    effect: str = ""

    def deciding(self) -> JSONValue:
        """What is denied, without the evidence and its context."""
        return {k: v for k, v in replace(self, evidence="").to_dict().items() if k not in _CONTEXT}

    @property
    def seen_in(self) -> str:
        """Where and why it was confirmed, in words; empty if unknown."""
        model = f"model {self.model_sha256[:12]}" if self.model_sha256 else ""
        tolerance = f"compared by {self.tolerance}" if self.tolerance else ""
        return ", ".join(filter(None, (model, tolerance, self.effect)))


@dataclass(frozen=True, kw_only=True)
class DenyList(Record):
    """What builds of one kind of device and release must not choose.

    Attributes:
        entries: The denied tactics.
    """

    entries: tuple[DeniedTactic, ...] = ()

    def here(self, environment: Environment) -> DenyList:
        """The entries of an environment's device and release."""
        place = (environment.backend_version, environment.device_sha256)
        return DenyList(entries=tuple(e for e in self.entries if (e.backend_version, e.device_sha256) == place))

    def deciding(self) -> JSONValue:
        """The entries, as a set."""
        return sorted({entry.digest for entry in self.entries})  # type: ignore[return-value]

    def why(self, choices: Iterable[TacticChoice], settings: Iterable[tuple[str, str]] = ()) -> str | None:
        """In words, which of a build's choices is denied and by which run; None if none is."""
        chosen = {choice.identity for choice in choices}
        given = set(settings)
        for entry in self.entries:
            for choice in entry.choices:
                if choice.identity in chosen:
                    return f"it gives {choice.layer} the tactic {choice.tactic}, which run {entry.evidence} denies"
            if not entry.choices and entry.settings and given.issuperset(entry.settings):
                named = ", ".join(f"{name}={value}" for name, value in entry.settings)
                return f"it sets {named}, which run {entry.evidence} denies"
        return None


def read_exclusions(path: str | Path) -> DenyList:
    """Read from a file what a build must not choose."""
    try:
        data = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise errors.FormatError(
            f"{path} cannot be read as JSON: {exc}. Expected a deny list or a tactic record."
        ) from None
    if isinstance(data, dict) and "entries" in data:
        return DenyList.from_dict(data)
    if isinstance(data, dict) and "choices" in data and "mechanism" not in data:
        return DenyList(entries=(DeniedTactic.from_dict(data),))
    record = read_record(path)
    entry = DeniedTactic(
        backend_version=record.backend_version,
        device_sha256=record.device_sha256,
        choices=record.choices,
        evidence=str(path),
    )
    return DenyList(entries=(entry,))
