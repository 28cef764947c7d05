"""Measure one candidate: build or load it, run it next to the accepted engine, and compare both."""

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from trtops import errors
from trtops.backend.base import Build, Caches, Engine, Feed
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.tactics import BY_NAME, Candidate
from trtops.backend.ratio import Metric, StartNoise
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.report import Tolerances, compare_outputs, iterations_of
from trtops.comparator.results import RunResults
from trtops.metadata import is_dynamic
from trtops.ops.devices import free_device
from trtops.ops.engines.convert import log_model
from trtops.ops.engines.request import CommandData, read_cache_file
from trtops.ops.evaluation.check import assess, measure_tasks, with_power
from trtops.ops.evaluation.data import Feeds, golden_outputs, naming_assumed
from trtops.ops.evaluation.evidence import SeenFeeds
from trtops.ops.evaluation.precision_check import check_precision
from trtops.ops.evaluation.right_model import RightModel, noise_and_draws
from trtops.ops.evaluation.self_check import check_engine
from trtops.ops.gate.engine_process import (
    EngineProcess,
    ProcessRunner,
    Rounds,
    close_engine,
    measure_rounds,
    save_feeds,
)
from trtops.ops.gate.findings import EngineFacts, Finding, Measured, latency_finding
from trtops.ops.gate.noise_widths import measure_widths
from trtops.ops.gate.policy import AccuracyLimit, GateConfig
from trtops.ops.gate.releases import HERE, interpreter_of, name_of
from trtops.ops.registry.accepted import registered_model
from trtops.ops.registry.deny import deny_list
from trtops.ops.result import run_step
from trtops.record import JSONValue, digest, sha256
from trtops.spec import Environment
from trtops.system.locks import locked, machine_folder
from trtops.system.processes import temporary_prefix
from trtops.system.worker import Worker
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, schema
from trtops.tracking.base import Run, RunInfo, Tracker, run_id_of
from trtops.tracking.builds import log_materials
from trtops.tracking.schema import Tag

T = TypeVar("T")

# Shares of the budget: for all steps, and for the end of one that still runs then. The rest is for the report.
_USED, _GRACE = 0.88, 0.06


Timed: TypeAlias = dict[tuple[str, str], Rounds]  # those that decided, by the digests of candidate and accepted engine


class GateSession(contextlib.ExitStack):
    """Shared state of the gates of one run: child processes, slow to start on a GPU, and measurements."""

    def __init__(self) -> None:
        super().__init__()
        self.timed: Timed = {}
        self.rounds: list[Rounds] = []  # all, also those that did not decide
        self.right_models: dict[str, RightModel] = {}  # by model, build config and calibration; on the same data
        self._workers: dict[tuple[str, str, str], Worker] = {}

    def worker(
        self, engine: str, release: str, device: str, python: str | None = None, until: float = math.inf
    ) -> Worker:
        """The process of the candidate's or the accepted engine, with no engine open; its calls end at ``until``."""
        key = engine, release, device
        if (worker := self._workers.get(key)) is None:
            environment = {"CUDA_VISIBLE_DEVICES": device} if device else {}
            worker = Worker(environment, python=python, name=f"Release {name_of(release)!r}")
            self._workers[key] = self.enter_context(worker)
        worker.until = until
        if worker.pid is not None:
            with contextlib.suppress(errors.WorkerError):  # the next call starts another process
                worker.run(close_engine)
        return worker


