"""Signatures of runs: made at the end of a run, and verified."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.record import sha256
from trtops.system import signing
from trtops.tracking.reading import StoredRun
from trtops.tracking.records import ArtifactEntry
from trtops.tracking.schema import Artifact, Tag
from trtops.verdict import Verdict


def sign_run(run_id: str, manifest: bytes, entries: Iterable[ArtifactEntry], verdict: Verdict | None) -> bytes:
    """Sign the manifest, the artifacts and the verdict of a run."""
    files = {Artifact.MANIFEST: sha256(manifest)} | {entry.path: entry.sha256 for entry in entries}
    return signing.sign(run_id, files, ignored=[Artifact.SIGNATURE], run=run_id, verdict=verdict)


def check_signature(run: StoredRun, keys: tuple[str, ...], wrong: Callable[[str, str], None]) -> str:
    """Check the signature of a run, and return the id of its key, or an empty text.

    One of the keys must have signed the run. Without keys, a signature is only compared with the run. ``wrong`` is
    called for each mismatch with its subject and the reason.
    """
    bundle = run.unlisted(Artifact.SIGNATURE)
    if bundle is None:
        if keys:
            wrong(Artifact.SIGNATURE, "the run is not signed, and a signature is required")
        return ""
    try:
        key, statement = signing.verify(bundle, keys) if keys else ("", signing.open_bundle(bundle))
        _compare_signed(run, statement, wrong)
    except errors.SignatureError as exc:
        wrong(Artifact.SIGNATURE, str(exc))
        return ""
    except (LookupError, TypeError, AttributeError):
        wrong(Artifact.SIGNATURE, "it is not a signature of a run")
        return ""
    return key


def _compare_signed(run: StoredRun, statement: Mapping[str, Any], wrong: Callable[[str, str], None]) -> None:
    """Compare manifest, files, run id and verdict with the signed ones."""
    signed = signing.signed_files(statement)
    manifest, predicate = run.manifest.original(), statement["predicate"]
    digests = {Artifact.MANIFEST: sha256(manifest.to_json().encode("utf-8"))}
    digests |= {entry.path: entry.sha256 for entry in manifest.artifacts}
    for path in sorted({*signed, *digests}):
        if signed.get(path) != digests.get(path):
            ours, theirs = digests.get(path, "nothing"), signed.get(path, "nothing")
            wrong(path, f"it is not what was signed: {Artifact.SIGNATURE} has {theirs}; the run has {ours}")
    if (signed_run := predicate["run"]) not in (run.info.id, run.info.tags.get(Tag.LOCAL_ID)):
        wrong(Artifact.SIGNATURE, f"it was made for run {signed_run}, and is in run {run.info.id}")
    if (signed_verdict := predicate.get("verdict")) != (verdict := run.info.tags.get(Tag.VERDICT)):
        wrong("verdict", f"{Artifact.SIGNATURE} has {signed_verdict}; tag {Tag.VERDICT} has {verdict or 'nothing'}")


def require_signed(run: StoredRun, keys: Iterable[str | Path]) -> str:
    """The id of the signing key of a run.

    Raises SignatureError if none of these keys did, or the run does not match its signature.
    """
    problems: list[str] = []
    key = check_signature(run, tuple(map(str, keys)), lambda subject, reason: problems.append(f"{subject}: {reason}"))
    if problems:
        raise errors.SignatureError(f"Run {run.info.id}: {'; '.join(problems)[:1000]}")
    return key
