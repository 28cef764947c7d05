"""Whether a run is signed, by whom, and whether it still is what was signed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trtops import errors, signing
from trtops.record import sha256
from trtops.tracking.base import StoredRun
from trtops.tracking.schema import Artifact, Tag


def check_signature(run: StoredRun, keys: tuple[str, ...], wrong: Callable[[str, str], None]) -> str:
    """Check the signature of a run, if it has one or must have one.

    Args:
        run: The run.
        keys: Public keys that it must be signed with; without any, a signature is compared with the run and not verified.
        wrong: Told what does not agree, and why.

    Returns:
        The id of the key that signed it, if it was verified; else an empty text.
    """
    envelope = run.unlisted(Artifact.SIGNATURE)
    if not keys:
        statement = None if envelope is None else signing.peek(envelope)
        if statement is not None:
            try:
                _compare_signed(run, signing.Verified("", statement), wrong)
            except (KeyError, TypeError):
                wrong(Artifact.SIGNATURE, "it is no signature of a run")
        return ""
    if envelope is None:
        wrong(Artifact.SIGNATURE, "the run is not signed, and a signature is demanded")
        return ""
    try:
        verified = signing.verify(envelope, keys)
    except errors.SignatureError as exc:
        wrong(Artifact.SIGNATURE, str(exc))
        return ""
    _compare_signed(run, verified, wrong)
    return verified.key_id


def _compare_signed(run: StoredRun, verified: signing.Verified, wrong: Callable[[str, str], None]) -> None:
    """What was signed against what is there: manifest, files, spec, environment, verdict, and whose run it is."""
    signed, manifest = verified.subjects, run.manifest.original()
    found = {Artifact.MANIFEST: sha256(manifest.to_json().encode("utf-8"))}
    found |= {entry.path: entry.sha256 for entry in manifest.artifacts}
    for path in sorted({*signed, *found}):
        if signed.get(path) != found.get(path):
            says = f"{Artifact.SIGNATURE} says {signed.get(path, 'nothing')}"
            wrong(path, f"it is not what was signed: {says}; the run says {found.get(path, 'nothing')}")
    said = verified.predicate
    invocation = said["runDetails"]["metadata"]["invocationId"]
    if invocation not in (run.info.id, run.info.tags.get(Tag.LOCAL_ID)):
        wrong(Artifact.SIGNATURE, f"it was made for run {invocation}, and is in run {run.info.id}")
    if said.get("verdict") != run.info.tags.get(Tag.VERDICT):
        there = run.info.tags.get(Tag.VERDICT, "nothing")
        wrong("verdict", f"{Artifact.SIGNATURE} says {said.get('verdict')}; tag {Tag.VERDICT} says {there}")
    definition = said["buildDefinition"]
    _compare_document(run, Artifact.SPEC, definition["externalParameters"].get("spec"), wrong)
    _compare_document(run, Artifact.ENVIRONMENT, definition["internalParameters"].get("environment"), wrong)


def _compare_document(
    run: StoredRun, path: str, signed: Mapping[str, Any] | None, wrong: Callable[[str, str], None]
) -> None:
    # Of a run that was interrupted and resumed the later process knows the digest of this file alone.
    if signed is None or path not in run.manifest:
        return
    try:
        found = json.loads(run.read_bytes(path))
    except (ValueError, errors.IncompleteRunError):
        return  # named already
    if found != signed:
        wrong(path, f"it is not the {path} that {Artifact.SIGNATURE} repeats")


def require_signed(run: StoredRun, keys: Iterable[str | Path]) -> str:
    """The id of the key that signed a run.

    Raises:
        SignatureError: If none of these did, or the run is not what was signed.
    """
    problems: list[str] = []
    key = check_signature(run, tuple(map(str, keys)), lambda what, why: problems.append(f"{what}: {why}"))
    if problems:
        raise errors.SignatureError(f"Run {run.info.id}: {'; '.join(problems)[:1000]}")
    return key
