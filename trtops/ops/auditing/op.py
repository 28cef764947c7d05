"""Audit: check runs for contradictions, rebuild their engines, and grade the result."""

import os
import random
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from trtops import errors
from trtops.ops.arguments import checked_arguments
from trtops.ops.auditing.integrity import BUILDS, SharedReads, check_integrity
from trtops.ops.auditing.log_check import LogCheck, read_heads
from trtops.ops.auditing.rebuilding import check_engine_again, environment_differences, rebuild
from trtops.ops.auditing.result import (
    GRADES,
    WAYS,
    AtLeast,
    AuditResult,
    RunAudit,
    WayName,
    reaches,
)
from trtops.ops.devices import warm_backend
from trtops.ops.facts import Contradiction
from trtops.ops.registry.certificate import CertificateResult, verify_certificate
from trtops.ops.result import OnProgress, op_run, run_step, tracker_or_default
from trtops.ops.stored_build import MaterialFolder, gather
from trtops.record import Config, setting
from trtops.system import signing
from trtops.system.worker import kept_workers
from trtops.tracking import builds, owner, schema
from trtops.tracking.base import RunInfo, StoredRun, Tracker, run_id_of


@dataclass(frozen=True, kw_only=True)
class AuditConfig(Config):
    """Which runs are audited, and how.

    Attributes:
        runs: Run ids.
        experiment: All finished runs of an experiment.
        tags: Only runs with these tags, as names and values.
        accepted: All runs that an alias of the registry points to.
        sample: Number of runs drawn at random from those found; all if None.
        seed: Seed of the draw.
        rebuild: Rebuild each engine and grade it; otherwise only check integrity.
        ways: How engines are rebuilt.
        at_least: The grade that every run must reach.
        materials: Folder that is searched by digest for models that were not logged.
        keys: PEM files of public keys; every build, certificate and head of ``log`` must be signed with one of them.
        certificates: Folders of certified engines. Each is verified, and its run is audited as well.
        log: Heads of the store's log that earlier audits printed, or files with one, to compare with today's log.
        timeout_seconds: Time limit of a build and of its first inferences; None waits without limit.
    """

    runs: tuple[str, ...] = ()
    experiment: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    accepted: bool = False
    sample: int | None = setting(None, least=1)
    seed: int = 0
    rebuild: bool = True
    ways: tuple[WayName, ...] = WAYS
    at_least: AtLeast = "tactics"
    materials: str | None = setting(None, file="reads")
    keys: tuple[str, ...] = setting((), file="reads")
    certificates: tuple[str, ...] = setting((), file="reads")
    log: tuple[str, ...] = setting((), file="reads")
    timeout_seconds: float | None = 1800.0

    def __post_init__(self) -> None:
        if self.rebuild and not self.ways:
            raise errors.ConfigError(f"ways is empty; expected some of {', '.join(WAYS)}.")
        if self.runs and (self.experiment or self.tags or self.accepted):
            raise errors.ConfigError("Both run ids and a filter are given; give one of the two.")
        if self.certificates and not self.keys:
            raise errors.ConfigError("certificates need the public keys of their signers: give keys (--key).")

    @property
    def has_filter(self) -> bool:
        """Whether runs are selected by a filter."""
        return bool(self.experiment or self.tags or self.accepted or self.sample)


