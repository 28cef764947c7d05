"""The convert flow, on a real Prefect server, a real MLflow store and real ONNX Runtime."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import numpy as np
import onnx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

from flows.compare import compare
from flows.convert import convert
from tests import models
from tests.waiting import until
from trtops import errors
from trtops.flows.flow_of import close_runs
from trtops.tracking import schema
from trtops.tracking.store import default_tracker


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(models.conv_net().proto, path)
    return path


def test_same_spec_is_built_once(store: Path, model: Path) -> None:
    first = convert(model)
    again = convert(model)
    forced = convert(model, rebuild=True)
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(0.5), weight.name))
    onnx.save(proto, model)
    changed = convert(model)

    assert first.reused_from is None
    assert again.reused_from == first.run_id and again.engine_sha256 == first.engine_sha256
    assert forced.reused_from is None
    assert changed.reused_from is None and changed.spec_sha256 != first.spec_sha256


def test_invalid_parameters_leave_no_run(store: Path, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")

    with pytest.raises(errors.InvalidModelError, match=r"broken\.onnx"):
        convert(broken)
    with pytest.raises(errors.ConfigError, match="'fp32', 'fp16'"):
        convert(model, precision="fp12")
    with pytest.raises(errors.ConfigError, match="precison"):
        convert(model, {"build": {"precison": "fp16"}})

    assert default_tracker().find() == []


def test_crashed_flow_run_closes_its_runs(store: Path) -> None:
    tags = {schema.Tag.PREFECT_FLOW_RUN: "11111111-2222-3333-4444-555555555555"}
    mine = default_tracker().start("e", "mine", kind="build", tags=tags)
    other = default_tracker().start("e", "other", kind="build")

    close_runs(
        None, SimpleNamespace(id=tags[schema.Tag.PREFECT_FLOW_RUN], name="happy-owl"), SimpleNamespace(name="Crashed")
    )

    assert default_tracker().info(mine.id).status == "killed"
    assert "happy-owl" in default_tracker().info(mine.id).tags[schema.Tag.ERROR]
    assert default_tracker().info(other.id).status == "running"
    other.fail("done")


def test_flow_closes_runs_of_dead_processes(store: Path, model: Path) -> None:
    code = "from trtops.tracking.store import default_tracker as t; print(t().start('e', 'dead', kind='build').id)"
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert default_tracker().info(left).status == "running"

    convert(model)

    assert default_tracker().info(left).status == "killed"


def test_prefect_shows_result_and_steps(store: Path, model: Path) -> None:
    result = convert(model)

    flow_run = default_tracker().info(result.run_id).tags[schema.Tag.PREFECT_FLOW_RUN]
    with get_client(sync_client=True) as client:
        artifact = max(client.read_artifacts(), key=lambda artifact: artifact.created)
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run)]))
        until(lambda: len(client.read_task_runs(flow_run_filter=wanted)) >= 5)  # they are sent in the background
        tasks = client.read_task_runs(flow_run_filter=wanted)
        run = client.read_flow_run(UUID(flow_run))
    assert artifact.type == "markdown"
    assert "good" in str(artifact.data) and result.run_id in str(artifact.data)
    assert {task.name.rpartition("-")[0] for task in tasks} == {"build", "run reference", "run", "compare", "log"}
    assert run.name == "small" and run.state is not None and run.state.name == "Good"


def test_results_are_neither_persisted_nor_read(
    store: Path, model: Path, prefect_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_RESULTS_PERSIST_BY_DEFAULT", "true")
    results, canary = prefect_home / "results", tmp_path / "canary"
    shutil.rmtree(results, ignore_errors=True)

    first = convert(model)
    written = list(results.rglob("*"))
    forge_results(results, canary)
    second = convert(model)

    assert written == []
    assert second.reused_from == first.run_id
    assert not canary.exists()


def test_failed_flow_writes_no_pickle(store: Path, tmp_path: Path, prefect_home: Path) -> None:
    results = prefect_home / "results"
    shutil.rmtree(results, ignore_errors=True)

    with pytest.raises(errors.InvalidModelError):
        convert(tmp_path / "missing.onnx")
    with pytest.raises(errors.ConfigError):
        convert(tmp_path / "missing.onnx", precision="fp12")

    written = [file.read_bytes() for file in results.rglob("*")]
    assert written
    assert all(json.loads(content) for content in written)


def forge_results(folder: Path, canary: Path) -> None:
    """Put records that run code when they are read under every name that Prefect could look for."""

    class Bomb:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return (Path(canary).touch, ())

    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "metadata": {"serializer": {"type": "pickle"}, "storage_key": "x", "expiration": None},
        "result": base64.b64encode(pickle.dumps(Bomb())).decode(),
    }
    for name in ("convert-model", "convert", "result"):
        (folder / name).write_text(json.dumps(record))


def test_compare_flow_reads_engine_of_run(store: Path, model: Path) -> None:
    built = convert(model, precision="fp16")  # an FP32 engine may give the reference's very bits

    same = compare(f"run:{built.run_id}", str(model))
    strict = compare(f"run:{built.run_id}", str(model), {"tolerances": {"atol": 0, "rtol": 0, "min_snr": 500}})

    assert same.verdict == "good"
    assert strict.verdict == "bad" and strict.reasons
    assert default_tracker().info(strict.run_id).tags[schema.Tag.KIND] == "compare"