class NotMeasuredError(Exception):
    """A failed or unfinished step; caught by the gate, which reports the ``finding``."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


class Measurement:
    """The measurement of one candidate."""

    def __init__(self, model: Model, config: GateConfig, run: Run, tracker: Tracker, session: GateSession) -> None:
        self.holder = ""  # id of the run that holds it: the gate's own if it is built now
        self.measured: Measured | None = None  # as far as it is complete
        self._session = session
        self._end = time.monotonic() + _USED * 60 * config.minutes
        self._model = model
        self._config = config
        self._run = run
        self._tracker = tracker
        self._limits = config.policy.of(config.build.precision)
        self._tolerances = (self._limits.accuracy or AccuracyLimit()).tolerances

    def measure(self) -> None:
        """Build, run, compare and time; NotMeasuredError if an engine cannot be built or run, or the budget ends."""
        with self._bounded("reference"), contextlib.ExitStack() as stack:
            self._measure(stack)

    def _measure(self, stack: contextlib.ExitStack) -> None:
        config, model = self._config, self._model
        source = config.check.open_for(model, profiles=config.build.profiles)
        seen = SeenFeeds(source)
        feeds = list(seen)
        check = replace(config.check, tolerances=self._tolerances)
        # First, since a builder would be blamed for shapes that the model itself does not accept.
        plain = self._reference_outputs(source, feeds) if source.assumed else None
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=temporary_prefix("gate"))), "feeds.npz")
        save_feeds(feeds, file)
        # Held to the end, so that no other build or gate changes the clock of this GPU in between.
        with self._ending("device"):
            device = stack.enter_context(free_device(config.build.backend, config.devices, self._end))
        backend = self._open_release("candidate", config.release, device)
        build, accepted = run_step("build", self._candidate, backend, feeds)
        with self._ending("build"):
            metrics, deciding = _metrics(config.clock, build.engine)
            process = EngineProcess(backend, build.engine, file, metrics)
            stack.callback(process.close)
            outputs = run_step("run", process.outputs)
        right = self._right_model(build, source, feeds, plain)
        golden = right.golden if config.check.golden is None else RunResults.load(config.check.golden)
        tolerances = right.tolerances(check.tolerances)
        evaluation = run_step("compare", assess, outputs, golden, None, check, tolerances, source, seen, right)
        evaluation = evaluation.leaving_out(build.denied)
        evaluation = with_power(evaluation, golden, config.check, tolerances)
        if check.self_check is not False:
            with self._ending("self-check"), ProcessRunner(process) as candidate:
                iterations = iterations_of(outputs, "actual")
                thorough = check.self_check is True
                checked = run_step(
                    "self-check", check_engine, candidate, model, feeds, iterations, config.build, thorough=thorough
                )
            evaluation = replace(evaluation, self_check=checked)
        with self._ending("build"):
            facts = _facts(self.holder, build, process, outputs)
        self.measured = measured = Measured(candidate=facts, evaluation=evaluation)
        if accepted is None:
            return
        other, other_backend = self._open_accepted(accepted, device)
        with self._ending("accepted"):
            try:
                other_process = EngineProcess(other_backend, other.engine, file, metrics)
                stack.callback(other_process.close)
            except errors.InputError as exc:
                text = f"the accepted engine does not run on the candidate's inputs: {exc}"
                raise NotMeasuredError(Finding("interface", "refuse", text)) from exc
            # Twice, because the difference from run to run is part of the noise.
            theirs, again = (run_step("run accepted", other_process.outputs) for _ in range(2))
            other_facts = _facts(accepted.id, other, other_process, theirs)
        same_model = other.spec.model_sha256 == model.info.sha256
        self.measured = measured = replace(
            measured,
            accepted=other_facts,
            agreement=compare_outputs(outputs, theirs, Tolerances()),
            widths=measure_widths(outputs, (theirs, again), golden, right.noise, same_model=same_model),
            tasks=measure_tasks(outputs, theirs, check, tolerances, seen.given),
            differences=differing_choices(build.tactics, other.tactics),
        )
        if self._limits.latency is not None and not measured.same_engine:
            threads = [compared.engine.options.get("intra_op_threads") for compared in (build, other)]
            if config.clock == "auto" and threads[0] != threads[1]:
                deciding = ("wall",)  # more threads may use more CPU time in less time
            self.measured = replace(measured, rounds=self._time(process, other_process, measured, deciding, threads[0]))

    def _time(
        self,
        process: EngineProcess,
        accepted: EngineProcess,
        measured: Measured,
        deciding: tuple[Metric, ...],
        threads: JSONValue,
    ) -> Rounds:
        """Time both engines, unless an equal pair was timed in this session."""
        limit, session = self._limits.latency, self._session
        assert limit is not None and measured.accepted is not None
        pair = measured.candidate.speed_digest, measured.accepted.speed_digest
        if (rounds := session.timed.get(pair)) is not None:
            return rounds
        starts = {
            metric: [timed_rounds.starts.get(metric, ()) for timed_rounds in session.rounds] for metric in deciding
        }
        with self._ending("latency"):
            rounds = run_step(
                "time",
                measure_rounds,
                process,
                accepted,
                limit,
                deciding=deciding,
                cores=sorted(os.sched_getaffinity(0)) if threads == 1 and hasattr(os, "sched_getaffinity") else (),
                turn=self._turn_on_cpu if self._config.build.backend == "onnxruntime" else contextlib.nullcontext,
                earlier_noise={
                    metric: noise for metric, values in starts.items() if (noise := StartNoise.pooled(values))
                },
                until=self._end,
            )
        session.rounds.append(rounds)
        if latency_finding(rounds, limit).outcome != "open":
            session.timed[pair] = rounds
        return rounds

    def _right_model(self, build: Build, source: Feeds, feeds: list[Feed], plain: RunResults | None) -> RightModel:
        """The right model of a build, with its noise; ``plain`` are its own outputs, if they are known."""
        model, build_config, calibration = self._model, build.spec.config, build.calibration_cache
        key = digest([model.info.sha256, build_config.digest, None if calibration is None else sha256(calibration)])
        if (right := self._session.right_models.get(key)) is None:
            plain = plain or self._reference_outputs(source, feeds)
            right = RightModel(model=model, build=build_config, feeds=feeds, golden=plain, calibration=calibration)
            noise, draws, keys = run_step("measure noise", self._reference, noise_and_draws, right)
            self._session.right_models[key] = right = replace(right, measured=noise, _draws=draws, _drawn_keys=keys)
        return right

    def _reference(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the model itself in a child process, ended with the budget."""
        return self._session.worker("reference", HERE, "", until=self._until).run(function, *args)

    def _reference_outputs(self, source: Feeds, feeds: list[Feed]) -> RunResults:
        with naming_assumed(self._model, source):
            return run_step("run reference", self._reference, golden_outputs, self._model, feeds, None)

    @property
    def _until(self) -> float:
        """The end time of calls of child processes."""
        return self._end + _GRACE * 60 * self._config.minutes

    def _turn_on_cpu(self) -> contextlib.AbstractContextManager[None]:
        """Keep other gates on this machine's processor waiting, as they would be measured as well. GPUs are held."""
        return locked(machine_folder() / "gate_on_cpu", max(0.0, self._end - time.monotonic()))

    @contextlib.contextmanager
    def _bounded(self, subject: str) -> Iterator[None]:
        """Turn the end of the budget into no decision."""
        try:
            yield
        except (TimeoutError, errors.WorkerError) as exc:
            if time.monotonic() < self._end or not getattr(exc, "timed_out", True):
                raise
            text = f"not finished within the {self._config.minutes:g} minutes of this gate; raise --minutes"
            raise NotMeasuredError(Finding(subject, "open", text)) from exc

    @contextlib.contextmanager
    def _ending(self, subject: str, *further: type[errors.TrtopsError]) -> Iterator[None]:
        """Turn errors of the back end, and further ones, into a refusal, and the end of the budget into no decision."""
        kinds: tuple[type[errors.TrtopsError], ...] = (errors.BackendError, *further)
        try:
            with self._bounded(subject):
                yield
        except kinds as exc:
            is_here = (subject, self._config.release) == ("device", HERE)
            if isinstance(exc, errors.BackendUnavailableError) and is_here:
                raise  # nothing can be built here, whatever the candidate
            raise NotMeasuredError(Finding(subject, "refuse", f"{type(exc).__name__}: {exc}")) from exc

    def _open_release(self, engine: str, release: str, device: str) -> IsolatedBackend:
        """The back end of a release, in the child process of one of the two engines."""
        with self._ending("release", errors.ConfigError):
            python = interpreter_of(release, self._config.build.backend, self._end)
        worker = self._session.worker(engine, release, device, python, self._until)
        return IsolatedBackend(self._config.build.backend, self._config.timeout_seconds, worker)

    def _candidate(self, backend: IsolatedBackend, feeds: list[Feed]) -> tuple[Build, RunInfo | None]:
        """The candidate, loaded from its run or built and logged, and the run of the accepted engine."""
        config, run, model = self._config, self._run, self._model
        if config.candidate is not None:
            stored = self._tracker.load(run_id_of(config.candidate, self._tracker))
            build, holder = builds.load_build(stored), stored.holder
            if build.spec.model_sha256 != model.info.sha256:
                raise errors.ConfigError(
                    f"The model has digest {model.info.sha256[:12]}, but candidate {stored.info.id} was built from "
                    f"{build.spec.model_sha256[:12]}."
                )
            self.holder = holder.info.id
            run.set_tags({Tag.EVIDENCE: holder.info.id, Tag.MODEL_SHA256: build.spec.model_sha256})
            return build, self._accepted_run(build.engine.environment)
        with self._ending("device"):
            environment = backend.environment(config.build)
            run.log_params({schema.DEVICE_STATE.strip("."): backend.device_state(config.build)})
        accepted = self._accepted_run(environment)
        denied = Caches().denied
        if config.use_deny_list:
            denied = deny_list(self._tracker, environment)
        ranges = read_cache_file(config.calibration_cache, "calibration_cache")
        caches = Caches(calibration=ranges if config.build.calibrates else None, denied=denied)
        check = config.check
        data = CommandData(model, check, config.calibration_data)
        request, spec = data.request(config.build, environment, caches)
        builds.log_spec(run, spec, environment)
        log_materials(run, caches=caches, check=check, feeds=feeds, data=check.data, golden=check.golden)
        with self._ending("build"):
            build = backend.build(request)
        builds.log_build(run, build, model.info, backend.engine_suffix)
        log_model(run, model, keep=config.keep_model)
        self.holder = run.id
        return build, accepted

    def _accepted_run(self, environment: Environment) -> RunInfo | None:
        """The run of the accepted engine for the same kind of device and the same precision, or None."""
        config, tracker = self._config, self._tracker
        if config.accepted is not None:
            return tracker.info(run_id_of(config.accepted, tracker))
        name = registered_model(config.name or self._model.name)
        ranked_runs: list[tuple[tuple[bool, bool, int], RunInfo]] = []
        for alias in tracker.aliases(name):
            version = tracker.registered(name, alias)
            if version is None:
                continue
            tags = version.tags
            same_device = tags.get(Tag.DEVICE_SHA256) == environment.device_sha256
            if not same_device or tags.get(Tag.BACKEND) != environment.backend:
                continue
            info = tracker.info(version.run_id)
            if info.params.get("precision") == config.build.precision:
                same_model = tags.get(Tag.MODEL_SHA256) == self._model.info.sha256
                same_release = tags.get(Tag.BACKEND_VERSION) == environment.backend_version
                # One of the same model is preferred, then one of the same release, then the newest.
                ranked_runs.append(((same_model, same_release, int(version.version)), info))
        if not ranked_runs and config.require_accepted:
            text = (
                f"there is no accepted {config.build.precision.upper()} engine of {name!r} for this device to compare "
                "with; register one (`trtops runs promote RUN`), or leave --require-accepted out"
            )
            raise NotMeasuredError(Finding("accepted", "refuse", text))
        return max(ranked_runs, key=lambda ranked: ranked[0])[1] if ranked_runs else None

    def _open_accepted(self, info: RunInfo, device: str) -> tuple[Build, IsolatedBackend]:
        """The accepted engine, and a child process of its release."""
        with self._ending("accepted", errors.IncompleteRunError, errors.RunNotFoundError):
            build = builds.load_build(self._tracker.load(info.id))
            origin = build.engine.environment
            # Engines only run with the release that built them.
            tried = []
            for release in dict.fromkeys((self._config.release, *self._config.others, HERE)):
                try:
                    backend = self._open_release("accepted", release, device)
                    environment = backend.environment(build.spec.config)
                except (NotMeasuredError, errors.BackendError) as exc:
                    if time.monotonic() >= self._end:  # no decision, whatever the next release would have been
                        raise
                    tried.append(f"{name_of(release)!r}: {exc}")
                    continue
                title = f"{environment.backend} {environment.backend_version}"
                if title == f"{origin.backend} {origin.backend_version}":
                    return build, backend
                tried.append(f"{name_of(release)!r} has {title}")
            raise errors.BackendUnavailableError(
                f"The accepted engine was built with {origin.backend} {origin.backend_version} and only runs with "
                f"that release; {'; '.join(tried)}. Name that release as well."
            )


