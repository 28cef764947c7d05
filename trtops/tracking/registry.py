"""The contract of the registry: which engine a team has accepted, for which model, device and release.

A registered model has numbered versions; a version points to one artifact of one run. An alias is a name that points
to one version and can be moved to another. Every tracker of :mod:`trtops.tracking.base` is a registry as well.

MLflow's registry takes any path as the place of a version's files. Here a version is a run's id and an artifact's path,
nothing else: what a version points to is read through its run's manifest, and a version that points elsewhere is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trtops import errors
from trtops.record import Record
from trtops.tracking.base import Tracker

ACCEPTED = "accepted"
"""The alias of the version that was registered last, for those who load a model by MLflow's own means, as
``models:/<name>@accepted``. It belongs to the store: :meth:`Registry.aliases` leaves it out."""

_SOURCE = re.compile(r"runs:/(\w+)/(.+)")
_ALIAS = re.compile(r"[\w\-]{1,255}")


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion(Record):
    """One version of a registered model.

    Attributes:
        name: The registered model.
        version: Its number, as text.
        run_id: The run that holds the artifact.
        path: The artifact's path in it.
        tags: The version's own tags.
    """

    name: str
    version: str
    run_id: str
    path: str
    tags: Mapping[str, str] = field(default_factory=dict)


class Registry(Protocol):
    """Keeps versions of models, and aliases for them."""

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, tags: Mapping[str, str] | None = None
    ) -> RegisteredVersion:
        """Add a version and let an alias point to it, which then points to no other.

        Args:
            name: The registered model; made if missing.
            run_id: A whole run.
            path: The artifact in it.
            alias: Letters, digits, ``_`` and ``-``.
            tags: Of the version.

        Raises:
            ConfigError: If the alias or the name is impossible.
            IncompleteRunError: If the run is not whole, or has no such artifact.
        """
        ...

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        """The version that an alias points to, or None if there is no such model or alias.

        Raises:
            StoreError: If the version does not point into a run.
        """
        ...

    def aliases(self, name: str) -> dict[str, str]:
        """A registered model's aliases, as names to version numbers; empty if there is no such model."""
        ...

    def accepted(self) -> list[tuple[str, RegisteredVersion]]:
        """Every alias of every registered model with the version that it points to; versions that point nowhere are left out."""
        ...


class RegisteringTracker(Tracker, Registry, Protocol):
    """A tracker that is a registry too, as all are."""


def check_registration(tracker: Tracker, name: str, run_id: str, path: str, alias: str) -> None:
    """Raise what :meth:`Registry.register` must raise."""
    if not _ALIAS.fullmatch(alias) or alias.lower() in ("latest", ACCEPTED) or re.fullmatch(r"[vV]\d+", alias):
        raise errors.ConfigError(
            f"Alias {alias!r}: expected 1 to 255 letters, digits, '_' or '-', and neither 'latest', {ACCEPTED!r} nor a "
            "version's number."
        )
    if not name.strip() or len(name) > 250 or set("/:") & set(name):
        raise errors.ConfigError(f"Registered model {name[:60]!r}: expected 1 to 250 characters without '/' and ':'.")
    tracker.load(run_id).local_path(path)


def source_of(run_id: str, path: str) -> str:
    """Where a version's artifact is, as an address: its folder, which MLflow takes for a model."""
    return f"runs:/{run_id}/{path.rpartition('/')[0] or path}"


def artifact_of(name: str, version: str, source: str, path: str | None) -> tuple[str, str]:
    """The run and the artifact of a version.

    Args:
        name: The registered model.
        version: Its version.
        source: Where the version points to: the artifact itself, or its folder.
        path: The artifact's path, where it is a folder.

    Raises:
        StoreError: If that is no artifact of a run.
    """
    run_id, found = parse_source(name, version, source)
    if path is None or path == found:
        return run_id, found
    if not path.startswith(f"{found}/") or {"", ".", ".."} & set(path.split("/")):
        raise errors.StoreError(f"Version {version} of {name!r} points to {source!r}, in which {path!r} cannot be.")
    return run_id, path


def parse_source(name: str, version: str, source: str) -> tuple[str, str]:
    """The run and the artifact of an address that :func:`source_of` wrote.

    Raises:
        StoreError: If it is another one: the version was not registered by trtops, or was changed.
    """
    found = _SOURCE.fullmatch(source)
    if found is None or ".." in found[2].split("/"):
        raise errors.StoreError(
            f"Version {version} of {name!r} points to {source!r}, which is no artifact of a run; its content cannot be "
            "checked. Promote a run instead."
        )
    return found[1], found[2]
