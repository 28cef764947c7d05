"""The flows of engines, on a real Prefect server, a real MLflow store and real ONNX Runtime."""

import base64
import json
import pickle
import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import UUID

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_UI_URL, temporary_settings
from prefect.states import Crashed

from flows.calibrate import calibrate, sensitivity
from flows.convert import convert, nightly, watch
from flows.store import reap
from tests import models
from tests.forking import run_in_children
from tests.waiting import until
from trtops import errors
from trtops.calibration import CalibrationCache
from trtops.flows.flow_of import close_runs
from trtops.ops.engines.calibrate import CalibrateConfig
from trtops.ops.engines.request import CommandData
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import schema
from trtops.tracking.store import default_tracker


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.conv_net().fixed().write(tmp_path, "small")


def test_invalid_parameters_leave_no_run(store: Path, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")

    with pytest.raises(errors.ConfigError, match="'fp32', 'fp16'"):
        convert(model, precision="fp12")
    with pytest.raises(errors.ConfigError, match="precison"):
        convert(model, {"build": {"precison": "fp16"}})
    assert not list(store.glob("*.db"))
    with pytest.raises(errors.InvalidModelError, match=r"broken\.onnx"):
        convert(broken)

    assert default_tracker().find() == []


def test_runs_of_crashed_processes_are_closed(store: Path, model: Path) -> None:
    tags = {schema.Tag.PREFECT_FLOW_RUN: "11111111-2222-3333-4444-555555555555"}
    mine, other = (default_tracker().start("e", "run", kind="build", tags=run_tags) for run_tags in (tags, {}))
    flow_run = SimpleNamespace(id=tags[schema.Tag.PREFECT_FLOW_RUN], name="happy-owl")
    run_in_children(lambda name: default_tracker().start("e", name, kind="build"), ["dead"])
    [left] = [info.id for info in default_tracker().find("e") if info.name == "dead"]

    close_runs(None, flow_run, SimpleNamespace(name="Crashed"))
    assert [default_tracker().info(run).status for run in (mine.id, left, other.id)] == ["killed", "running", "running"]
    assert "happy-owl" in default_tracker().info(mine.id).tags[schema.Tag.ERROR]
    convert(model)
    assert default_tracker().info(left).status == "killed"
    other.fail("done")


def test_prefect_shows_result_and_steps(store: Path, model: Path) -> None:
    with temporary_settings({PREFECT_UI_URL: "https://prefect.example.org"}):
        result = convert(model)

    info = default_tracker().info(result.run_id)
    flow_run = info.tags[schema.Tag.PREFECT_FLOW_RUN]
    ours = {name: value for name, value in info.tags.items() if name.startswith("trtops.")}
    assert len(ours) <= 12 and all(len(value) <= schema.MAX_SHORT_TAG for value in ours.values()), ours
    page = f"https://prefect.example.org/runs/flow-run/{flow_run}"
    assert info.fact(schema.Tag.PREFECT_URL) == page and f"]({page})" in info.tags[schema.Tag.NOTE]
    with get_client(sync_client=True) as client:
        artifact = max(client.read_artifacts(), key=lambda artifact: artifact.created)
        flow_filter = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run)]))
        until(lambda: len(client.read_task_runs(flow_run_filter=flow_filter)) >= 7)  # they are sent in the background
        tasks = client.read_task_runs(flow_run_filter=flow_filter)
        run = client.read_flow_run(UUID(flow_run))
        resource = {"id": [f"trtops.run.{result.run_id}"]}
        events = {"filter": {"event": {"name": ["trtops.convert.good"]}, "resource": resource}}
        until(lambda: client._client.post("/events/filter", json=events).json()["events"])
        [event] = client._client.post("/events/filter", json=events).json()["events"]
        asset = {"name": ["prefect.asset.materialization.succeeded"]}
        events["filter"] |= {"event": asset, "resource": {"id": [f"mlflow://{result.run_id}/engine"]}}
        until(lambda: client._client.post("/events/filter", json=events).json()["events"])
    assert {"good", "small", "fp32"} <= set(run.tags) and event["payload"]["experiment"] == "small"
    assert artifact.type == "markdown"
    assert "good" in str(artifact.data) and result.run_id in str(artifact.data)
    assert {task.name.rpartition("-")[0] for task in tasks} == {
        *("load", "build", "run reference", "measure noise", "run", "compare", "log")
    }
    assert run.name == "small" and run.state is not None and run.state.name == "Good"
    assert "samples in 2 feeds" in str(run.state.message)

    with get_client(sync_client=True) as client:  # as if its process had been killed right before it reported
        client.set_flow_run_state(run.id, Crashed(), force=True)
        assert "Flow run small is Good" in reap()
        settled = client.read_flow_run(run.id).state
    assert settled is not None and settled.is_completed() and result.run_id in str(settled.message)


