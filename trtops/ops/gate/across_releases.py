"""Gate accepted engines with later releases: failures, first bad release, smallest model, workaround."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from trtops import errors
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.worker import IsolatedBackend
from trtops.calibration.data import data_source
from trtops.comparator.report import compare_outputs
from trtops.ops.devices import free_device, warm_backend
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.gate.engine_process import EngineProcess, save_feeds
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import GateConfig, Limits, Policy
from trtops.ops.gate.releases import interpreter_of, name_of
from trtops.ops.gate.result import GateResult
from trtops.ops.result import run_step
from trtops.ops.search.reduce import ReduceConfig, reduce
from trtops.ops.search.submodel import CheckOutcome
from trtops.record import Record
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.system.processes import temporary_prefix
from trtops.system.worker import Worker
from trtops.tracking import builds, schema
from trtops.tracking.base import EngineQuery, Tracker
from trtops.tracking.builds import find_model

Candidate: TypeAlias = Callable[[], tuple[str | Path | Model, GateConfig]]

_IN_OUTPUTS = {"build", "reference", "accepted outputs", "self-check", "interface"}
_NOT_OF_THE_RELEASE = {"accepted", "device", "release"}  # what could not be opened or installed


@dataclass(frozen=True, kw_only=True)
class Regression(Record):
    """A regression of the newest release in an accepted engine."""

    engine: str
    what_broke: str
    first_bad_version: str
    smallest_model: str  # the smallest part of the model that shows it, or why no part does
    workaround: str


def accepted_candidates(
    config: GateConfig, releases: Sequence[str], tracker: Tracker, kernel: str
) -> Iterator[tuple[str, Candidate]]:
    """The accepted engines of a back end on this device by name, each to be built with the newest of some releases.

    Only those that contain a kernel, if one is named.
    """
    version_tags: dict[str, str] = {schema.Tag.BACKEND: config.build.backend}
    # Engines of other devices cannot be compared here. Without a back end of this process, their gates say so.
    with contextlib.suppress(errors.BackendError), warm_backend(config.build.backend, config.devices, 120.0) as backend:
        version_tags[schema.Tag.DEVICE_SHA256] = backend.environment(config.build).device_sha256
    query = EngineQuery(kernel=kernel, accepted=True)
    having = {info.id for info, _ in tracker.engines(query)} if kernel else None

    def opened(run_id: str) -> tuple[str | Path | Model, GateConfig]:
        build = builds.load_build(tracker.load(run_id), engine=False).spec.config
        accepted_config = replace(config, build=build, accepted=run_id, release=releases[-1], others=tuple(releases))
        return find_model(tracker, tracker.info(run_id)), accepted_config

    for run_id, version in {version.run_id: version for _, version in tracker.accepted(version_tags)}.items():
        if having is not None and run_id not in having:
            continue
        yield f"{version.name} version {version.version}", partial(opened, run_id)


def explain(
    engine: str, path: Path, config: GateConfig, refused: GateResult, releases: Sequence[str], where: Mapping[str, Any]
) -> Regression | None:
    """Find the first bad release of a refused engine, its smallest failing model, and a workaround.

    The releases are ordered from the oldest to the newest, which refused. None if it could not be opened or installed.
    """
    subjects = {*refused.subjects("refuse")}
    if subjects <= _NOT_OF_THE_RELEASE:
        return None
    tracker, end = where["tracker"], time.monotonic() + 60 * config.minutes

    def decision(release: str, build: BuildConfig = config.build, policy: Policy = config.policy) -> tuple[str, str]:
        minutes = max(0.05, (end - time.monotonic()) / 60)
        decision_config = replace(config, build=build, release=release, policy=policy, minutes=minutes, register=False)
        gate_result = run_step(
            f"gate {path.stem} {build.precision} {name_of(release)}", gate, path, decision_config, **where
        )
        return gate_result.decision, version_of(release, gate_result)

    def version_of(release: str, release_result: GateResult) -> str:
        version = tracker.info(release_result.run_id).fact(schema.Tag.BACKEND_VERSION)
        return f"{name_of(release)} ({config.build.backend} {version})" if version else name_of(release)

    accepted = builds.load_build(tracker.load(config.accepted), engine=False)
    own_version = f"{config.build.backend} {accepted.engine.environment.backend_version}"
    first_bad, before = version_of(releases[-1], refused), f"the accepted engine has {own_version}"
    differ = subjects == {"latency"} and decision(releases[-1])[0] == "accept"
    if differ:  # as each build times tactics again, one that is slow says nothing of the release
        first_bad, before = "none", f"another build with {first_bad} is accepted"
    for release in () if differ else reversed(releases[:-1]):
        if time.monotonic() > end:
            before = "or earlier, since no time was left"
            break
        outcome, version = decision(release)
        if outcome != "refuse":
            before = f"{outcome} with {version}"
            break
        first_bad = version
    smallest, nodes = "none: the outputs are right", tuple[str, ...]()
    if subjects & _IN_OUTPUTS:
        try:
            calibration = accepted.calibration_cache
            smallest, nodes = _smallest(path, config, calibration, "build" in subjects, end, where)
        except (errors.TrtopsError, TimeoutError) as exc:
            smallest = f"not found: {exc}"
    helping = (
        text
        for text, build, policy in _changes(subjects, config, nodes)
        if time.monotonic() < end and decision(releases[-1], build, policy)[0] == "accept"
    )
    return Regression(
        engine=f"{engine}, {config.build.precision}",
        what_broke="; ".join(refused.reasons),
        first_bad_version=f"{first_bad}; {before}",
        smallest_model=smallest,
        workaround=next(helping, f"stay with {own_version}"),
    )


def _smallest(
    path: Path, config: GateConfig, calibration: bytes | None, fails: bool, end: float, where: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """The smallest part with a failing build, failing inference or wrong outputs: a text, and its nodes."""
    model = Model.load(path)
    feeds = list(config.check.open_for(model, profiles=config.build.profiles))
    build = replace(config.build, calibration_fit="partial", profiles=())
    with contextlib.ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=temporary_prefix("reduce"))), "feeds.npz")
        device = stack.enter_context(free_device(build.backend, config.devices, end))
        environment = {"CUDA_VISIBLE_DEVICES": device} if device else {}
        python = interpreter_of(config.release, build.backend, end)
        worker = stack.enter_context(Worker(environment, python=python, until=end))
        backend = IsolatedBackend(build.backend, config.timeout_seconds, worker)

        def check(part: SubModel) -> CheckOutcome:
            if time.monotonic() > end:
                return CheckOutcome(verdict="error", detail="no time was left")
            save_feeds(part.feeds, file)
            caches, sample = Caches(calibration=calibration), part.feeds[0]
            try:
                part_build = backend.build(
                    BuildRequest(Model.from_proto(part.proto), build, caches=caches, timing_feed=sample)
                )
                outputs = EngineProcess(backend, part_build.engine, file).outputs()
            except errors.BackendError as exc:
                shows = fails and time.monotonic() < end  # or it was ended with the budget
                return CheckOutcome(verdict="fail" if shows else "error", detail=str(exc))
            report = compare_outputs(outputs, part.golden, tolerances_for(build.precision, None))
            return CheckOutcome(verdict="pass" if fails or report else "fail", detail="; ".join(report.reasons[:3]))

        reduction = reduce(str(path), check, ReduceConfig(data=data_source(feeds), max_checks=60), **where)
    if (culprit := reduction.culprit) is None:
        return reduction.detail or "no part of the model shows it", ()
    nodes = tuple(node.name or node.outputs[0] for node in culprit.nodes)
    return (
        f"{len(nodes)} of {reduction.nodes} nodes ({', '.join(culprit.labels[:8])}), in run {reduction.run_id}",
        nodes,
    )


def _changes(
    subjects: set[str], config: GateConfig, nodes: tuple[str, ...]
) -> Iterator[tuple[str, BuildConfig, Policy]]:
    """Changes of the build as possible workarounds, with the policy of their gate."""
    build, policy = config.build, config.policy
    if subjects & _IN_OUTPUTS and build.precision != "fp32":
        # The price of right outputs is speed, size, and kernels in the precision.
        limits = Limits(latency=None, size=None, precision_share=None)
        right = Policy(limits=replace(limits, accuracy=policy.of(build.precision).accuracy))
        if nodes:
            yield f"keep {', '.join(nodes)} in FP32 (--keep)", replace(build, keep=(*build.keep, *nodes)), right
        yield "build in FP32", replace(build, precision="fp32"), right
    if isinstance(build.options, OnnxRuntimeOptions) and build.options.tactics != ():
        options = replace(build.options, tactics=())
        yield "build without tactics (tactics=())", replace(build, options=options), policy