def differing_choices(candidate: TacticRecord, accepted: TacticRecord) -> tuple[str, ...]:
    """What the builder chose in other ways for the candidate than for the accepted engine, in phrases."""
    names = {name for name, _ in (*candidate.settings, *accepted.settings) if name in BY_NAME}
    mine, theirs = (dict(_toggled(record).settings(names)) for record in (candidate, accepted))
    differing = [f"{n} is {mine[n]}, {theirs[n]} in the accepted engine" for n in sorted(names) if mine[n] != theirs[n]]
    if layers := candidate.differing_layers(accepted):
        differing.append(f"{len(layers)} of {len(candidate.choices)} layers have other tactics")
    return tuple(differing)


def _toggled(record: TacticRecord) -> Candidate:
    """The settings of ONNX Runtime in a record, without defaults."""
    return Candidate.from_settings(pair for pair in record.settings if pair[0] in BY_NAME)


def _metrics(metric: Metric | Literal["auto"], engine: Engine) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
    """The metrics to measure of an engine, and the deciding ones."""
    # On a GPU, its own clock measures. The CPU time of a process then says nothing about the latency.
    on_cpu = engine.options.get("providers") in (["CPUExecutionProvider"], ("CPUExecutionProvider",))
    if metric == "auto":
        usual: tuple[Metric, ...] = ("wall", "cpu-time") if on_cpu else ("wall",)
        return usual, usual
    return ("wall",) if metric == "wall" else ("wall", metric), (metric,)


