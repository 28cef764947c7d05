"""Check the integrity of a run: every fact stored in several places must be the same everywhere.

A fact has claims: values with their sources. Two different values are a contradiction, and so is an unreadable file.
The manifest states the run's row in the database; a report is drawn again; an engine has the layers that were logged.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from trtops import errors
from trtops.ops import facts as shared_facts
from trtops.ops.auditing.log_check import LogCheck
from trtops.ops.auditing.result import RunAudit
from trtops.ops.campaign import audit_facts as campaign
from trtops.ops.engines import audit_facts as engines
from trtops.ops.evaluation import audit_facts as evaluation
from trtops.ops.facts import NOTHING, Facts, same_number
from trtops.ops.gate import result as gate
from trtops.ops.registry import audit_facts as registry
from trtops.ops.search import choose
from trtops.record import sha256
from trtops.reports.document import Document
from trtops.reports.present import render_report
from trtops.tracking import schema
from trtops.tracking.base import StoredRun
from trtops.tracking.records import LISTING, Statement, is_local
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.signatures import check_signature

BUILDS = ("build", "evaluate", "iteration", "promote", "gate")
"""Kinds of runs that hold an engine; a gate only does if it built its candidate."""


@dataclass
class SharedReads(shared_facts.SharedReads):
    """Data shared by several runs of an audit, read once. Each build must be signed with one of the public keys."""

    keys: tuple[str, ...] = ()

    @functools.cached_property
    def log(self) -> LogCheck:
        """The log of the store."""
        return LogCheck(self.tracker)


def check_integrity(run: StoredRun, shared: SharedReads) -> RunAudit:
    """Compare the facts of a run with each other: files, tags, params, metrics, manifest and registry."""
    info, facts = run.info, Facts(run.info)
    files = _check_files(run, facts)
    signature = check_signature(run, shared.keys, facts.wrong)
    for needed, kinds, check in _CHECKS:
        try:
            if info.kind in kinds and (not needed or needed in run):
                check(run, shared, facts)
        except errors.IncompleteRunError as exc:
            if not facts.problems:  # otherwise the file is already reported
                facts.wrong(f"run {info.id}", str(exc))
        except errors.TrackingUnavailableError:
            raise
        except Exception as exc:  # a forged file may lead to any error
            facts.wrong(f"run {info.id}", f"{type(exc).__name__}: {exc}")
    logged, unverified = shared.log.check_run(run)
    return RunAudit(
        id=info.id,
        name=info.name,
        experiment=info.experiment,
        kind=info.kind or "",
        whole=files == len(run.manifest.artifacts),
        files=files,
        contradictions=(*facts.contradictions(), *logged),
        unverified=(*facts.unverified, *unverified),
        signature=signature,
    )


def _check_files(run: StoredRun, facts: Facts) -> int:
    """Compare files with the manifest, and the manifest with tags; returns the number of matching files."""
    files = 0
    for entry in run.manifest.artifacts:
        try:
            run.local_path(entry.path)
            files += 1
        except errors.IncompleteRunError as exc:
            facts.wrong(entry.path, str(exc))
    # As it was first written: engines that were deleted later are still named in the tags.
    manifest = run.manifest.original()
    manifest_sha256 = sha256(manifest.to_json().encode("utf-8"))
    facts.tag(Artifact.MANIFEST, Tag.MANIFEST_SHA256, "the file", manifest_sha256, NOTHING)
    _, listed, listing = run.info.tags.get(Tag.NOTE, "").rpartition(f"{LISTING}\n")
    noted = dict(re.findall("^- `(.+)` `([0-9a-f]{16})`$", listing, re.MULTILINE)) if listed else {}
    entries = {entry.path: entry.sha256[:16] for entry in manifest.artifacts}
    for path in sorted({*noted, *entries}) if noted else ():
        facts.add(path, {f"tag {Tag.NOTE}": noted.get(path, NOTHING), Artifact.MANIFEST: entries.get(path, NOTHING)})
    return files


def _check_row(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the run's row in the database with the manifest's statement of it, and files with the manifest's list."""
    info, stated, manifest_row = run.info, run.manifest.run, f"{Artifact.MANIFEST} (run)"
    details = run.details()
    listed = {Artifact.MANIFEST, Artifact.SIGNATURE, *(entry.path for entry in run.manifest.artifacts)}
    for path in sorted({*details.files} - listed):
        facts.wrong(path, f"{Artifact.MANIFEST} does not list it")
    if stated is None:
        facts.wrong(Artifact.MANIFEST, "it has no statement of the run's row in the database")
        return
    facts.add("status", {"the store": info.status, Artifact.MANIFEST: "finished"})
    facts.add("shown status", {"MLflow": details.status[0], "a finished run with its verdict": details.status[1]})
    for fact, (mlflow_value, run_value) in details.derived.items():
        facts.add(fact, {"MLflow": mlflow_value, "the run's own data": run_value})
    facts.unverified.extend(details.unverified)
    facts.add("user", {"the store": details.user, "tag mlflow.user": info.tags.get("mlflow.user")})
    parent = stated.parent
    if parent is not None and is_local(parent):  # its parent had not been uploaded
        with contextlib.suppress(errors.RunNotFoundError):
            parent = shared.tracker.info(parent).id
    for column, stored_value, stated_value in (
        ("experiment", info.experiment, stated.experiment),
        ("name", info.name, stated.name),
        ("parent", info.parent, parent),
        ("start time", round(info.start_time, 3), stated.start_time),
        ("end time", info.end_time and round(info.end_time, 3), stated.end_time),
    ):
        facts.add(column, {"the store": stored_value or NOTHING, manifest_row: stated_value or NOTHING})
    # Users may add tags of their own; the parent's has been compared.
    ours = {name for name in info.tags if name.startswith("trtops.")} - {Tag.MANIFEST_SHA256}
    for name in sorted({*stated.tags, *ours} - {"mlflow.parentRunId"}):
        value = info.tags.get(name)
        stored_value = NOTHING if value is None else Statement.short(value)
        facts.add(f"tag {name}", {f"tag {name}": stored_value, manifest_row: stated.tags.get(name, NOTHING)})
    for name in sorted({*stated.params, *info.params}):
        value = info.params.get(name)
        stored_value = NOTHING if value is None else Statement.short(value)
        facts.add(f"param {name}", {"the store's params": stored_value, manifest_row: stated.params.get(name, NOTHING)})
    last = {schema.metric_name(name): values[-1] for name, values in stated.metrics.items()}
    facts.metrics(last, manifest_row, {name[0] for name in info.metrics})
    for name, values in details.history.items():
        logged = stated.metrics.get(name, ())
        # Values of an earlier process are not stated, and those of a spooled run may be missing.
        stored, expected = values[-1:] if stated.resumed else values, () if stated.spooled else logged
        if not (_contains(logged, stored) and _contains(values, expected)):
            facts.add(f"history of metric {name}", {"the store": values, manifest_row: logged})
    if run.unlisted(Artifact.SIGNATURE) is None and stated.signed:
        facts.wrong(
            Artifact.SIGNATURE, f"the run was signed when it finished ({manifest_row}), and the signature is gone"
        )
    elif not stated.signed and info.start_time > shared.log.first_signed:
        facts.unverified.append("who made the run: it is not signed, and earlier runs of the store are")