@checked_arguments
@kept_workers()
def audit(
    config: AuditConfig,
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> AuditResult:
    """Check runs for contradictions, rebuild their engines, and grade each.

    Everything is taken from the tracking store. A run that cannot be read or rebuilt is part of the result.
    RunNotFoundError if a run id does not exist; ConfigError if no run matches, or a key or folder cannot be read.

    >>> build = trtops.convert("model.onnx", trtops.ConvertConfig(check=trtops.CheckConfig(data="feed.npz")))
    >>> result = audit(AuditConfig(runs=(build.run_id,)))
    >>> result.headline, result.grades
    ('1 of 1 runs pass', {'... equal': 1})
    """
    tracker = tracker_or_default(tracker)
    # Keys and folders are checked first: an audit takes hours.
    for key in config.keys:
        signing.key_id(key)
    for path in filter(None, (config.materials, *config.certificates)):
        if not Path(path).is_dir():
            raise errors.ConfigError(f"{path!r} is not a folder; materials and certificates are in folders.")
    experiment = experiment or "audit"
    heads = list(chain.from_iterable(map(read_heads, config.log)))
    shared, folder = SharedReads(tracker, config.keys), MaterialFolder(config.materials)
    certificates = [verify_certificate(path, config.keys, tracker=tracker) for path in config.certificates]
    certified_runs = [certificate.facts["run"] for certificate in certificates if certificate.facts]
    run_ids, logged, rows = choose_runs(config, tracker, shared.log, certified_runs)
    begin = time.perf_counter()
    with op_run(tracker, experiment, f"audit of {len(run_ids)} runs", kind="audit", tags=tags) as op:
        run = op.run
        run.log_params(config)
        done = list(map(_certificate_audit, certificates))
        for run_id in run_ids:
            done.append(_audit_run(run_id, rows, config, shared, folder))
            if progress is not None:
                progress(len(done) - len(certificates), len(run_ids))
        shared.log.check_given(heads, config.keys)
        result = AuditResult(
            title="audit",
            runs=tuple(done),
            at_least=config.at_least,
            seconds=time.perf_counter() - begin,
            log=shared.log.check_store(logged, rows, run_ids, shared.accepted),
        )
        for run_audit in result.runs:
            if run_audit.kind in BUILDS:
                passed = schema.family(schema.Metric.AUDIT, passed=run_audit.passes(config.at_least))
                run.log_metrics(passed, engine=run_audit.id)
        numbers = {"runs": len(result.runs), "failed": len(result.failed), "seconds": result.seconds}
        for grade, count in result.grades.items():
            numbers[grade.replace(" ", "_")] = count
        # Of an engine above, and of all here.
        run.log_metrics(schema.family(schema.Metric.AUDIT, passed=not result.failed, **numbers))
        return op.finish(result, artifact=schema.Artifact.AUDIT_RESULT)


def choose_runs(
    config: AuditConfig, tracker: Tracker, log: LogCheck, certified_runs: Collection[str] = ()
) -> tuple[list[str], Collection[str], Mapping[str, RunInfo]]:
    """Return the runs to audit in order, the runs expected by the log, and the rows read, by id.

    ConfigError if no run matches.
    """
    required_tags, rows = dict(config.tags), dict[str, RunInfo]()
    logged = {}
    for run_id, (_, entry) in log.ends.items():
        tags = {schema.Tag.KIND: entry.facts.get("kind"), schema.Tag.VERDICT: entry.facts.get("verdict")}
        if required_tags.items() <= tags.items() and config.experiment in (None, entry.facts.get("experiment")):
            logged[run_id] = entry
    if config.runs or (config.certificates and not config.has_filter and not config.log):
        ids = [run_id_of(run, tracker) for run in config.runs]
        logged = {run_id: entry for run_id, entry in logged.items() if entry.facts.get("parent") in ids}
    else:
        if config.accepted:
            infos = [tracker.info(version.run_id) for _, version in tracker.accepted()]
            registered = [log_entry.run for _, log_entry in log.registered.values()]
            logged = {run_id: logged[run_id] for run_id in registered if run_id in logged}
        else:
            rows = {info.id: info for info, _ in tracker.all_runs()}
            # Audits are left out unless they are asked for: each would be audited by all later ones.
            kinds = {*schema.KINDS} - ({"audit"} if schema.Tag.KIND not in required_tags else set())
            infos = [info for info in rows.values() if info.kind in kinds and not info.deleted and _is_finished(info)]
        ids = []
        for info in infos:
            if config.experiment in (None, info.experiment) and required_tags.items() <= info.tags.items():
                ids.append(info.id)
    if config.log and not config.runs and not config.has_filter:
        ids = []  # only the log is audited
    ids = list(dict.fromkeys(ids))
    if not ids and not logged and not config.certificates:
        raise errors.ConfigError("No run matches. Give run ids, another filter, or accepted.")
    if config.sample is not None and config.sample < len(ids):
        # Sorted first, so that a seed draws the same runs in whatever order the store lists them.
        ids = random.Random(config.seed).sample(sorted(ids), config.sample)
    return list(dict.fromkeys((*ids, *certified_runs))), logged, rows


def _is_finished(info: RunInfo) -> bool:
    """True for a run with a complete end, also if its status was changed since."""
    sealed = schema.Tag.MANIFEST_SHA256 in info.tags and (info.status != "running" or owner.is_abandoned(info))
    return info.status == "finished" or sealed


def _certificate_audit(certificate: CertificateResult) -> RunAudit:
    problems = (Contradiction(subject="certificate", reason=reason) for reason in certificate.reasons)
    return RunAudit(
        id=certificate.facts.get("run", ""),
        name=certificate.folder,
        kind="certificate",
        whole=bool(certificate.facts),
        files=len(os.listdir(certificate.folder)) if certificate.facts else 0,
        contradictions=tuple(problems),
        signature=certificate.key,
    )


def _audit_run(
    run_id: str, rows: Mapping[str, RunInfo], config: AuditConfig, shared: SharedReads, folder: MaterialFolder
) -> RunAudit:
    """Audit one run. Every problem except an unavailable store is part of the result."""
    audited, tracker = RunAudit(id=run_id), shared.tracker
    checked_part = "run"
    try:
        info = rows.get(run_id) or tracker.info(run_id)
        audited = RunAudit(id=run_id, name=info.name, experiment=info.experiment, kind=info.kind or "")
        checked_part = schema.Artifact.MANIFEST
        run = tracker.load(run_id)
        info = run.info
        checked_part = f"run {run_id}"
        audited = check_integrity(run, shared)
        if info.kind == "gate":  # it only contains an engine if it built its candidate
            holds_build = builds.engine_entry(run.manifest.original()) is not None
        else:
            holds_build = info.kind in BUILDS and info.verdict != "error"
        if config.rebuild and holds_build:
            audited = _rebuild_run(run, audited, config, tracker, folder)
    except errors.TrackingUnavailableError:
        raise
    except Exception as exc:  # one damaged run must not end the audit of the others
        is_expected_error = isinstance(exc, (errors.RunNotFoundError, errors.IncompleteRunError))
        problem = Contradiction(
            subject=checked_part, reason=str(exc) if is_expected_error else f"{type(exc).__name__}: {exc}"[:2000]
        )
        audited = replace(audited, whole=False, contradictions=(*audited.contradictions, problem))
    return audited


def _rebuild_run(
    run: StoredRun, audited: RunAudit, config: AuditConfig, tracker: Tracker, folder: MaterialFolder
) -> RunAudit:
    try:
        logged = gather(run, tracker, folder)
    except errors.TrackingUnavailableError:
        raise
    except errors.TrtopsError as exc:
        return replace(audited, grade="cannot be rebuilt", explanation=str(exc))
    try:
        build = logged.build.spec.config
        with warm_backend(build.backend, timeout=config.timeout_seconds) as backend:
            logged_environment, current_environment = logged.build.engine.environment, backend.environment(build)
            differences = environment_differences(
                logged_environment, current_environment, logged.state, backend.device_state(build)
            )
            problems, unverified = check_engine_again(logged, backend)
            if logged.build.spec.engine_sha256 is not None:
                return replace(
                    audited,
                    contradictions=(*audited.contradictions, *problems),
                    unverified=(*audited.unverified, *unverified),
                    explanation=f"not rebuilt; of its build is not known: {', '.join(logged.build.spec.unknown)}",
                    differences=differences,
                    missing=logged.missing,
                )
            rebuilds = tuple(run_step("rebuild", rebuild, way, logged, backend) for way in config.ways)
    except errors.BackendError as exc:  # the back end or the device is not available here
        explanation = f"{type(exc).__name__}: {exc}"
        return replace(audited, grade="cannot be rebuilt", explanation=explanation, missing=logged.missing)
    # The best way counts: replay and timing cache exist because a plain build may choose other tactics each time.
    grade = min((rebuilt.grade for rebuilt in rebuilds), key=GRADES.index)
    # In the environment of the build, equal kernels give equal numbers unless another input was changed.
    for rebuilt in rebuilds if not reaches(grade, "outputs") and not differences else ():
        if not rebuilt.tactics and rebuilt.outputs:
            problems.append(Contradiction(subject="outputs", reason=f"rebuilt by {rebuilt.way}: {rebuilt.reason}"))
    return replace(
        audited,
        contradictions=(*audited.contradictions, *problems),
        unverified=(*audited.unverified, *unverified),
        grade=grade,
        rebuilds=rebuilds,
        differences=differences,
        missing=logged.missing,
    )
