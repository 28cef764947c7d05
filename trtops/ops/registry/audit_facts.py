"""What the registry states about the runs of its versions, and entries of the deny-list about their proofs."""

from trtops.ops.facts import NOTHING, Facts, SharedReads
from trtops.record import canonical_json
from trtops.tactics.denied import DeniedTactic
from trtops.tracking import builds
from trtops.tracking.base import StoredRun
from trtops.tracking.schema import Artifact, Tag


def audit_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the registered versions of a run, and their aliases, with the tags of the run."""
    info = run.info
    for alias, version in shared.accepted:
        if version.run_id != info.id:
            continue
        version_name = f"version {version.version} of {version.name!r}"
        for tag in (Tag.MODEL_SHA256, Tag.ENGINE_SHA256, *builds.ENVIRONMENT_TAGS):
            fact = {Tag.MODEL_SHA256: "model", Tag.ENGINE_SHA256: "engine"}.get(tag, f"registry ({tag})")
            facts.tag(fact, tag, version_name, version.tags.get(tag, NOTHING), NOTHING)
        # Aliases that users set are their own; ours name model and device, and then perhaps the precision.
        if alias.startswith("model-"):
            model, device = info.tags.get(Tag.MODEL_SHA256, "")[:12], info.fact(Tag.DEVICE_SHA256)[:12]
            expected = f"model-{model}_device-{device}"
            facts.add(f"alias {alias}", {version_name: "_".join(alias.split("_")[:2]), "the run's tags": expected})
        evidence, fact = version.tags.get(Tag.EVIDENCE, NOTHING), f"registry ({Tag.EVIDENCE})"
        if info.kind == "promote":
            facts.tag(fact, Tag.EVIDENCE, version_name, evidence, NOTHING)
            continue
        # The evidence is the gate that accepted the engine, which may have been built by another run.
        gate = info if evidence == info.id else shared.tracker.info(evidence)
        concerned = gate.tags.get(Tag.EVIDENCE, gate.id)
        facts.add(f"{fact}: the engine concerned", {version_name: info.id, f"run {gate.id}": concerned})
        values = {version_name: "accept", f"tag {Tag.GATE} of run {gate.id}": gate.tags.get(Tag.GATE, NOTHING)}
        facts.add(f"{fact}: the gate's decision", values)


def deny_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare an entry of the deny-list with the proof that it names: every user of the store may add an entry."""
    proof, path = shared.tracker.load(run.info.tags.get(Tag.EVIDENCE, "")), Artifact.DENIED
    proof_name = f"run {proof.info.id}"
    outcome = proof.info.tags.get(Tag.PROOF, NOTHING)
    facts.add("proof", {"an entry of the deny-list": "confirmed", f"tag {Tag.PROOF} of {proof_name}": outcome})
    sources = {path: run, f"{path} of {proof_name}": proof}
    denied = {source: DeniedTactic.from_json(stored.read_bytes(path)).deciding() for source, stored in sources.items()}
    facts.add("denied tactic", {source: canonical_json(choices) for source, choices in denied.items()})
