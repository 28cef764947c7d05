"""The deny-list: tactics that a proof confirmed as culprits; later builds on the same device and release avoid them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trtops import errors
from trtops.ops.result import OpResult, finish_with, op_run, tracker_or_default
from trtops.tactics.denied import DeniedTactic
from trtops.tracking import schema
from trtops.tracking.base import Tracker, Verdict
from trtops.tracking.records import run_id_of


@dataclass(frozen=True, kw_only=True)
class DenyResult(OpResult):
    """A new entry of the deny-list, or the removal of one, which has a reason instead."""

    verdict: Verdict = "good"  # always: an entry that cannot be added or removed is an error
    entry: DeniedTactic | None = None
    why: str = ""

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
            yield f"Pardoned: {self.why}"
            return
        yield from (f"- `{choice.layer}`: `{choice.tactic}`" for choice in self.entry.choices)
        yield from (f"- setting `{name}`: `{value}`" for name, value in self.entry.settings)
        yield from ("", f"Confirmed by run `{self.entry.evidence}`.")


def deny(proof_run: str, *, tracker: Tracker | None = None, tags: Mapping[str, str] | None = None) -> DenyResult:
    """Add the tactics that a proof confirmed to the deny-list of its device and release.

    ConfigError if the run is not a proof, or it confirmed nothing.
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
    own = {
        schema.Tag.EVIDENCE: proof_run,
        schema.Tag.BACKEND_VERSION: entry.backend_version,
        schema.Tag.DEVICE_SHA256: entry.device_sha256,
    }
    result = DenyResult(title="deny", entry=entry)
    experiment = stored.info.experiment
    with op_run(tracker, experiment, f"deny {result.headline}", kind="deny", tags={**(tags or {}), **own}) as run:
        run.log_json(entry, schema.Artifact.DENIED)
        finish_with(run, result, tracker, title=f"deny {result.headline}", evaluated=False)
    return result.kept_in(run, experiment)


def pardon(deny_run: str, *, tracker: Tracker | None = None, why: str) -> DenyResult:
    """Remove an entry, also a damaged one, from the deny-list. It stays in the tracking store, with the reason."""
    tracker = tracker_or_default(tracker)
    deny_run = run_id_of(deny_run, tracker)
    info = tracker.info(deny_run)
    if info.kind != "deny" or schema.Tag.PARDONED in info.tags:
        raise errors.ConfigError(f"Run {deny_run} is not an entry of the deny-list.")
    own = {name: info.tags.get(name, "") for name in (schema.Tag.BACKEND_VERSION, schema.Tag.DEVICE_SHA256)}
    result = DenyResult(title="pardon", why=why)
    tags = own | {schema.Tag.PARDONED: deny_run}
    with op_run(tracker, info.experiment, "pardon", kind="deny", tags=tags) as run:
        finish_with(run, result, tracker, evaluated=False)
    return result.kept_in(run, info.experiment)