def test_flow_run_that_crashes_before_it_begins_starts_three_times(store: Path) -> None:
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow_from_name("convert"), f"crash-{uuid.uuid4()}")
        flow_run = client.create_flow_run_from_deployment(deployment)
        pauses = []
        for _ in range(3):
            client.set_flow_run_state(flow_run.id, Crashed(), force=True)
            reap()
            state = client.read_flow_run(flow_run.id).state
            assert state is not None
            if state.is_scheduled():
                pauses.append((state.state_details.scheduled_time - state.timestamp).total_seconds())
    assert state.is_crashed() and len(pauses) == 2  # its process never ran, so that Prefect counts no start
    assert min(pauses) > 30  # the worker has given the slot back by then


class Bomb:
    """Runs code when it is read from a pickle."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (Path.touch, (self.canary,))


def test_results_are_neither_persisted_nor_read(
    store: Path, model: Path, prefect_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_RESULTS_PERSIST_BY_DEFAULT", "true")
    results, canary = prefect_home / "results", tmp_path / "canary"
    shutil.rmtree(results, ignore_errors=True)

    first = convert(model)
    assert list(results.rglob("*")) == []
    # Records under every name that Prefect could search for.
    results.mkdir(parents=True, exist_ok=True)
    metadata = {"serializer": {"type": "pickle"}, "storage_key": "x", "expiration": None}
    record = {"metadata": metadata, "result": base64.b64encode(pickle.dumps(Bomb(canary))).decode()}
    for name in ("convert-model", "convert", "result"):
        (results / name).write_text(json.dumps(record))

    assert convert(model).reused_from == first.run_id
    assert not canary.exists()
    shutil.rmtree(results)
    with pytest.raises(errors.InvalidModelError):
        convert(tmp_path / "missing.onnx")
    assert list(results.rglob("*")) == []


def test_list_and_folder_are_built(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.conv_net().fixed().write(tmp_path)
    listed = tmp_path / "list.yaml"
    listed.write_text("models:\n  - model: conv_net.onnx\n    policy: {isolated: false}\n  - model: conv_nett.onnx\n")

    result = nightly(listed)
    assert result.headline == "1 of 2 failed (1 good, 1 error): conv_nett"
    assert [build.outcome for build in result.builds] == ["good", "error"]
    with get_client(sync_client=True) as client:
        boards = (artifact for artifact in client.read_artifacts() if artifact.key == "board")
        shown = str(max(boards, key=lambda artifact: artifact.created).data)
    assert shown.index("conv_nett.onnx | onnxruntime") < shown.index("conv_net.onnx | onnxruntime")
    assert len(default_tracker().find("conv_net")) == 1
    (tmp_path / "conv_net.onnx").rename(tmp_path / "moved.onnx")
    with monkeypatch.context() as context:
        context.setattr(CommandData, "request", Mock(side_effect=errors.TrackingUnavailableError("the store is away")))
        result = watch(tmp_path, pattern="*.onnx", settle_seconds=0.0, precisions=("fp16",))
    assert (result.verdict, result.headline) == ("error", "1 of 1 failed (1 error): moved")
    [failed] = default_tracker().find("moved")  # not one for each retry
    assert failed.tags[schema.Tag.TRANSIENT] == "true" and result.builds[0].run_id == failed.id
    assert failed.id[:8] in result.page()

    listed.write_text("models: []")
    assert nightly(listed, experiment="x").headline == "nothing to build"
    assert watch(tmp_path / "none").builds == ()


def test_sensitivity_reads_cache_of_calibration(store: Path, tmp_path: Path) -> None:
    model, images = models.conv_net().write(tmp_path), tmp_path / "images.npz"
    np.savez(images, image=np.concatenate([models.random(4, 3, 8, 8, seed=seed) for seed in range(4)]))
    output = tmp_path / "conv_net.cache"
    config = CalibrateConfig(
        build=BuildConfig(precision="int8", options=OnnxRuntimeOptions(tactics=(), timing_iterations=1)),
        check=CheckConfig(latency_runs=0, plots="never"),
    )
    result = calibrate(model, config, data=str(images), algorithm="minmax", batch=8, keep=("fc",), output=str(output))
    measured = sensitivity(model, f"run:{result.run_id}", data=str(images), budget=0.5)

    tracker = default_tracker()
    stored = tracker.load(result.run_id)
    assert result.feeds == 2 and result.algorithm == "minmax" and result.verdict == "good"
    assert stored.info.tags[schema.Tag.KIND] == "calibrate" and stored.info.tags[schema.Tag.PREFECT_FLOW_RUN]
    assert CalibrationCache.from_bytes(output.read_bytes()).samples == 0  # TensorRT's text has no place for it
    assert {"caches/calibration.cache", "caches/calibration.json"} <= {
        entry.path for entry in stored.manifest.artifacts
    }
    assert "; kept: fc;" in tracker.load(result.engine.run_id).read_bytes("build.log").decode()
    assert measured.keep == () and len(measured.layers) == 3
    table = json.loads(tracker.load(measured.run_id).read_bytes("sensitivity/layers.json"))
    assert [row[0] for row in table["data"]] == [layer.layer for layer in measured.layers]