def _facts(run_id: str, build: Build, process: EngineProcess, outputs: RunResults) -> EngineFacts:
    tensors = [("input", spec.name, spec.dtype, spec.shape) for spec in process.inputs().values()]
    tensors += [("output", name, array.dtype, array.shape) for name, array in outputs[0][1][0].items()]
    engine = build.engine
    options = {name: value for name, value in engine.options.items() if name != "sha256"}
    identity: list[JSONValue] = [engine.sha256, options]
    if engine.backend == "onnxruntime":  # it writes equal graphs with tables in another order each time
        # Settings at their defaults are recorded if there was time to try others.
        tactics = replace(build.tactics, settings=_toggled(build.tactics).settings(())).digest
        identity = [tactics, build.spec.model_sha256, len(engine.plan), options]
    return EngineFacts(
        run_id=run_id,
        environment=engine.environment,
        model_sha256=build.spec.model_sha256,
        precision=build.spec.config.precision,
        engine_bytes=len(engine.plan),
        speed_digest=digest(identity),
        interface=tuple(
            (f"{kind} `{name}`", f"{dtype} [{', '.join('?' if is_dynamic(d) else str(d) for d in shape or ())}]")
            for kind, name, dtype, shape in tensors
        ),
        build_seconds=build.seconds,
        kernels=check_precision(build).kernels,
    )
