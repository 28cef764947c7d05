"""The audit itself: runs chosen, each held against itself and built again, and all of it kept in a run that can be resumed."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.ops.auditing.config import AuditConfig
from trtops.ops.auditing.explaining import best, explain
from trtops.ops.auditing.gathering import Folder, gather
from trtops.ops.auditing.integrity import BUILDS, Shelf, check_integrity
from trtops.ops.auditing.rebuilding import environment_differences, rebuild
from trtops.ops.auditing.result import AuditResult, Contradiction, RunAudit
from trtops.ops.campaign.benches import bench, close_benches
from trtops.ops.campaign.config import Place
from trtops.ops.result import OnProgress, finish_with
from trtops.spec import BackendName
from trtops.tracking import builds, schema
from trtops.tracking.base import Run, RunInfo, StoredRun, Tracker, ended_if_whole
from trtops.tracking.owner import is_abandoned

EXPERIMENT = "audit"
_SAVE_SECONDS = 5.0
"""How often what was found so far is written down, and so how much of a killed audit is done again at most."""


@dataclass
class _Audit:
    """One audit under way."""

    config: AuditConfig
    tracker: Tracker
    shelf: Shelf
    folder: Folder

    def of(self, run_id: str) -> RunAudit:
        """One run, audited. Whatever is wrong with it is in the result.

        Raises:
            TrackingUnavailableError: If the store goes away, which is nothing wrong with the run.
        """
        begun = time.perf_counter()
        audited = RunAudit(id=run_id)
        try:
            run = self._loaded(run_id)
            audited = run if isinstance(run, RunAudit) else _empty_audit(run.info)
            if not isinstance(run, RunAudit):
                audited = self._audit(run, audited)
        except errors.TrackingUnavailableError:
            raise
        except Exception as exc:  # one bad run must not end the audit of the others, whatever it holds
            problem = Contradiction(what=f"run {run_id}", why=f"{type(exc).__name__}: {exc}"[:2000])
            audited = replace(audited, whole=False, contradictions=(*audited.contradictions, problem))
        return replace(audited, seconds=time.perf_counter() - begun)

    def _loaded(self, run_id: str) -> StoredRun | RunAudit:
        """The run, or what is to be said of one that is not there or has no manifest."""
        try:
            return self.tracker.load(run_id)
        except errors.RunNotFoundError as exc:
            return RunAudit(id=run_id, whole=False, contradictions=(Contradiction(what="run", why=str(exc)),))
        except errors.IncompleteRunError as exc:
            problem = Contradiction(what=schema.Artifact.MANIFEST, why=str(exc))
            return replace(_empty_audit(self.tracker.info(run_id)), whole=False, contradictions=(problem,))

    def _audit(self, run: StoredRun, audited: RunAudit) -> RunAudit:
        files, signature, found = check_integrity(run, self.shelf)
        audited = replace(
            audited,
            whole=files == len(run.manifest.artifacts),
            files=files,
            contradictions=found,
            signature=signature,
            dropped=tuple(each.artifact.path for each in run.manifest.dropped),
        )
        if not self.config.rebuild or not _holds_build(run):
            return audited
        return self._rebuilt(run, audited)

    def _rebuilt(self, run: StoredRun, audited: RunAudit) -> RunAudit:
        try:
            gathered = gather(run, self.tracker, self.folder)
        except errors.TrackingUnavailableError:
            raise
        except errors.TrtopsError as exc:
            return replace(audited, grade="cannot be rebuilt", explanation=f"It cannot be built again: {exc}")
        try:
            with bench(_place_of(gathered.build.engine.backend, self.config)) as backend:
                here, state = backend.environment(), backend.device_state()
                differences = environment_differences(
                    gathered.build.engine.environment, here, gathered.state, state.items()
                )
                made = tuple(rebuild(way, gathered, backend, self.config.repeats) for way in self.config.ways)
                put_back, why = explain(gathered, made, differences, backend, self.config.repeats)
        except errors.BackendError as exc:  # no such back end or device here
            return replace(
                audited, grade="cannot be rebuilt", explanation=f"{type(exc).__name__}: {exc}", missing=gathered.missing
            )
        return replace(
            audited,
            grade=best(each.grade for each in made),
            rebuilds=made,
            differences=differences,
            put_back=put_back,
            explanation=why,
            missing=gathered.missing,
        )


def _holds_build(run: StoredRun) -> bool:
    """Whether a run is a build that came out. Of the gate's runs those that built their candidate themselves."""
    if run.info.kind == "gate":
        return any(entry.path.startswith(f"{builds.ENGINE_STEM}.") for entry in run.manifest.original().artifacts)
    return run.info.kind in BUILDS and run.info.verdict != "error"


