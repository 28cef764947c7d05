"""The convert flow, on a real Prefect server, a real MLflow store and real ONNX Runtime."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from prefect.client.orchestration import get_client

from flows.compare import compare
from flows.convert import convert, convert_model
from flows.tasks import close_runs, worth_a_retry
from tests import models
from trtops import errors
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig
from trtops.tracking import schema
from trtops.tracking.store import default_tracker


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(models.conv_net().proto, path)
    return path


def test_a_flow_called_as_a_function_returns_the_verdict_and_leaves_a_whole_run(store: Path, model: Path) -> None:
    result = convert(model)

    run = default_tracker().load(result.run_id)
    assert result.verdict == "good"
    assert run.info.tags[schema.Tag.VERDICT] == "good"
    assert run.info.tags[schema.Tag.PREFECT_FLOW_RUN]
    assert run.info.experiment == "small"
    assert {"engine/engine.ort", "tactics/replay.json", "accuracy/results.json", "spec.json", "environment.json"} <= {
        entry.path for entry in run.manifest.artifacts
    }


def test_the_same_spec_is_built_once_and_other_bytes_at_the_same_path_are_another_model(
    store: Path, model: Path
) -> None:
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


def test_a_flow_holds_an_engine_to_its_precision_and_says_whose_fault_its_error_is(store: Path, model: Path) -> None:
    result = convert(model, precision="fp16", min_precision_share=0.5, attribute_error=True)

    info = default_tracker().info(result.run_id)
    assert result.verdict == info.verdict == "bad"
    assert result.reasons[-1].startswith("No FP16 engine: ") and "at least 50% have to" in result.reasons[-1]
    assert info.tags[schema.Tag.ATTRIBUTION] == "not in its precision"


def test_parameters_are_checked_before_anything_runs(store: Path, model: Path) -> None:
    with pytest.raises(errors.ConfigError, match="'fp32', 'fp16'"):
        convert(model, precision="fp12")
    with pytest.raises(errors.ConfigError, match="precison"):
        convert(model, {"build": {"precison": "fp16"}})

    assert default_tracker().find() == []


def test_a_config_can_be_given_as_plain_json(store: Path, model: Path) -> None:
    result = convert(model, {"build": {"precision": "fp16"}, "check": {"latency_runs": 3}})

    assert result.precision == "fp16"
    assert result.evaluation.latency is not None and result.evaluation.latency.runs == 3


def test_a_model_that_cannot_be_read_fails_the_flow_and_leaves_no_run(store: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")

    with pytest.raises(errors.InvalidModelError, match=r"broken\.onnx"):
        convert(broken)

    assert default_tracker().find() == []


def test_only_lost_infrastructure_is_worth_a_retry() -> None:
    class State:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def result(self, raise_on_failure: bool) -> BaseException:
            return self.error

    def worth(error: BaseException) -> bool:
        return worth_a_retry(convert_model, None, State(error))

    assert worth(errors.TrackingUnavailableError("gone")) and worth(ConnectionError())
    assert not worth(errors.InvalidModelError("x")) and not worth(errors.LogError("full")) and not worth(ValueError())


def test_a_flow_run_that_crashed_leaves_no_run_open(store: Path) -> None:
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


def test_a_flow_closes_the_runs_of_dead_processes(store: Path, model: Path) -> None:
    code = "from trtops.tracking.store import default_tracker as t; print(t().start('e', 'dead', kind='build').id)"
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert default_tracker().info(left).status == "running"

    convert(model)

    assert default_tracker().info(left).status == "killed"


def test_prefect_shows_the_result_with_the_way_to_the_run(store: Path, model: Path) -> None:
    result = convert(model)

    artifact = asyncio.run(_newest_artifact())

    assert artifact.type == "markdown"
    assert "good" in artifact.data and result.run_id in artifact.data


async def _newest_artifact():  # type: ignore[no-untyped-def]
    async with get_client() as client:
        artifacts = await client.read_artifacts()
    return max(artifacts, key=lambda a: a.created)


def test_no_result_is_persisted_and_a_forged_one_runs_no_code(
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


def test_what_prefect_writes_of_a_failed_flow_is_no_pickle(store: Path, tmp_path: Path, prefect_home: Path) -> None:
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


def test_the_compare_flow_reads_an_engine_back_and_evaluates_it(store: Path, model: Path) -> None:
    built = convert(model, precision="fp16")  # an FP32 engine may give the reference's very bits

    same = compare(f"run:{built.run_id}", str(model))
    strict = compare(
        f"run:{built.run_id}", str(model), {"check": {"tolerances": {"atol": 0, "rtol": 0, "min_snr": 500}}}
    )

    assert same.verdict == "good"
    assert strict.verdict == "bad" and strict.reasons
    assert default_tracker().info(strict.run_id).tags[schema.Tag.KIND] == "compare"


def test_a_bad_engine_is_a_result_with_reasons_and_pictures(store: Path, model: Path) -> None:
    tolerances = {"atol": 0.0, "rtol": 0.0}
    result = convert(model, ConvertConfig(build=BuildConfig(precision="fp16")), data=None)
    strict = convert(model, {"build": {"precision": "fp16"}, "check": {"tolerances": tolerances}})

    assert strict.verdict == "bad" and strict.reasons
    pictures = [e.path for e in default_tracker().load(strict.run_id).manifest.artifacts if e.path.endswith(".svg")]
    assert pictures
    assert result.reused_from is None and strict.reused_from == result.run_id
    assert CheckConfig().tolerances is None
