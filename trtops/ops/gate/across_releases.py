"""Gate accepted engines with later releases: what broke, since when, in which part of the model, and what helps."""

import contextlib
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.base import Build, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.worker import IsolatedBackend, Worker
from trtops.comparator.report import compare_outputs
from trtops.ops.campaign.open_campaign import find_model
from trtops.ops.campaign.workers import close_workers, free_device, warm_backend
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.evaluation.submodel import CheckOutcome
from trtops.ops.gate.engine_process import EngineProcess, save_feeds
from trtops.ops.gate.matrix import MatrixResult
from trtops.ops.gate.op import GateConfig, gate
from trtops.ops.gate.policy import Limits, Policy
from trtops.ops.gate.releases import Release, interpreter_of
from trtops.ops.gate.result import GateResult
from trtops.ops.result import OnProgress, finish_with, op_run, run_step
from trtops.ops.search.reduce import ReduceConfig, ReduceResult, reduce
from trtops.record import Record
from trtops.reports.document import Section
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.system.processes import temporary_prefix
from trtops.tracking import builds, schema
from trtops.tracking.base import Tracker, Verdict

_IN_OUTPUTS = {"build", "reference", "accepted outputs", "self-check", "interface"}
_NOT_OF_THE_RELEASE = {"accepted", "device", "release"}  # what could not be opened or installed
_MAX_CHECKS = 60  # of parts


@dataclass(frozen=True, kw_only=True)
class Regression(Record):
    """An accepted engine that a release does not build as well."""

    model: str
    precision: str
    broken: tuple[str, ...]  # what its gate refused
    first_bad: str  # the release, with the version that was found in it
    last_good: str  # the newest release before it that was not refused; the accepted engine's own otherwise
    smallest: str  # the smallest part of the model that shows it, or why no part does
    workaround: str


@dataclass(frozen=True, kw_only=True)
class ReleasesResult(MatrixResult):
    """The gates of accepted engines with other releases, and what was found out about those that were refused."""

    title: str = "gate of accepted engines"
    regressions: tuple[Regression, ...] = ()
    unchecked: tuple[str, ...] = ()  # accepted engines without a gate, and why

    @property
    def verdict(self) -> Verdict:
        """That of the gates; ``unproven`` if an accepted engine has none."""
        return "unproven" if self.unchecked and super().verdict == "good" else super().verdict

    @property
    def headline(self) -> str:
        """The number of engines that break, and the decisions of all gates."""
        return f"{len(self.regressions)} broken, {len(self.unchecked)} not checked; gates: {super().headline or 'none'}"

    def sections(self) -> Iterable[Section]:
        """What broke; then all gates."""
        for each in self.regressions:
            lines = [f"- broken: {reason}" for reason in each.broken]
            lines += [f"- first bad version: {each.first_bad} (good: {each.last_good})"]
            lines += [f"- smallest model: {each.smallest}", f"- workaround: {each.workaround}"]
            yield Section(title=f"{Path(each.model).stem} {each.precision}", text="\n".join(lines))
        if self.unchecked:
            yield Section(title="Not checked", text="\n".join(f"- {each}" for each in self.unchecked))
        yield from super().sections()