def _contains(numbers: Sequence[float], others: Sequence[float]) -> bool:
    """True if each of the other numbers is among the numbers."""
    return all(any(same_number(other, number) for number in numbers) for other in others)


def _check_page(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Draw the report and the description again, and compare them with the logged ones."""
    if Artifact.REPORT not in run.manifest:
        if Tag.HEADLINE in run.info.tags:  # which is set right before the report is written
            facts.wrong(Artifact.REPORT, "the run has a headline and no report")
        return
    document = Document.from_json(run.read_bytes(Artifact.REPORT_DATA))
    facts.tag("verdict", Tag.VERDICT, Artifact.REPORT_DATA, document.verdict or None)
    drawn = render_report(shared.tracker, run)
    if not drawn:
        facts.unverified.append(f"{Artifact.REPORT}: another release drew it, so it is not compared with the data")
        return
    stored = run.read_bytes(Artifact.REPORT).decode("utf-8", "replace")
    if stored not in (page for page, _ in drawn):
        lines = zip_longest(stored.split("\n"), drawn[0][0].split("\n"))
        line = next(
            number for number, (stored_line, rendered_line) in enumerate(lines, 1) if stored_line != rendered_line
        )
        facts.wrong(Artifact.REPORT, f"it is not the page that is drawn from the run's data, from line {line} on")
    if run.info.tags.get(Tag.NOTE) not in [run.manifest.original().noted(note) for _, note in drawn]:
        facts.wrong(f"tag {Tag.NOTE}", "it is not the description that is drawn from the run's data")


_CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[StoredRun, SharedReads, Facts], None]], ...] = (
    ("", schema.KINDS, _check_row),
    ("", schema.KINDS, _check_page),
    (Artifact.CALIBRATION_JSON, ("calibrate",), engines.calibration_facts),
    (Artifact.SPEC, BUILDS, engines.build_facts),
    (Artifact.LAYERS, BUILDS, engines.tactic_facts),
    (Artifact.ACCURACY, (*BUILDS, "compare"), evaluation.audit_facts),
    (Artifact.GATE, ("gate",), gate.audit_facts),
    (Artifact.CAMPAIGN_TABLE, ("debug_build",), campaign.audit_facts),
    (Artifact.CHOOSE, ("choose",), choose.audit_facts),
    ("", ("iteration",), campaign.iteration_facts),
    ("", schema.KINDS, registry.audit_facts),
    (Artifact.DENIED, ("deny",), registry.deny_facts),
)
"""Every check, with the file and the kinds of runs that it needs."""
