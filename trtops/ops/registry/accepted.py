"""Accepted engines: registered versions of the tracking store, one per model, device and release."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Engine
from trtops.backend.engines import environment_of
from trtops.backend.onnx.model import Model
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.precision_check import check_precision
from trtops.ops.result import tracker_or_default
from trtops.record import Record, sha256
from trtops.spec import Environment, OnnxRuntimeOptions
from trtops.tracking import builds, schema
from trtops.tracking.base import RegisteredVersion, Tracker, incomplete
from trtops.tracking.signatures import require_signed

ACCEPTED = "accepted"
"""Alias of the engine of a registered model that was accepted last, as in ``models:/NAME@accepted``."""


@dataclass(frozen=True, kw_only=True)
class Resolution(Record):
    """The accepted engine of a model on a device, or the reason why not."""

    name: str
    alias: str
    run_id: str | None = None
    version: str | None = None
    path: str | None = None  # the engine among the run's artifacts
    reason: str = ""  # why no engine is accepted, and what to do; empty otherwise
    engine_sha256: str | None = None
    accepted_by: str | None = None  # the user that MLflow's server authenticated; None without accounts
    signed_by: str | None = None  # the key that signed its run, where a signature was required

    def engine(self, tracker: Tracker) -> Engine:
        """Load the accepted engine, checked against its run's manifest."""
        if self.run_id is None:
            raise errors.ConfigError(self.reason)
        engine = builds.load_engine(tracker.load(self.run_id))
        if sha256(engine.plan) != self.engine_sha256:  # manifest and file may have been changed together since
            raise incomplete(self.run_id, f"its engine is not the one of digest {self.engine_sha256} that was resolved")
        return engine


def register_accepted(
    tracker: Tracker, run_id: str, build: Build, *, name: str, evidence: str, suffix: str = ""
) -> tuple[RegisteredVersion, str]:
    """Register the engine of a complete run as the accepted one; returns the version and its alias.

    ``evidence`` is the run that is the reason. ``suffix`` is appended to the usual alias, for an engine that is
    accepted in addition to the usual one. The alias ``accepted`` is that of the newest usual one on any device.
    """
    environment = build.engine.environment
    alias = alias_of(build.spec.model_sha256, environment) + suffix
    path = builds.engine_path(tracker.load(run_id))
    tags = {
        schema.Tag.MODEL_SHA256: build.spec.model_sha256,
        schema.Tag.ENGINE_SHA256: build.engine.sha256,
        schema.Tag.EVIDENCE: evidence,
        schema.Tag.COMPUTES_IN: check_precision(build).name,
        **builds.environment_tags(environment),
    }
    also = "" if suffix else ACCEPTED
    return tracker.register(registered_model(name), run_id, path, alias=alias, also=also, tags=tags), alias


def registered_model(name: str) -> str:
    """A name for the registry: ``/`` and ``:`` become ``-2f-`` and ``-3a-``."""
    # MLflow rejects names with these characters; 250 is below the length of its column.
    return name.replace("/", "-2f-").replace(":", "-3a-")[:250]


def alias_of(model_sha256: str, environment: Environment) -> str:
    """The alias of the engine accepted for a model, a kind of device and a back end's release."""
    release = re.sub(r"[^A-Za-z0-9]+", "-", f"{environment.backend}-{environment.backend_version}")
    return f"model-{model_sha256[:12]}_device-{environment.device_sha256[:12]}_{release}"


@checked_arguments
def resolve(
    model: str | Path | Model,
    *,
    tracker: Tracker | None = None,
    backend: str = "onnxruntime",
    providers: Sequence[str] = (),
    environment: Environment | None = None,
    name: str | None = None,
    keys: Sequence[str | Path] = (),
) -> Resolution:
    """Look up the accepted engine of a model, and check every file of it against its run's manifest. Builds nothing.

    An engine registered under another name is found by the model's digest; of several, the newest that can be used.

    Args:
        model: The ONNX file.
        tracker: The tracking store, and its registry.
        backend: The back end that is to run it.
        providers: ONNX Runtime's execution providers; the first decides the device.
        environment: The device and release (default: this machine's).
        name: The registered model that is searched first (default: the file's name without its ending).
        keys: Public keys, as PEM files: the engine's run must be signed with one of them.

    >>> check = trtops.CheckConfig(data="feed.npz")
    >>> build = trtops.convert("model.onnx", trtops.ConvertConfig(check=check))
    >>> accepted = trtops.promote(build.run_id)
    >>> trtops.resolve("model.onnx").run_id == accepted.run_id
    True
    """
    tracker = tracker_or_default(tracker)
    loaded_model = model if isinstance(model, Model) else Model.load(model)
    options = OnnxRuntimeOptions(providers=tuple(providers)) if providers else OnnxRuntimeOptions()
    current = environment_of(backend, options) if environment is None else environment
    resolution = Resolution(
        name=registered_model(name or loaded_model.name), alias=alias_of(loaded_model.info.sha256, current)
    )
    try:
        named = tracker.registered(resolution.name, resolution.alias)
    except errors.StoreError as exc:
        return replace(resolution, reason=str(exc))
    if named is not None:
        candidates = [named]
    else:
        same_model = tracker.accepted({schema.Tag.MODEL_SHA256: loaded_model.info.sha256})
        candidates = [candidate for alias, candidate in same_model if alias == resolution.alias]
    checked = [_check_version(resolution, candidate, loaded_model, tracker, keys) for candidate in candidates]
    if checked:
        return max(checked, key=lambda checked: tracker.info(checked.run_id).start_time if checked.run_id else 0.0)
    accepted = ", ".join(sorted(tracker.aliases(resolution.name))) or "none"
    reason = (
        f"No engine of this model, named {resolution.name!r} or otherwise, is accepted for {current.device}, "
        f"{current.backend} {current.backend_version} (alias {resolution.alias}). Accepted engines of that "
        f"name: {accepted}. Promote a good run made here."
    )
    return replace(resolution, reason=reason)


def _check_version(
    resolution: Resolution, version: RegisteredVersion, model: Model, tracker: Tracker, keys: Sequence[str | Path]
) -> Resolution:
    """The resolution with a registered version, or with the reason why it cannot be used."""
    resolution = replace(resolution, name=version.name)
    try:
        stored = tracker.load(version.run_id)
        signed_by = require_signed(stored, keys) if keys else None
        engine_sha256 = sha256(stored.read_bytes(version.path))
    except (errors.IncompleteRunError, errors.RunNotFoundError, errors.SignatureError) as exc:
        return replace(resolution, reason=f"Version {version.version} of {resolution.name!r} cannot be used: {exc}")
    # Anybody who can write to the registry can register a version. Run and version have to agree on what it is.
    promised = {schema.Tag.ENGINE_SHA256: engine_sha256, schema.Tag.MODEL_SHA256: model.info.sha256}
    for tag, value in promised.items():
        if version.tags.get(tag) != value or stored.info.tags.get(tag) != value:
            subject = "engine" if tag == schema.Tag.ENGINE_SHA256 else "model"
            return replace(
                resolution,
                reason=f"Version {version.version} of {resolution.name!r} is of another {subject} than run "
                f"{version.run_id} holds; it was not registered by promoting. Promote a good run.",
            )
    return replace(
        resolution,
        run_id=version.run_id,
        version=version.version,
        path=version.path,
        engine_sha256=engine_sha256,
        accepted_by=version.tags.get(schema.Tag.ACCEPTED_BY),
        signed_by=signed_by,
    )