def _empty_audit(info: RunInfo) -> RunAudit:
    return RunAudit(id=info.id, name=info.name, experiment=info.experiment, kind=info.kind or "")


def _place_of(backend: str, config: AuditConfig) -> Place:
    named: BackendName = "onnxruntime" if backend == "onnxruntime" else "tensorrt"
    return Place(backend=named, timeout_seconds=config.timeout_seconds)


def audit(
    config: AuditConfig,
    *,
    tracker: Tracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> AuditResult:
    """Hold runs against themselves, build them again, and grade each.

    A run that cannot be read or built is a result. An audit that was cut short is resumed by asking for the same again.

    Args:
        config: Which runs, and how.
        tracker: The memory; model, caches, tactic records and data are taken from it alone.
        experiment: Where the audit's own run is kept; ``audit`` unless given.
        tags: Further tags of the run.
        progress: Called after each run.

    Raises:
        RunNotFoundError: If a run is asked for that is not there.
        ConfigError: If no run fits, or a key or folder cannot be read.
        TrackingUnavailableError: If the store goes away. Ask again when it is back.
    """
    _check_given(config)
    experiment = experiment or EXPERIMENT
    with _begun_or_resumed(config, tracker, experiment, tags) as (run, run_ids, done):
        work = _Audit(config, tracker, Shelf(tracker, config.keys), Folder(config.materials))
        begun = saved = time.perf_counter()
        earlier = sum(each.seconds for each in done.values())
        try:
            for run_id in run_ids:
                if run_id not in done:
                    done[run_id] = work.of(run_id)
                    if time.perf_counter() - saved > _SAVE_SECONDS:
                        _save_part(run, done)
                        saved = time.perf_counter()
                if progress is not None:
                    progress(len(done), len(run_ids))
        except BaseException:
            with contextlib.suppress(errors.TrtopsError):
                _save_part(run, done)
            raise
        finally:
            close_benches()
        result = AuditResult(
            title="audit",
            runs=tuple(done[run_id] for run_id in run_ids),
            at_least=config.at_least,
            seconds=earlier + time.perf_counter() - begun,
        ).kept_in(run, experiment)
        _log_result(run, result)
        finish_with(run, result, tracker)
    return result


def _check_given(config: AuditConfig) -> None:
    """Refuse keys and folders that cannot be read before anything is done."""
    from trtops import signing

    for key in config.keys:
        signing.key_id(key)
    if config.materials is not None and not Path(config.materials).is_dir():
        raise errors.ConfigError(f"materials={config.materials!r} is no folder.")


@contextlib.contextmanager
def _begun_or_resumed(
    config: AuditConfig, tracker: Tracker, experiment: str, tags: Mapping[str, str] | None
) -> Iterator[tuple[Run, tuple[str, ...], dict[str, RunAudit]]]:
    """The audit's run, the runs that it looks at, and what an earlier process found of them."""
    asked = replace(config, resume=True).digest
    earlier = _interrupted_audit(tracker, experiment, asked) if config.resume else None
    if earlier is None:
        run_ids = choose_runs(config, tracker)
        run = tracker.start(
            experiment, f"audit of {len(run_ids)} runs", kind="audit", tags={**(tags or {}), schema.Tag.AUDIT: asked}
        )
        done: dict[str, RunAudit] = {}
        run.log_params(schema.flat_params(config))
        run.log_json(list(run_ids), schema.Artifact.AUDIT_RUNS)
    else:
        run_ids, done = _found_so_far(tracker, earlier)
        run = tracker.reopen(earlier.id)
    try:
        yield run, run_ids, done
    except BaseException as exc:
        run.fail(exc)
        raise


def _interrupted_audit(tracker: Tracker, experiment: str, asked: str) -> RunInfo | None:
    """The newest audit of the same that has no end, and that no living process works on."""
    for info in tracker.find(experiment, tags={schema.Tag.KIND: "audit", schema.Tag.AUDIT: asked}):
        info = ended_if_whole(tracker, info)
        if info.status == "finished":
            return None  # it was done; whoever asks again wants it anew
        if info.status != "running" or is_abandoned(info):
            return info if tracker.peek(info.id, schema.Artifact.AUDIT_RUNS) is not None else None
    return None


def _found_so_far(tracker: Tracker, info: RunInfo) -> tuple[tuple[str, ...], dict[str, RunAudit]]:
    run_ids = tuple(json.loads(tracker.peek(info.id, schema.Artifact.AUDIT_RUNS) or b"[]"))
    part = json.loads(tracker.peek(info.id, schema.Artifact.AUDIT_PART) or b"[]")
    found = (RunAudit.from_dict(each) for each in part)
    return run_ids, {each.id: each for each in found}


def _save_part(run: Run, done: Mapping[str, RunAudit]) -> None:
    run.log_json([each.to_dict() for each in done.values()], schema.Artifact.AUDIT_PART)


def choose_runs(config: AuditConfig, tracker: Tracker) -> tuple[str, ...]:
    """Ids of the runs that a config asks for, in the order in which they are audited.

    Raises:
        ConfigError: If none is asked for, or none fits.
    """
    if config.runs:
        found = [tracker.whole_id(run) for run in config.runs]
    elif config.accepted:
        found = [version.run_id for _, version in tracker.accepted()]
    else:
        wanted = dict(config.tags)
        pairs = ((schema.Tag.KIND, config.kind), (schema.Tag.VERDICT, config.verdict))
        wanted |= {tag: value for tag, value in pairs if value}
        infos = tracker.find(config.experiment, tags=wanted, status="finished")
        found = [info.id for info in infos if info.kind is not None and (config.kind or info.kind != "audit")]
    found = sorted(dict.fromkeys(found)) if config.sample else list(dict.fromkeys(found))
    if config.accepted and config.filters:
        found = [each for each in found if _is_asked_for(tracker.info(each), config)]
    if not found:
        raise errors.ConfigError("No run fits what is asked for: give ids of runs, another filter, or all accepted.")
    if config.sample is not None and config.sample < len(found):
        found = random.Random(config.seed).sample(found, config.sample)
    return tuple(found)


def _is_asked_for(info: RunInfo, config: AuditConfig) -> bool:
    return (
        config.experiment in (None, info.experiment)
        and config.kind in (None, info.kind)
        and config.verdict in (None, info.verdict)
        and set(config.tags) <= set(info.tags.items())
    )


def _log_result(run: Run, result: AuditResult) -> None:
    run.log_json(result, schema.Artifact.AUDIT_RESULT)
    run.log_text(result.page(), schema.Artifact.AUDIT_PAGE)
    _save_part(run, {})
    numbers = {"runs": len(result.runs), "failed": len(result.failed), "seconds": result.seconds}
    numbers |= {grade.replace(" ", "_"): count for grade, count in result.grades.items()}
    run.log_metrics({(schema.Metric.AUDIT, name): float(value) for name, value in numbers.items()})
