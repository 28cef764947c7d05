"""Tactics that were convicted: what later builds must not choose, and which run proved it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trtops.record import JSONValue, Record
from trtops.spec import Environment
from trtops.tactics.record import TacticChoice


@dataclass(frozen=True, kw_only=True)
class DeniedTactic(Record):
    """Choices that were convicted together, on one kind of device and one release.

    A choice is identified by its layer's name and its tactic, whose text includes TensorRT's tensor formats. So it is denied
    in every model with such a layer, for instance after exporting the model again, and in no other.

    Attributes:
        backend_version: Release of the back end that chose them.
        device_sha256: Kind of device that they ran on.
        choices: The layers and what they got.
        settings: Choices for the whole engine, where no layer shows them; denied if a build has all of them.
        evidence: Id of the run that proved them guilty.
        model_sha256: The model that they were convicted in; empty if nobody knows.
        tolerance: By which its builds were evaluated, in words.
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
        """What is denied, without the evidence and what it was seen in."""
        return {k: v for k, v in replace(self, evidence="").to_dict().items() if k not in _SEEN_IN}

    @property
    def seen_in(self) -> str:
        """What it was convicted in and for, in words; empty if nobody knows."""
        model = f"model {self.model_sha256[:12]}" if self.model_sha256 else ""
        tolerance = f"evaluated by {self.tolerance}" if self.tolerance else ""
        return ", ".join(filter(None, (model, tolerance, self.effect)))


_SEEN_IN = ("model_sha256", "tolerance", "effect")


@dataclass(frozen=True, kw_only=True)
class DenyList(Record):
    """What builds of one kind of device and release must not choose.

    Attributes:
        entries: The convictions.
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
        """In words, what of a build's choices is denied and by which run; None if nothing is."""
        chosen = {choice.identity for choice in choices}
        given = set(settings)
        for entry in self.entries:
            for choice in entry.choices:
                if choice.identity in chosen:
                    return f"it gives {choice.layer} the tactic {choice.tactic}, which run {entry.evidence} convicted"
            if not entry.choices and entry.settings and given.issuperset(entry.settings):
                named = ", ".join(f"{name}={value}" for name, value in entry.settings)
                return f"it sets {named}, which run {entry.evidence} convicted"
        return None
