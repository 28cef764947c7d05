"""Which engine is the accepted one that a candidate is compared with, and where the candidate goes once it is accepted."""

from __future__ import annotations

from dataclasses import dataclass

from trtops.backend.base import Build
from trtops.ops.campaign.promote import alias_of, register_accepted, registered_model
from trtops.spec import Environment, Precision
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.registry import RegisteredVersion, RegisteringTracker
from trtops.tracking.schema import Tag


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an accepted engine must have in common with a candidate.

    Attributes:
        name: The registered model, in any spelling.
        model_sha256: The candidate's model. One of the same model is preferred.
        environment: Where the candidate is built. The kind of device must be the same; the same release is preferred.
        precision: What the candidate is asked for; must be the same.
    """

    name: str
    model_sha256: str
    environment: Environment
    precision: Precision


def last_accepted(tracker: RegisteringTracker, wanted: Wanted) -> RunInfo | None:
    """The run of the newest accepted engine that a candidate can be compared with; None if there is none."""
    found: list[tuple[tuple[bool, bool, int], RunInfo]] = []
    name = registered_model(wanted.name)
    environment = wanted.environment
    for alias in tracker.aliases(name):
        version = tracker.registered(name, alias)
        if version is None or version.tags.get(Tag.BACKEND) != environment.backend:
            continue
        if version.tags.get(Tag.DEVICE_SHA256) != environment.device_sha256:
            continue
        info = tracker.info(version.run_id)
        if precision_of(info) != wanted.precision:
            continue
        same_model = version.tags.get(Tag.MODEL_SHA256) == wanted.model_sha256
        same_release = version.tags.get(Tag.BACKEND_VERSION) == environment.backend_version
        found.append(((same_model, same_release, int(version.version)), info))
    return max(found, key=lambda each: each[0])[1] if found else None


def precision_of(info: RunInfo) -> str:
    """The precision that a run's build was asked for; empty if it holds none."""
    return info.params.get("precision", "")


def accept(
    tracker: RegisteringTracker, run_id: str, build: Build, *, name: str, evidence: str
) -> tuple[RegisteredVersion, str]:
    """Register a candidate as the accepted engine; returns the version, and its alias.

    One of another precision that is accepted for the same device and release keeps the alias. The candidate's has its
    precision behind it then.
    """
    alias = alias_of(build.spec.model_sha256, build.engine.environment)
    holder = tracker.registered(registered_model(name), alias)
    precision = build.spec.config.precision
    taken = holder is not None and _precision_in(tracker, holder.run_id) != precision
    suffix = f"_{precision}" if taken else ""
    return register_accepted(tracker, run_id, build, name=name, evidence=evidence, suffix=suffix)


def _precision_in(tracker: Tracker, run_id: str) -> str:
    return precision_of(tracker.info(run_id))
