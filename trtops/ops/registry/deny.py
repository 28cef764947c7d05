"""The deny-list: proven culprits, avoided by later builds on the same device and release."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from trtops import errors
from trtops.next_step import NextStep
from trtops.ops.arguments import checked_arguments
from trtops.ops.result import OpResult, op_run, tracker_or_default
from trtops.spec import Environment
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tracking import schema
from trtops.tracking.base import Tracker, Verdict, run_id_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DenyResult(OpResult):
    """A new entry of the deny-list, or the removal of one, with its reason."""

    verdict: Verdict = "good"  # always: an entry that cannot be added or removed is an error
    entry: DeniedTactic | None = None
    reason: str = ""

    @property
    def headline(self) -> str:
        """The tactic, or the settings."""
        if self.entry is None:
            return "removed"
        settings = ", ".join(f"{name}={value}" for name, value in self.entry.settings)
        return self.entry.choices[0].tactic if self.entry.choices else settings

    def body(self) -> Iterable[str]:
        """The layers and settings of the entry, or the reason for its removal."""
        if self.entry is None:
            yield f"Pardoned: {self.reason}"
            return
        yield from (f"- `{choice.layer}`: `{choice.tactic}`" for choice in self.entry.choices)
        yield from (f"- setting `{name}`: `{value}`" for name, value in self.entry.settings)
        yield from ("", f"Confirmed by run `{self.entry.evidence}`.")


@checked_arguments
def deny(
    proof_run: str,
    *,
    tracker: Tracker | None = None,
    tags: Mapping[str, str] | None = None,
) -> DenyResult:
    """Add the culprits confirmed by a proof to the deny-list of its device and release.

    ConfigError if the run is not a proof, or it confirmed nothing.

    >>> trtops.deny(proof.run_id).headline  # doctest: +SKIP
    'FastGelu'
    """
    tracker = tracker_or_default(tracker)
    proof_run = run_id_of(proof_run, tracker)
    stored = tracker.load(proof_run)
    outcome = stored.info.tags.get(schema.Tag.PROOF)
    if outcome != "confirmed":
        raise errors.ConfigError(
            f"Run {proof_run} is a proof that ended as {outcome!r}; only confirmed culprits can be denied."
            if outcome
            else f"Run {proof_run} is not a proof."
        )
    if schema.Artifact.DENIED not in stored.manifest:
        raise errors.ConfigError(
            f"Run {proof_run} confirmed layers that fail only together: neither is a culprit by itself."
        )
    entry = DeniedTactic.from_json(stored.read_bytes(schema.Artifact.DENIED))
    entry_tags = {
        schema.Tag.EVIDENCE: proof_run,
        schema.Tag.BACKEND_VERSION: entry.backend_version,
        schema.Tag.DEVICE_SHA256: entry.device_sha256,
    }
    result = DenyResult(title="deny", entry=entry)
    name = f"deny {result.headline}"
    with op_run(tracker, stored.info.experiment, name, kind="deny", tags={**(tags or {}), **entry_tags}) as op:
        op.run.log_json(entry, schema.Artifact.DENIED)
        return op.finish(result, title=name, evaluated=False)


@checked_arguments
def pardon(deny_run: str, *, tracker: Tracker | None = None, why: str) -> DenyResult:
    """Remove an entry, also a damaged one, from the deny-list. It stays in the tracking store, with the reason."""
    tracker = tracker_or_default(tracker)
    deny_run = run_id_of(deny_run, tracker)
    info = tracker.info(deny_run)
    if info.kind != "deny" or schema.Tag.PARDONED in info.tags:
        raise errors.ConfigError(f"Run {deny_run} is not an entry of the deny-list.")
    entry_tags = {name: info.tags.get(name, "") for name in (schema.Tag.BACKEND_VERSION, schema.Tag.DEVICE_SHA256)}
    result = DenyResult(title="pardon", reason=why)
    tags = entry_tags | {schema.Tag.PARDONED: deny_run}
    with op_run(tracker, info.experiment, "pardon", kind="deny", tags=tags) as op:
        return op.finish(result, evaluated=False)


def deny_list(tracker: Tracker, environment: Environment) -> DenyList:
    """The denied tactics of an environment.

    Damaged entries are left out with a warning, and so is the whole list if the store cannot be read: a build does not
    depend on the store.
    """
    environment_tags = {
        schema.Tag.KIND: "deny",
        schema.Tag.BACKEND_VERSION: environment.backend_version,
        schema.Tag.DEVICE_SHA256: environment.device_sha256,
    }
    try:
        entry_runs = tracker.find(tags=environment_tags, status="finished")
    except errors.TrackingError as exc:
        log.warning("The deny-list cannot be read, so that the build may use a tactic on it: %s", exc)
        return DenyList()
    pardoned = {info.tags.get(schema.Tag.PARDONED) for info in entry_runs}
    entries = []
    for info in reversed(entry_runs):
        if info.id in pardoned or schema.Tag.PARDONED in info.tags:
            continue
        try:
            entry = DeniedTactic.from_json(tracker.load(info.id).read_bytes(schema.Artifact.DENIED))
            entries.append(replace(entry, run=info.id))
        except errors.TrtopsError as exc:
            pardon_step = NextStep("runs pardon", {"run": info.id, "why": "it cannot be read"})
            log.warning("An entry of the deny-list is ignored: %s Prove it again, or: %s", exc, pardon_step)
    return DenyList(entries=tuple(entries))
