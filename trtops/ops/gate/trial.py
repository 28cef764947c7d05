"""One candidate on trial: built or read, run beside the accepted engine, and measured."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Caches, Feed
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend, Worker
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.ops.campaign.benches import free_device
from trtops.ops.campaign.opened import find_model
from trtops.ops.engines.deny import deny_list
from trtops.ops.engines.job import BuildJob, read_cache_file
from trtops.ops.evaluation.check import Accuracy, collect, measure_accuracy, read_labels, tolerances_for
from trtops.ops.evaluation.rounding import moved_reference
from trtops.ops.gate.accepted import Wanted, last_accepted
from trtops.ops.gate.child import save_feeds
from trtops.ops.gate.config import GateConfig
from trtops.ops.gate.environments import HERE, Release, interpreter_of
from trtops.ops.gate.findings import Finding, Subject, with_axes
from trtops.ops.gate.measured import Facts, LayerComparison, Measured, Rounds
from trtops.ops.gate.policy import AccuracyLimit, BuildTimeLimit
from trtops.ops.gate.sides import Side, measure_rounds
from trtops.ops.gate.widths import Seen, measure_widths
from trtops.processes import temporary_prefix
from trtops.spec import Environment
from trtops.tracking import builds, schema
from trtops.tracking.base import Run, RunInfo
from trtops.tracking.materials import log_materials
from trtops.tracking.registry import RegisteringTracker

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """A candidate that cannot be measured; never leaves the gate.

    Attributes:
        finding: Why.
    """

    def __init__(self, finding: Finding) -> None:
        """Say why."""
        super().__init__(finding.text)
        self.finding = finding


_REFUSALS: dict[Subject, tuple[type[errors.TrtopsError], ...]] = {
    "release": (errors.BackendError, errors.ConfigError),
    "accepted": (errors.BackendError, errors.IncompleteRunError, errors.RunNotFoundError),
}
"""What counts against a candidate and ends nothing else; errors of the back end, unless listed."""


@contextlib.contextmanager
def _refused_for(subject: Subject) -> Iterator[None]:
    """Errors of the release, the device or the engine are a refusal."""
    try:
        yield
    except _REFUSALS.get(subject, (errors.BackendError,)) as exc:
        raise RefusedError(Finding(subject=subject, outcome="refuse", text=f"{type(exc).__name__}: {exc}")) from exc


@dataclass(frozen=True)
class _Accepted:
    """The accepted engine, ready to be run.

    Attributes:
        info: Its run.
        build: What it holds.
        backend: A child of its own release.
    """

    info: RunInfo
    build: Build
    backend: IsolatedBackend


class Trial:
    """One candidate being measured.

    Attributes:
        build: The candidate, once it is built or read.
        holder: The run that holds it.
    """

    def __init__(self, model: Model, config: GateConfig, run: Run, tracker: RegisteringTracker) -> None:
        """Nothing is done before :meth:`measure`.

        Args:
            model: The candidate's model.
            config: What is asked.
            run: The gate's run, which keeps the candidate if it is built now.
            tracker: The memory.
        """
        self.build: Build | None = None
        self.holder = ""
        self._model = model
        self._config = config
        self._run = run
        self._tracker = tracker
        self._limits = config.policy.of(config.build.precision)
        self._found: dict[Release, Environment] = {}  # releases whose children were asked what they have

    def measure(self) -> Measured:
        """Build, run, compare and time.

        Raises:
            RefusedError: If the candidate, or the accepted engine, cannot be made or run.
        """
        if self._config.wrong_device:
            raise RefusedError(Finding(subject="device", outcome="refuse", text=self._config.wrong_device))
        feeds = list(self._config.check.open_for(self._model))
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=temporary_prefix("gate"))))
            file = folder / "feeds.npz"
            save_feeds(feeds, str(file))
            device = stack.enter_context(free_device(self._config.place))
            backend = self._open_release(self._config.release, device, stack)
            if self._config.candidate is not None:
                build = self._stored_candidate(self._config.candidate)
                accepted = self._accepted_run(build.engine.environment)
            else:
                environment = self._ask_environment(backend)
                accepted = self._accepted_run(environment)
                build = self._built_candidate(backend, environment, accepted, feeds)
            other = None if accepted is None else self._open_accepted(accepted, device, stack)
            return self._compare(Side(backend, build.engine, file), build, other, feeds, file)

    def _open_release(self, release: Release, device: str, stack: contextlib.ExitStack) -> IsolatedBackend:
        """The back end of a release, in a child that ends with the stack."""
        config = self._config
        with _refused_for("release"):
            python = interpreter_of(release, config.build.backend)
        environment = {"CUDA_VISIBLE_DEVICES": device} if device else {}
        worker = stack.enter_context(Worker(environment, python=python, name=f"Release {release.name!r}"))
        return IsolatedBackend(config.build.backend, config.timeout_seconds, worker)

    def _ask_environment(self, backend: IsolatedBackend) -> Environment:
        with _refused_for("device"):
            environment = self._found[self._config.release] = backend.environment()
            self._run.set_tags({schema.Tag.DEVICE_STATE + n: value for n, value in backend.device_state().items()})
            return environment

    def _accepted_run(self, environment: Environment) -> RunInfo | None:
        """The run of the engine to compare with; None if nothing was accepted."""
        config = self._config
        if config.accepted is not None:
            return self._tracker.info(self._tracker.whole_id(config.accepted))
        wanted = Wanted(
            name=config.name or self._model.name,
            model_sha256=self._model.info.sha256,
            environment=environment,
            precision=config.build.precision,
        )
        return last_accepted(self._tracker, wanted)

    def _stored_candidate(self, run_id: str) -> Build:
        stored = self._tracker.load(self._tracker.whole_id(run_id))
        holder = builds.holder_of_engine(self._tracker, stored.info)
        build = builds.load_build(holder)
        if build.spec.model_sha256 != self._model.info.sha256:
            raise errors.ConfigError(
                f"The model has digest {self._model.info.sha256[:12]}, and candidate {stored.info.id} was built from "
                f"{build.spec.model_sha256[:12]}."
            )
        self.build, self.holder = build, holder.info.id
        self._run.set_tags({schema.Tag.EVIDENCE: holder.info.id, schema.Tag.MODEL_SHA256: build.spec.model_sha256})
        return build

    def _built_candidate(
        self, backend: IsolatedBackend, environment: Environment, accepted: RunInfo | None, feeds: list[Feed]
    ) -> Build:
        """The candidate, built now and logged."""
        config, run = self._config, self._run
        denied = deny_list(self._tracker, environment) if config.mind_deny_list else Caches().denied
        ranges = read_cache_file(config.calibration_cache, "calibration_cache")
        job = BuildJob.prepare(
            self._model,
            config.build,
            environment,
            caches=Caches(calibration=ranges if config.build.precision == "int8" else None, denied=denied),
            check=config.check,
            calibration_data=config.calibration_data,
        )
        builds.log_spec(run, job.spec, environment, reusable=False)
        check = config.check
        log_materials(run, caches=job.caches, check=check, feeds=feeds, data=check.data, golden=check.golden)
        before = None if accepted is None else accepted.metrics.get(schema.Metric.BUILD_SECONDS)
        with _refused_for("build"):
            build = job.build(backend)
            for _ in range(_more_builds(build, before, self._limits.build_time)):
                again = job.build(backend)
                build = min(build, again, key=lambda each: each.seconds)
        builds.log_build(run, build, backend.engine_suffix)
        if config.keep_model:
            for file in self._model.files():
                run.log_file(file, f"{schema.Artifact.MODEL}{file.name}")
        self.build, self.holder = build, run.id
        return build

    def _open_accepted(self, info: RunInfo, device: str, stack: contextlib.ExitStack) -> _Accepted:
        """The accepted engine, with a child of the release that it was built with."""
        with _refused_for("accepted"):
            build = builds.load_build(builds.holder_of_engine(self._tracker, info))
            wanted = build.engine.environment
            tried = []
            for release in dict.fromkeys((self._config.release, *self._config.others, HERE)):
                try:
                    backend = self._open_release(release, device, stack)
                    found = self._found.get(release) or backend.environment()
                except (RefusedError, errors.BackendError) as exc:
                    tried.append(f"{release.name!r}: {exc}")
                    continue
                if (found.backend, found.backend_version) == (wanted.backend, wanted.backend_version):
                    return _Accepted(info, build, backend)
                tried.append(f"{release.name!r} has {found.backend} {found.backend_version}")
            raise errors.BackendUnavailableError(
                f"The accepted engine was built with {wanted.backend} {wanted.backend_version} and runs with that release "
                f"alone; {'; '.join(tried)}. Give that release too."
            )

    def _compare(self, side: Side, build: Build, other: _Accepted | None, feeds: list[Feed], file: Path) -> Measured:
        """Run the candidate, and compare it with the reference and with the accepted engine."""
        check, accuracy = self._config.check, self._limits.accuracy
        with _refused_for("build"):
            # A build leaves memory behind that the engine would be given.
            opened = side.start() if self._limits.memory is not None else side.open()
            facts = Facts.of(self.holder, build, opened if self._limits.memory is not None else None)
            outputs = side.outputs()
        plain = _reference_outputs(self._model, feeds)
        golden = plain if check.golden is None else RunResults.load(check.golden)
        usual = tolerances_for(build.spec.config.precision, None, self._model)
        given = accuracy or AccuracyLimit()
        measured = Measured(
            candidate=facts,
            reference=compare_outputs(outputs, golden, with_axes(given.tolerances or usual, usual)),
            usual=usual,
            candidate_top1=self._top1(outputs, golden),
        )
        if other is None:
            return measured
        beside = Side(other.backend, other.build.engine, file)
        with _refused_for("accepted"):
            beside_opened = beside.start()
            theirs, again = beside.outputs(), beside.outputs()
        own = self._golden_of(other, golden, feeds)
        moved = moved_reference(self._model, feeds, build.spec.config.precision)
        seen = Seen(outputs, theirs, again, golden, own, plain, moved)
        return replace(
            measured,
            accepted=Facts.of(other.info.id, other.build, beside_opened),
            agreement=compare_outputs(outputs, theirs, with_axes(given.accepted or Tolerances(), usual)),
            widths=measure_widths(seen, build.spec.config.precision),
            accepted_top1=self._top1(theirs, golden),
            rounds=self._timed(side, beside),
            layers=LayerComparison.of(other.build.layers, build.layers),
        )

    def _timed(self, side: Side, beside: Side) -> Rounds | None:
        limit = self._limits.latency
        if limit is None:
            return None
        with _refused_for("build"):
            return measure_rounds(side, beside, limit, on_processor=self._config.build.backend == "onnxruntime")

    def _golden_of(self, other: _Accepted, golden: RunResults, feeds: list[Feed]) -> RunResults | None:
        """What the accepted engine should say; None if that cannot be known, since its model is gone."""
        if self._config.check.golden is not None or other.build.spec.model_sha256 == self._model.info.sha256:
            return golden
        try:
            return _reference_outputs(Model.load(find_model(self._tracker, other.info)), feeds)
        except (errors.ConfigError, errors.ModelError, errors.InputError) as exc:
            log.warning("How exact the accepted engine is cannot be known: %s", exc)
            return None

    def _top1(self, outputs: RunResults, golden: RunResults) -> Accuracy | None:
        labels = self._config.check.labels
        if labels is None:
            return None
        usual = tolerances_for(self._config.build.precision, None, self._model)
        return measure_accuracy(outputs, golden, read_labels(Path(labels)), usual)


def _reference_outputs(model: Model, feeds: list[Feed]) -> RunResults:
    with reference_runner(model) as runner:
        return collect(runner, feeds)


def _more_builds(build: Build, before: float | None, limit: BuildTimeLimit | None) -> int:
    """How many more builds it takes to say that a build is slow, and not that the machine was busy."""
    if limit is None or before is None:
        return 0
    slow = build.seconds > limit.ratio * before and build.seconds - before > limit.slack_seconds
    return limit.builds - 1 if slow else 0
