"""Pinning a good build and finding it again: verified, registered, resolved, and refused whenever something is not as
promised."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from tests.campaigns import config
from tests.hostile import rewrite
from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.comparator.report import Tolerances
from trtops.ops.auditing.integrity import SharedReads, check_integrity
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.campaign.debug_build import CampaignProgress, debug_build
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.registry.accepted import resolve
from trtops.ops.registry.promote import PromoteConfig, PromoteResult, promote
from trtops.ops.stored_runs import side_by_side
from trtops.reports.present import report_page
from trtops.spec import BuildConfig
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact, Tag


@pytest.fixture(scope="module")
def tracker(folder: Path) -> MlflowTracker:
    return MlflowTracker(folder / "mlruns")


@pytest.fixture(scope="module")
def good_and_bad(data: Path, model: Path, tracker: MlflowTracker) -> dict[str, str]:
    result = debug_build(model, config(data, until=10), tracker=tracker)
    runs = tracker.find("blocks", parent=result.run_id)
    # A good build that got none of the settings may be the reference to the last bit.
    runs.sort(key=lambda info: info.metrics.get(("error", "max_abs"), 0.0))
    return {str(info.verdict): info.id for info in runs}


@pytest.fixture(scope="module")
def promoted(good_and_bad: dict[str, str], tracker: MlflowTracker) -> PromoteResult:
    return promote(good_and_bad["good"], tracker=tracker)


def test_good_iteration_is_rebuilt_and_registered(promoted, good_and_bad, tracker) -> None:
    run, source = tracker.load(promoted.run_id), tracker.load(good_and_bad["good"])

    records = [TacticRecord.from_json(r.read_bytes(Artifact.TACTICS)) for r in (run, source)]
    assert records[0].deciding() == records[1].deciding()
    assert promoted.coverage == 1.0
    assert promoted.evaluation.report.verdict == promoted.agreement.report.verdict == "good"
    assert run.info.tags[Tag.EVIDENCE] == good_and_bad["good"]
    version = tracker.registered("blocks", promoted.alias)
    assert (version.run_id, version.version) == (promoted.run_id, promoted.version)
    assert version.tags[Tag.ENGINE_SHA256] == promoted.engine_sha256 == run.info.tags[Tag.ENGINE_SHA256]


def test_resolving_gives_the_accepted_engine_and_it_runs(promoted, model, data, tracker) -> None:
    resolved = resolve(model, tracker=tracker)

    engine = resolved.engine(tracker)
    with np.load(data) as feed, engine_backend(engine.backend).runner(engine) as runner:
        assert set(runner.infer(dict(feed))) == {"two/y"}
    assert (resolved.run_id, resolved.version, resolved.reason) == (promoted.run_id, promoted.version, "")


def test_failed_registration_is_reported(good_and_bad, tracker, monkeypatch) -> None:
    def register(*args: object, **options: object) -> None:
        raise errors.TrackingUnavailableError("the store is gone")

    monkeypatch.setattr(tracker, "register", register)
    result = promote(good_and_bad["good"], tracker=tracker)

    assert (result.verdict, result.exit_code, result.headline, result.version) == ("error", 3, "not registered", "")
    assert result.reasons == ("The engine is good, but it is not registered: the store is gone",)
    assert str(result.next_step) == f"trtops runs promote {good_and_bad['good']}"


def test_reused_engine_is_promoted_without_builders_files(tmp_path, tracker) -> None:
    builder, user = tmp_path / "builder", tmp_path / "user"
    case = models.conv_net().fixed()
    builder.mkdir(), user.mkdir()
    path, feed, local = case.write(builder, "cnn_a"), builder / "feed.npz", case.write(user, "local")
    np.savez(feed, **case.feed)
    quick = ConvertConfig(check=CheckConfig(data=str(feed), latency_runs=0, plots="never"))
    first, again = (convert(path, dataclasses.replace(quick, rebuild=new), tracker=tracker) for new in (True, False))
    assert again.reused_from == first.run_id
    shutil.rmtree(builder)
    builder.mkdir()
    models.identity().write(builder, "cnn_a")  # the place may hold another model on another machine

    from_store = promote(again.run_id, tracker=tracker)
    from_model = promote(again.run_id, PromoteConfig(model=str(local)), tracker=tracker)

    assert (from_store.name, from_model.name) == ("cnn_a", "cnn_a")
    assert (from_store.evaluation.verdict, from_store.agreement.verdict) == ("good", "good")
    by_name = resolve(local, tracker=tracker, name="cnn_a")
    by_digest = [resolve(local, tracker=tracker, name=name) for name in (None, "other")]
    assert by_digest == [by_name, by_name] and by_name.run_id == from_model.run_id
    promote(from_model.run_id, PromoteConfig(name="third"), tracker=tracker)
    assert [resolve(local, tracker=tracker, name=name).name for name in ("cnn_a", "other")] == ["cnn_a", "third"]


def test_reused_build_reads_as_its_own(folder, tracker) -> None:
    path = models.conv_net().fixed().write(folder, "reused")
    quick = ConvertConfig(check=CheckConfig(latency_runs=0, plots="never"))
    configs = [dataclasses.replace(quick, rebuild=new) for new in (True, False)]
    first, again = (convert(path, config, tracker=tracker).run_id for config in configs)

    first_run, second_run = tracker.load(first), tracker.load(again)
    assert builds.load_build(first_run) == dataclasses.replace(
        builds.load_build(second_run), log=builds.load_build(first_run).log
    )
    assert not any(line.name.startswith("build/") for line in side_by_side([first, again], tracker))
    layers = f"Layers ({len(builds.load_build(first_run).layers)})"
    assert layers in report_page(tracker, again) and layers in second_run.read_bytes(Artifact.REPORT).decode()
    assert audit(AuditConfig(runs=(again,), rebuild=False), tracker=tracker).verdict == "good"

    holder = first_run.local_path(Artifact.TACTICS)
    rewrite(tracker, first, Artifact.TACTICS, holder.read_bytes() + b" ")
    with pytest.raises(errors.IncompleteRunError, match="has other files now"):
        builds.load_build(tracker.load(again))


def test_campaign_build_is_promoted_without_builders_files(good_and_bad, model, data, tracker) -> None:
    moved = [file.rename(file.with_suffix(".moved")) for file in (model, data)]
    try:
        promoted = promote(good_and_bad["good"], PromoteConfig(name="moved"), tracker=tracker)
    finally:
        for file, original in zip(moved, (model, data)):
            file.rename(original)
    assert {*tracker.aliases("moved")} == {promoted.alias, "accepted"}


def test_builds_of_a_running_campaign_are_checked_as_it_does(model, data, tracker) -> None:
    promoted: list[PromoteResult] = []

    def promote_good(progress: CampaignProgress) -> None:
        if progress.last is not None and progress.last.verdict == "good":
            promoted.append(promote(progress.last.run_id, PromoteConfig(name="running"), tracker=tracker))

    started = config(data, until="good")
    debug_build(model, started, tracker=tracker, progress=promote_good)

    (result,) = promoted
    materials = builds.read_materials(tracker.load(result.run_id).read_bytes(Artifact.MATERIALS))
    assert CheckConfig.from_dict(materials.check) == started.check


def test_bad_and_foreign_builds_are_refused(good_and_bad, folder, tracker) -> None:
    other = models.conv_net().fixed().write(folder, "other")

    with pytest.raises(errors.ConfigError, match="'bad'"):
        promote(good_and_bad["bad"], tracker=tracker)
    with pytest.raises(errors.ConfigError, match="digest"):
        promote(good_and_bad["good"], PromoteConfig(model=str(other)), tracker=tracker)
    with pytest.raises(errors.RunNotFoundError):
        promote("0" * 32, tracker=tracker)


def test_stricter_check_prevents_registration(good_and_bad, data, tracker) -> None:
    strict = CheckConfig(data=str(data), tolerances=Tolerances(atol=0, rtol=0), latency_runs=0)

    refused = promote(good_and_bad["good"], PromoteConfig(check=strict, name="strict"), tracker=tracker)

    assert (refused.verdict_text, refused.exit_code, refused.version) == ("bad (refused)", 1, "")
    assert "golden outputs" in refused.reasons[0] and "Nothing is registered" in refused.page()
    assert tracker.aliases("strict") == {}
    run = tracker.load(refused.run_id)
    assert (run.info.verdict, run.info.tags[Tag.HEADLINE], run.details().status[0]) == ("bad", "refused", "FAILED")
    assert not check_integrity(run, SharedReads(tracker)).contradictions


def test_wrong_precision_prevents_registration(folder, tracker) -> None:
    path = models.conv_net().fixed().write(folder, "half")
    check = CheckConfig(latency_runs=0, plots="never")
    built = convert(path, ConvertConfig(build=BuildConfig(precision="fp16"), check=check), tracker=tracker)
    assert built.verdict == "good"

    held = PromoteConfig(check=dataclasses.replace(check, min_precision_share=0.5))
    refused = promote(built.run_id, held, tracker=tracker)

    assert refused.verdict == "bad" and re.search(r"No FP16 .* at least 50% are required", refused.reasons[0])
    assert tracker.aliases("half") == {}


def test_resolving_lists_accepted_engines(promoted, model, folder, tracker) -> None:
    never = resolve(models.identity().write(folder, "never"), tracker=tracker)
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, weight.name))
    retrained = resolve(Model.from_proto(proto, "blocks"), tracker=tracker)
    environment = resolve(model, tracker=tracker).engine(tracker).environment
    elsewhere = resolve(model, tracker=tracker, environment=dataclasses.replace(environment, backend_version="99.0"))

    assert "engines of that name: none" in never.reason
    assert promoted.alias in retrained.reason and promoted.alias != retrained.alias
    assert promoted.alias in elsewhere.reason and "onnxruntime 99.0" in elsewhere.reason
    for resolution in (never, retrained, elsewhere):
        assert resolution.run_id is None
        with pytest.raises(errors.ConfigError, match="Promote a good run"):
            resolution.engine(tracker)


def test_a_changed_engine_is_not_accepted_any_more(good_and_bad, model, tracker) -> None:
    result = promote(good_and_bad["good"], PromoteConfig(name="changed"), tracker=tracker)
    file = tracker.load(result.run_id).local_path("engine/engine.ort")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    resolved = resolve(model, tracker=tracker, name="changed")

    assert resolved.run_id is None and "other content than its manifest says" in resolved.reason


def test_forged_versions_are_refused(promoted, good_and_bad, model, folder, tracker) -> None:
    forged = folder / "forged.ort"
    forged.write_bytes(b"not ours")
    client = tracker._client
    for name, source in (("path", str(forged)), ("climb", f"runs:/{promoted.run_id}/../engine.ort")):
        client.create_registered_model(name)
        version = client.create_model_version(name, source, promoted.run_id)
        client.set_registered_model_alias(name, promoted.alias, version.version)

        resolved = resolve(model, tracker=tracker, name=name)

        assert resolved.run_id is None and "not an artifact of a run" in resolved.reason

    tracker.register("sneaked", good_and_bad["bad"], "engine/engine.ort", alias=promoted.alias)

    resolved = resolve(model, tracker=tracker, name="sneaked")

    assert resolved.run_id is None and "not registered by promoting" in resolved.reason