def gate_releases(
    releases: Sequence[Release],
    config: GateConfig,
    *,
    tracker: Tracker,
    experiment: str,
    tags: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> ReleasesResult:
    """Gate every accepted engine of a back end with the newest of some releases, and find the cause if it is refused.

    The releases are ordered from the oldest to the newest. The first one that is refused is found by bisection, which
    takes the accepted engine's own release as good. Nothing is registered. Nothing starts after ``config.minutes``.
    """
    end = time.monotonic() + 60 * config.minutes
    wanted: dict[str, str] = {schema.Tag.BACKEND: config.build.backend}
    # Engines of other devices cannot be compared here. Without a back end of this process, their gates say so.
    with contextlib.suppress(errors.BackendError), warm_backend(config.build.backend, config.devices, 120.0) as here:
        wanted[schema.Tag.DEVICE_SHA256] = here.environment().device_sha256
    close_workers()
    accepted = {version.run_id: version for _, version in tracker.accepted(wanted)}
    with op_run(tracker, experiment, "gate of accepted engines", kind="gate_matrix", tags=tags) as run:
        run.log_params({"releases": [release.name for release in releases], "minutes": config.minutes})
        where = {"tracker": tracker, "experiment": experiment, "tags": tags, "parent": run.id}
        cells: list[GateResult] = []
        regressions: list[Regression] = []
        unchecked: list[str] = []
        for number, (run_id, version) in enumerate(accepted.items(), start=1):
            label = f"{version.name} version {version.version}"
            if (left := end - time.monotonic()) <= 0:
                unchecked.append(f"{label}: no time was left of {config.minutes:g} minutes")
                continue
            try:
                path = find_model(tracker, tracker.info(run_id))
                source = builds.load_build(tracker.load(run_id), engine=False)
                own = replace(config, build=source.spec.config, accepted=run_id, others=tuple(releases), register=False)
                # The engines that follow get their share of the time.
                until = time.monotonic() + left / (len(accepted) - number + 1)
                search = _ReleaseSearch(path, source, own, releases, where, until)
                found = search.first_bad()
                cells += search.gates.values()
                if found is not None and search.subjects(found) <= _NOT_OF_THE_RELEASE:
                    unchecked.append(f"{label}: {search.gates[found].reasons[0]}")
                elif found is not None:
                    regressions.append(search.explain(found))
            except errors.TrtopsError as exc:  # of one engine, such as a model that is gone
                unchecked.append(f"{label}: {type(exc).__name__}: {exc}")
            if progress is not None:
                progress(number, len(accepted))
        result = ReleasesResult(cells=tuple(cells), regressions=tuple(regressions), unchecked=tuple(unchecked))
        result = result.kept_in(run, experiment)
        run.log_metrics({(schema.Metric.GATE, "regressions"): float(len(regressions))})
        finish_with(run, result, tracker, artifact=schema.Artifact.GATE, page=schema.Artifact.GATE_PAGE)
    return result


@dataclass
class _ReleaseSearch:
    """The gates of one accepted engine with several releases, until a time."""

    path: Path
    source: Build
    config: GateConfig
    releases: Sequence[Release]
    where: Mapping[str, Any]
    end: float
    gates: dict[int, GateResult] = field(default_factory=dict)  # by the position of the release

    def first_bad(self) -> int | None:
        """The position of the first release that is refused, if the newest is."""
        low, high = -1, len(self.releases) - 1
        if not self._is_refused(high):
            return None
        while high - low > 1 and time.monotonic() < self.end:
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_refused(middle) else (middle, high)
        return high

    def subjects(self, number: int) -> set[str]:
        """What the gate of a release refused."""
        return {finding.subject for finding in self.gates[number].findings if finding.outcome == "refuse"}

    def _is_refused(self, number: int) -> bool:
        self.gates[number] = self._gate(self.config.build, self.releases[number], self.config.policy)
        return self.gates[number].decision == "refuse"

    def _gate(self, build: BuildConfig, release: Release, policy: Policy) -> GateResult:
        minutes = max(0.05, (self.end - time.monotonic()) / 60)
        own = replace(self.config, build=build, release=release, policy=policy, minutes=minutes)
        name = f"gate {self.path.stem} {build.precision} {release.name}"
        return run_step(name, gate, self.path, own, **self.where)

    def explain(self, number: int) -> Regression:
        """What is known of a release that is refused: since when, the smallest model, and a workaround."""
        found, release, build = self.gates[number], self.releases[number], self.config.build
        tagged = {n: self.where["tracker"].info(gated.run_id).tags for n, gated in self.gates.items()}
        versions = {n: t[schema.Tag.BACKEND_VERSION] for n, t in tagged.items() if schema.Tag.BACKEND_VERSION in t}
        own = self.source.engine.environment
        good = max((n for n, gated in self.gates.items() if n < number and gated.decision != "refuse"), default=-1)
        last_good = f"{own.backend} {versions.get(good, own.backend_version)}"
        subjects = self.subjects(number)
        smallest, nodes = "none: the outputs are right", tuple[str, ...]()
        if subjects & _IN_OUTPUTS:
            reduced = self._reduced(release, fails="build" in subjects)
            smallest = reduced.detail or "no part of the model shows it"
            if reduced.culprits:
                nodes = tuple(node.name or node.outputs[0] for node in reduced.culprits[0].nodes)
                labels = ", ".join(reduced.culprits[0].labels[:8])
                smallest = f"{len(nodes)} of {reduced.nodes} nodes ({labels}), in run {reduced.run_id}"
        return Regression(
            model=str(self.path),
            precision=build.precision,
            broken=found.reasons,
            first_bad=f"{release.name} ({own.backend} {versions[number]})" if number in versions else release.name,
            last_good=last_good,
            smallest=smallest,
            workaround=self._workaround(release, subjects, nodes) or f"stay with {last_good}",
        )

    def _reduced(self, release: Release, *, fails: bool) -> ReduceResult:
        """The smallest part that the release does not build or run, or whose outputs are wrong."""
        config, source = self.config, self.source
        model = Model.load(self.path)
        feeds = list(config.check.open_for(model, profiles=config.build.profiles))
        build = replace(config.build, calibration_fit="partial", profiles=())
        python = interpreter_of(release, config.build.backend)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=temporary_prefix("reduce")))
            device = stack.enter_context(free_device(config.build.backend, config.devices))
            worker = stack.enter_context(Worker({"CUDA_VISIBLE_DEVICES": device} if device else {}, python=python))
            backend = IsolatedBackend(config.build.backend, config.timeout_seconds, worker)
            file = Path(folder, "feeds.npz")

            def check(part: SubModel) -> CheckOutcome:
                if time.monotonic() > self.end:
                    return CheckOutcome(verdict="error", detail="no time was left")
                caches = Caches(calibration=source.calibration_cache)
                try:
                    made = backend.build(Model.from_proto(part.proto), build, caches=caches, timing_feed=part.feeds[0])
                    save_feeds(part.feeds, file)
                    outputs = EngineProcess(backend, made.engine, file).outputs()
                except errors.BackendError as exc:
                    return CheckOutcome(verdict="fail" if fails else "error", detail=str(exc))
                report = compare_outputs(outputs, part.golden, tolerances_for(build.precision, None))
                return CheckOutcome(verdict="pass" if fails or report else "fail", detail="; ".join(report.reasons[:3]))

            limits = ReduceConfig(max_checks=_MAX_CHECKS)
            return reduce(str(self.path), check, limits, feeds=feeds, **self.where)

    def _workaround(self, release: Release, subjects: set[str], nodes: tuple[str, ...]) -> str:
        """The first change of the build that the gate accepts in this release; empty if none does in the time."""
        build, options = self.config.build, self.config.build.options
        policy, others = self.config.policy, []
        if subjects & _IN_OUTPUTS and build.precision != "fp32":
            # The price of right outputs is speed, size, and kernels in the precision.
            limits = Limits(latency=None, size=None, build_time=None, precision_share=None)
            policy = Policy(limits=replace(limits, accuracy=policy.of(build.precision).accuracy))
            if nodes:
                others.append((f"keep {', '.join(nodes)} in FP32 (--keep)", replace(build, keep=(*build.keep, *nodes))))
            others.append(("build in FP32", replace(build, precision="fp32")))
        if isinstance(options, OnnxRuntimeOptions) and options.tactics != ():
            others.append(("build without tactics (tactics=())", replace(build, options=replace(options, tactics=()))))
        for text, other in others:
            if time.monotonic() < self.end and self._gate(other, release, policy).decision == "accept":
                return text
        return ""
