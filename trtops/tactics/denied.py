"""The deny-list: tactics excluded from later builds, each with its confirming run."""

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.record import JSONValue, Record
from trtops.spec import Environment
from trtops.tactics.record import Column, TacticChoice, TacticRecord, read_record


@dataclass(frozen=True, kw_only=True)
class DeniedTactic(Record):
    """Choices confirmed together, on one kind of device and one release.

    A choice is identified by its layer's name and its tactic, whose text includes TensorRT's tensor formats. So it is
    denied in every model with such a layer, for instance after exporting the model again, and in no other.

    ``settings`` without choices are denied if a build has all of them. ``evidence`` is the run that confirmed them, and
    ``run`` the entry in the store.
    """

    backend_version: str
    device_sha256: str
    choices: tuple[TacticChoice, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    evidence: str = ""
    run: str = ""

    @classmethod
    def of(cls, record: TacticRecord, columns: Container[Column], evidence: str) -> "DeniedTactic":
        """The entry for some layers and settings of a record."""
        return cls(
            backend_version=record.backend_version,
            device_sha256=record.device_sha256,
            choices=tuple(choice for choice in record.choices if ("layer", choice.layer) in columns),
            settings=tuple(pair for pair in record.settings if ("setting", pair[0]) in columns),
            evidence=evidence,
        )

    def deciding(self) -> JSONValue:
        """The denied choices, without evidence."""
        return replace(self, evidence="", run="").to_dict()

    def reason(self, choice: str) -> str:
        """Return the reason of a denial: its run, and how to allow the choice again."""
        pardon = " (`trtops runs pardon` with this run allows it)" if self.run else ""
        return f"{choice} is denied by run {self.run or self.evidence}{pardon}"


@dataclass(frozen=True, kw_only=True)
class DenyList(Record):
    """What builds of one kind of device and release must not choose."""

    entries: tuple[DeniedTactic, ...] = ()

    def here(self, environment: Environment) -> "DenyList":
        """The entries of an environment's device and release."""
        platform = (environment.backend_version, environment.device_sha256)
        return DenyList(entries=tuple(e for e in self.entries if (e.backend_version, e.device_sha256) == platform))

    def deciding(self) -> JSONValue:
        """The entries, as a set."""
        return sorted({entry.digest for entry in self.entries})  # type: ignore[return-value]

    def why(self, choices: Iterable[TacticChoice], settings: Iterable[tuple[str, str]] = ()) -> str | None:
        """Describe the denied choice of a build and its run; None if no choice is denied."""
        chosen = {choice.identity for choice in choices}
        setting_pairs = set(settings)
        for entry in self.entries:
            for choice in entry.choices:
                if choice.identity in chosen:
                    return entry.reason(f"{choice.tactic} of {choice.layer}")
            if not entry.choices and entry.settings and setting_pairs.issuperset(entry.settings):
                return entry.reason(", ".join(f"{name}={value}" for name, value in entry.settings))
        return None


def read_exclusions(path: str | Path) -> DenyList:
    """Read excluded choices from a file: a deny-list, an entry of one, or a tactic record."""
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
    layers: set[Column] = {("layer", choice.layer) for choice in record.choices}
    return DenyList(entries=(DeniedTactic.of(record, layers, str(path)),))
