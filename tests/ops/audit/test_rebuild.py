"""Builds are rebuilt from the store alone and graded; differences are named and explained."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import models
from tests.gates import kept, with_wrong_weight, write
from tests.ops.audit.conftest import ONE_THREAD, QUICK, Logged
from tests.ops.audit.test_integrity import scaled
from trtops import errors
from trtops.backend.base import Build, Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.worker import IsolatedBackend
from trtops.calibration.cache import CalibrationCache
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.auditing.rebuilding import builder_inputs, check_engine_again, rebuild
from trtops.ops.auditing.result import RunAudit, reaches
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import GateConfig, Limits, Policy
from trtops.ops.stored_build import MaterialFolder, gather
from trtops.record import sha256_file
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.system.worker import Worker, close_workers
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import AS_PARAM, Artifact, Tag


def rebuilt(store: Logged, run: str, **options: object) -> RunAudit:
    config = AuditConfig(runs=(store.runs[run],), **options)  # type: ignore[arg-type]
    [run_audit] = audit(config, tracker=store.tracker).runs
    return run_audit


@pytest.mark.parametrize("run", ["fp32", "fp16", "int8", "reused", "iteration", "accepted"])
def test_build_is_rebuilt_from_the_store_alone(run: str, logged: Logged) -> None:
    run_audit = rebuilt(logged, run)

    assert reaches(run_audit.grade, "tactics"), list(run_audit.details())
    assert [attempt.way for attempt in run_audit.rebuilds] == ["replay", "timing cache", "plain"]
    assert run_audit.contradictions == () and run_audit.differences == ()
    assert run_audit.missing == () or run == "iteration"


CHANGED = {
    "a release": ("import onnxruntime; onnxruntime.__version__ = '1.0.7'", {"backend_version"}, "replay"),
    "a package, Python and the cores": (
        "import importlib.metadata as m; f = m.version; m.version = lambda n: '0.9.9' if n == 'numpy' else f(n)\n"
        "import platform; platform.python_version = lambda: '3.99.1'\n"
        "import os; os.sched_getaffinity = lambda pid: set(range(64))",
        {"package numpy", "python", "device cores"},
        None,
    ),
    "a processor": (
        "import pathlib, trtops.backend.environment as e; e._CPUINFO = pathlib.Path(__file__).with_name('cpuinfo')",
        {"device", "device_sha256"},
        "replay",
    ),
}
"""What is changed, what must be named, and the way in which the build cannot be made then."""


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("name", CHANGED)
def test_changed_environment_is_named(
    name: str, logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, named, refused = CHANGED[name]
    (tmp_path / "cpuinfo").write_text("model name\t: Another Processor\nflags\t\t: sse avx\n")
    # The children that build find other surroundings than the runs were made in.
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    close_workers()
    try:
        run_audit = rebuilt(logged, "fp16")
    finally:
        close_workers()

    assert {difference.name for difference in run_audit.differences} == named
    assert run_audit.grade is not None and run_audit.grade != "drifted"
    grades = {attempt.way: attempt.grade for attempt in run_audit.rebuilds}
    assert (grades["replay"] == "cannot be rebuilt") == (refused == "replay")
    assert all(difference.logged and difference.current for difference in run_audit.differences)


def test_materials_come_from_run_or_folder(tmp_path: Path) -> None:
    case, tracker = models.conv_net().fixed(), MlflowTracker(tmp_path / "mlruns")
    path, data, cache = case.write(tmp_path), tmp_path / "data.npz", tmp_path / "given.cache"
    np.savez(data, **case.feed)
    build, check = BuildConfig(options=ONE_THREAD), replace(QUICK, data=str(data))
    first = convert(path, ConvertConfig(build=build, check=check), tracker=tracker)
    shutil.copyfile(tracker.load(first.run_id).local_path(Artifact.TIMING_CACHE), cache)
    config = ConvertConfig(build=build, check=check, timing_cache=str(cache))
    second = convert(path, config, tracker=tracker)
    build = BuildConfig(options=replace(ONE_THREAD, timing_iterations=1))
    other = MlflowTracker(tmp_path / "other" / "mlruns")  # a store with the model would give it to this run
    third = convert(path, ConvertConfig(build=build, check=QUICK, keep_model=False), tracker=other)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.rename(elsewhere / "another-name.onnx")
    data.unlink()
    cache.unlink()
    precise = Logged(tmp_path / "mlruns", {"given": second.run_id}, elsewhere, elsewhere)
    bare_store = Logged(tmp_path / "other" / "mlruns", {"bare": third.run_id}, elsewhere, elsewhere)

    run_audit = rebuilt(precise, "given")
    assert run_audit.missing == () and run_audit.grade in ("bytes equal", "tactics equal")
    assert [reaches(attempt.grade, "tactics") for attempt in run_audit.rebuilds] == [True] * 3

    without = rebuilt(bare_store, "bare")
    bare = rebuilt(bare_store, "bare", materials=str(elsewhere), ways=("replay",))
    assert without.grade == "cannot be rebuilt" and "The model with digest" in without.explanation
    assert not without.passes("tolerance") and without.contradictions == ()
    assert bare.grade in ("bytes equal", "tactics equal")
    assert any("another-name.onnx is used" in text for text in bare.missing)


@pytest.mark.parametrize("logs_data", [True, False])
def test_rebuilds_are_timed_at_the_logged_shapes(
    logs_data: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "_LARGEST_DATA", builds._LARGEST_DATA if logs_data else 0)
    tracker, data = MlflowTracker(tmp_path / "mlruns"), tmp_path / "data.npy"
    path = models.transformer().write(tmp_path)
    np.save(data, models.random(3, 7, 16))
    config = ConvertConfig(build=BuildConfig(options=ONE_THREAD), check=replace(QUICK, data=str(data)))
    run = convert(path, config, tracker=tracker).run_id
    data.unlink()
    recorded_builds = []

    class Recording(IsolatedBackend):
        def build(self, *args: Any, **kwargs: Any) -> Build:
            recorded_builds.append(super().build(*args, **kwargs))
            return recorded_builds[-1]

    logged = gather(tracker.load(run), tracker, MaterialFolder(None))
    with Worker() as worker:
        attempt = rebuild("plain", logged, Recording("onnxruntime", worker=worker))

    assert reaches(attempt.grade, "tolerance"), attempt
    assert (logged.missing == ()) == logs_data
    assert [build.spec.timed_shapes for build in recorded_builds] == [(("x", (3, 7, 16)),)]
    assert recorded_builds[0].spec.digest == logged.build.spec.digest


def test_bad_runs_do_not_end_an_audit(logged: Logged) -> None:
    unknown = "0" * 32
    (logged.folder("fp32") / "engine/options.json").write_text("{")
    logged.rewrite_manifest("fp32")
    (logged.folder("int8") / Artifact.MANIFEST).unlink()
    for file in (logged.folder("accepted") / "model").iterdir():
        file.unlink()
    runs = (unknown, *(logged.runs[name] for name in ("fp32", "int8", "accepted", "fp16")))

    result = audit(AuditConfig(runs=runs, ways=("replay",)), tracker=logged.tracker)

    gone, damaged, half, bare, fine = result.runs
    assert [gone.whole, half.whole, bare.whole] == [False] * 3
    assert damaged.grade == bare.grade == "cannot be rebuilt" and damaged.explanation and bare.explanation
    assert "manifest.json" in half.contradictions[0].text()
    assert fine.passes("tactics"), fine.to_json()[:6000]
    assert result.verdict == "bad" and result.headline == "1 of 5 runs pass"
    assert len(result.reasons) == 4 and all("fp16" not in reason for reason in result.reasons)
    assert f" {half.id[:8]}: manifest.json" in result.reasons[2]


def test_damaged_engine_is_rebuilt(logged: Logged) -> None:
    (logged.folder("fp16") / "engine/engine.ort").unlink()
    logged.edit("fp32", "engine/engine.ort", lambda data: data[:-1] + b"?")

    for run in ("fp16", "fp32"):
        run_audit = rebuilt(logged, run, ways=("replay",))
        assert run_audit.grade in ("bytes equal", "tactics equal") and "the engine" in run_audit.missing[0]
        assert not run_audit.whole and not run_audit.passes("tolerance")
        assert {contradiction.subject for contradiction in run_audit.contradictions} == {"engine/engine.ort"}


def test_adjusted_engine_contradicts_its_numbers(victim: Logged) -> None:
    """The engine of a model with other weights, with everything else of its build, and all statements adjusted."""
    for path in (
        "engine/engine.ort",
        Artifact.ENGINE_OPTIONS,
        Artifact.LAYERS,
        Artifact.TACTICS,
        Artifact.TIMING_CACHE,
    ):
        shutil.copyfile(victim.folder("retrained") / path, victim.folder("fp32") / path)
    victim.adjust("fp32")

    run_audit = rebuilt(victim, "fp32", ways=("replay",))

    named = [contradiction.text() for contradiction in run_audit.contradictions]
    assert run_audit.whole and run_audit.answer("tolerance") == "contradicted"
    assert any(text.startswith("largest error of scores: accuracy/results.json says") for text in named), named


def test_doubled_range_is_no_equal_build(victim: Logged) -> None:
    def doubled(data: bytes) -> bytes:
        cache = CalibrationCache.from_bytes(data)
        first, *others = cache.ranges
        wider = replace(first, amax=2 * first.amax, low=first.low and 2 * first.low, high=first.high and 2 * first.high)
        cache = replace(cache, ranges=(wider, *others))
        return cache.to_bytes() if data.startswith(b"{") else cache.to_tensorrt()

    victim.edit("int8", Artifact.CALIBRATION_CACHE, doubled)
    victim.adjust("int8")

    run_audit = rebuilt(victim, "int8", ways=("replay",))

    assert not reaches(run_audit.grade, "tactics") and run_audit.answer("tactics") == "contradicted"
    assert [contradiction.subject for contradiction in run_audit.contradictions] == ["outputs"]
    assert run_audit.rebuilds[0].tactics == () and "kernels equal" in run_audit.contradictions[0].reason


def test_changed_golden_outputs_contradict_the_model(victim: Logged) -> None:
    victim.edit("campaign", Artifact.GOLDEN, scaled)
    victim.rewrite_manifest("campaign")
    digest = sha256_file(victim.folder("campaign") / Artifact.GOLDEN)
    victim.set("campaign", "tag", Tag.GOLDEN_SHA256, digest)
    victim.set("iteration", "param", AS_PARAM[Tag.GOLDEN_SHA256], digest)
    for run in ("campaign", "iteration"):
        victim.restate(run)

    run_audit = rebuilt(victim, "iteration", ways=("replay",))

    assert "golden outputs" in [contradiction.subject for contradiction in run_audit.contradictions]


def test_engine_of_another_place_is_not_verified(pristine: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_another_release(*args: object, **named: object) -> None:
        raise errors.EngineLoadError("it was built by another release")

    monkeypatch.setattr(Worker, "run", of_another_release)
    gathered = gather(pristine.tracker.load(pristine.runs["fp32"]), pristine.tracker, MaterialFolder(None))
    with Worker() as worker:
        backend = IsolatedBackend("onnxruntime", worker=worker)
        monkeypatch.setattr(IsolatedBackend, "environment", OnnxRuntimeBackend.environment)
        [wrong], unverified = check_engine_again(gathered, backend)
        assert wrong.subject == "engine" and unverified == []
        elsewhere = replace(engine_backend("onnxruntime").environment(), backend_version="9.9")
        monkeypatch.setattr(IsolatedBackend, "environment", lambda self, config: elsewhere)
        problems, [unverified] = check_engine_again(gathered, backend)
        assert problems == [] and "the logged engine: it does not run" in unverified


def test_gated_engine_is_rebuilt_and_checked(tmp_path: Path) -> None:
    tracker, case = MlflowTracker(tmp_path / "mlruns"), models.conv_net().fixed()
    path, data = case.write(tmp_path), tmp_path / "data.npz"
    np.savez(data, **case.feed)
    config = GateConfig(
        build=BuildConfig(options=ONE_THREAD),
        check=replace(GateConfig().check, data=str(data)),
        policy=Policy(limits=Limits(latency=None)),
    )
    built = gate(path, config, tracker=tracker)
    converted = convert(path, ConvertConfig(build=BuildConfig(options=ONE_THREAD), check=QUICK), tracker=tracker).run_id
    evaluated = gate(path, replace(config, candidate=converted), tracker=tracker)
    wrong = write(with_wrong_weight(case.proto), tmp_path / "wrong", path.stem)
    worse = gate(wrong, config, tracker=tracker)
    refused = gate(models.no_kernel().write(tmp_path), replace(config, check=GateConfig().check), tracker=tracker)
    assert [gate_result.decision for gate_result in (built, evaluated, worse, refused)] == [
        "accept",
        "accept",
        "refuse",
        "refuse",
    ]
    path.unlink()
    data.unlink()

    accepted = audit(AuditConfig(accepted=True, ways=("replay",)), tracker=tracker)
    gated = (built.run_id, worse.run_id, evaluated.run_id, refused.run_id)
    audited = audit(AuditConfig(runs=gated, ways=("replay",)), tracker=tracker)

    assert {run.id for run in accepted.runs} == {converted}  # it has the alias of the one before it
    assert accepted.verdict == audited.verdict == "good", audited.page()
    again, refused_again, only_evaluated, never_built = audited.runs
    assert {again.grade, refused_again.grade} <= {"bytes equal", "tactics equal"} and again.missing == ()
    assert only_evaluated.grade is never_built.grade is None
    tracker._client.set_tag(evaluated.run_id, Tag.GATE, "refuse")
    [run_audit] = audit(AuditConfig(accepted=True, rebuild=False), tracker=tracker).runs
    assert [contradiction.subject for contradiction in run_audit.contradictions] == [
        f"registry ({Tag.EVIDENCE}): the gate's decision"
    ]
    tracker._client.set_tag(worse.run_id, Tag.GATE, "accept")
    tracker._client.log_metric(worse.run_id, "gate/size_ratio", 0.5)
    [run_audit] = audit(AuditConfig(runs=(worse.run_id,), rebuild=False), tracker=tracker).runs
    assert {contradiction.subject for contradiction in run_audit.contradictions} >= {
        "the gate's decision",
        "metric gate/size_ratio",
    }


def test_missing_backend_is_a_grade(logged: Logged) -> None:
    tracker = logged.tracker
    stored = tracker.load(logged.runs["fp32"])
    build = builds.load_build(stored)
    spec = replace(build.spec, config=BuildConfig(options=TensorRTOptions()))
    environment = replace(build.engine.environment, backend="tensorrt", backend_version="8.6.0")
    planted = replace(build, spec=spec, engine=replace(build.engine, backend="tensorrt", environment=environment))
    elsewhere = kept(tracker, stored.local_path("model/conv_net.onnx"), planted, suffix=".plan", model=True)

    unknown, fine = audit(AuditConfig(runs=(elsewhere, logged.runs["fp16"]), ways=("replay",)), tracker=tracker).runs

    assert unknown.grade == "cannot be rebuilt" and "tensorrt" in unknown.explanation
    assert not unknown.passes("tolerance") and fine.passes("tactics")


def test_replay_uses_the_timing_cache_of_its_build() -> None:
    """The builder only changes existing entries of an editable cache (``ITimingCache::update``)."""
    config = BuildConfig(precision="fp16", options=TensorRTOptions(tactic_seed=2))
    for mechanism, timing in (
        ("editable_timing_cache", b"timings"),
        ("algorithm_selector", b"timings"),
        ("onnxruntime", None),
    ):
        record = TacticRecord(mechanism=mechanism, backend_version="10.8.0", device_sha256="d", choices=())  # type: ignore[arg-type]
        build = SimpleNamespace(spec=SimpleNamespace(config=config), tactics=record, timing_cache=b"timings")
        logged = SimpleNamespace(build=build, caches=Caches(calibration=b"ranges", timing=b"given"))
        build_config, caches = builder_inputs("replay", logged)  # type: ignore[arg-type]
        assert build_config.options == TensorRTOptions()
        assert caches == Caches(calibration=b"ranges", replay=record, timing=timing)
