"""What MLflow holds of an engine besides its run: it loads for MLflow's clients, and each forgery of it is named."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import models
from tests.ops.audit.conftest import Logged
from trtops import errors
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.tracking.mlflow import derived
from trtops.tracking.mlflow.logged_models import output_of
from trtops.tracking.schema import Artifact


def logged_model(store: Logged, run: str) -> str:
    """The id of the logged model of a run's engine."""
    model = output_of(store.tracker._client.get_run(store.runs[run]))
    assert model is not None
    return model


def model_folder(store: Logged, run: str) -> Path:
    return next(store.root.glob(f"artifacts/*/models/{logged_model(store, run)}/artifacts"))


@pytest.fixture
def mlflow_client(logged: Logged, monkeypatch: pytest.MonkeyPatch):
    """MLflow, as a client that knows nothing but the address of the store."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{logged.root / 'mlflow.db'}")
    return mlflow


def test_accepted_engine_predicts_in_mlflow(logged: Logged, mlflow_client) -> None:
    import pandas as pd

    case = models.conv_net().fixed()
    [(name, array)] = case.feed.items()
    model = mlflow_client.pyfunc.load_model("models:/conv_net@accepted")
    outputs = model.predict({name: array})
    from_frame = model.predict(pd.DataFrame({name: list(array.reshape(len(array), -1))}))
    by_id = mlflow_client.pyfunc.load_model(f"models:/{logged_model(logged, 'accepted')}").predict({name: array})

    assert {*outputs} == {value.name for value in case.proto.graph.output}
    for output in outputs:
        np.testing.assert_array_equal(outputs[output], from_frame[output])
        np.testing.assert_array_equal(outputs[output], by_id[output])
    files = {
        path.name for path in Path(mlflow_client.artifacts.download_artifacts("models:/conv_net@accepted")).rglob("*")
    }
    assert {"MLmodel", "manifest.json", "replay.json", "timing.cache", "engine.ort", "spec.json"} <= files
    # Where it is registered, and loaded without a copy, MLflow adds a file to the folder.
    [run_audit] = audit(AuditConfig(runs=(logged.runs["accepted"],), rebuild=False), tracker=logged.tracker).runs
    assert not run_audit.contradictions

    engine = model_folder(logged, "accepted") / "engine" / "engine.ort"
    engine.write_bytes(engine.read_bytes()[:-1] + b"!")
    with pytest.raises(errors.IncompleteRunError, match=r"engine.ort.* other content"):
        mlflow_client.pyfunc.load_model("models:/conv_net@accepted")


def test_engine_of_reused_build_is_a_link(logged: Logged) -> None:
    run = logged.tracker._client.get_run(logged.runs["reused"])
    model = logged_model(logged, "fp32")

    assert [used.model_id for used in run.inputs.model_inputs] == [model]
    [used] = run.inputs.dataset_inputs
    assert [used.dataset.name, used.dataset.digest] == [
        run.data.params[f"evidence.{part}"] for part in ("source", "data")
    ]
    assert logged.tracker._client.get_logged_model(model).name.startswith("conv_net FP32")
    iteration = logged.tracker._client.get_logged_model(logged_model(logged, "iteration"))
    assert re.fullmatch(r"iteration 3 tactics [0-9a-f]{8} blocks FP32 .+", iteration.name)


FORGERIES: dict[str, tuple[str, str, str]] = {
    "a number": (
        "UPDATE logged_model_metrics SET metric_value = 9 WHERE metric_name = 'error/max_abs' AND model_id = ?",
        "fp16", "metric error/max_abs by run",
    ),
    "the data of a number": (
        "UPDATE logged_model_metrics SET dataset_digest = 'x' WHERE metric_name = 'error/nrmse' AND model_id = ?",
        "fp16", "metric error/nrmse by run",
    ),
    "a number of another run": (
        "DELETE FROM logged_model_metrics WHERE run_id = 'REUSED' AND metric_name = 'latency/p50_ms' AND model_id = ?",
        "fp32", "metric latency/p50_ms by run",
    ),
    "a history": (
        "DELETE FROM metrics WHERE key = 'error/nrmse' AND run_uuid = "
        "(SELECT source_run_id FROM logged_models WHERE model_id = ?)",
        "iteration", "history of metric error/nrmse",
    ),
    "a verdict": (
        "UPDATE logged_model_tags SET tag_value = 'bad' WHERE tag_key = 'trtops.verdict' AND model_id = ?",
        "fp32", "tag trtops.verdict of logged model",
    ),
    "a model's description": (
        "UPDATE logged_model_tags SET tag_value = 'good' WHERE tag_key = 'mlflow.note.content' AND model_id = ?",
        "fp32", "tag mlflow.note.content of logged model",
    ),
    "a kernel": (
        "UPDATE logged_model_tags SET tag_key = 'kernel/other' WHERE model_id = ? AND tag_key = (SELECT min(tag_key) "
        "FROM logged_model_tags WHERE tag_key LIKE 'kernel/%')",
        "iteration", "tag kernel/other of logged model",
    ),
    "a param": (
        "UPDATE logged_model_params SET param_value = 'int8' WHERE param_key = 'precision' AND model_id = ?",
        "fp32", "param precision of logged model",
    ),
    "a name": ("UPDATE logged_models SET name = 'x' WHERE model_id = ?", "fp16", "name of logged model"),
    "a status": ("UPDATE logged_models SET status = 3 WHERE model_id = ?", "fp16", "status of logged model"),
    "a source run": (
        "UPDATE logged_models SET source_run_id = 'REUSED' WHERE model_id = ?", "gate", "source run of logged model"
    ),
    "a deleted model": (
        "UPDATE logged_models SET lifecycle_stage = 'deleted' WHERE model_id = ?",
        "calibrated", "logged model: entry {entry} of the log says m-",
    ),
    "another engine's model": (
        "UPDATE inputs SET destination_id = 'm-1' WHERE source_type = 'RUN_OUTPUT' AND destination_id = ?",
        "int8", "logged model: entry {entry} of the log says m-",
    ),
    "a reused engine": (
        "DELETE FROM inputs WHERE source_type = 'RUN_INPUT' AND destination_id = ?",
        "fp32", "logged model: entry {reuse} of the log says m-",
    ),
    "a dataset's name": (
        "UPDATE datasets SET name = 'x' WHERE dataset_uuid = (SELECT source_id FROM inputs WHERE destination_id = "
        "(SELECT source_run_id FROM logged_models WHERE model_id = ?))",
        "accepted", "dataset x@",
    ),
    "a description": (
        "UPDATE model_versions SET description = 'better' "
        "WHERE run_id = (SELECT source_run_id FROM logged_models WHERE model_id = ?)",
        "accepted", "'conv_net' with alias 'accepted': description",
    ),
    "where its files are": (
        "UPDATE model_versions SET storage_location = replace(storage_location, 'm-', 'm-0') "
        "WHERE storage_location LIKE '%' || ? || '%'",
        "accepted", "location of version 1 of 'conv_net'",
    ),
    "where it is loaded from": (
        "UPDATE model_versions SET source = replace(source, 'models/m', 'other/models/m') "
        "WHERE run_id = (SELECT source_run_id FROM logged_models WHERE model_id = ?)",
        "accepted", "registered versions of logged model",
    ),
}  # fmt: skip


def test_forged_logged_models_are_named(logged: Logged) -> None:
    config = AuditConfig(sample=1000, rebuild=False)
    assert not contradictions(logged, config)
    entries = {json.loads(text)["run"]: number for number, text in logged.tracker.log_entries()[0].items()}
    ids = {name: logged_model(logged, run) for name, (_, run, _) in FORGERIES.items()}
    reuse = entries[logged.runs["reused"]]

    for name, (query, _, _) in FORGERIES.items():
        logged.execute(query.replace("REUSED", logged.runs["reused"]), ids[name])
    loader = model_folder(logged, "fp32") / Artifact.MLMODEL
    loader.write_text(loader.read_text().replace("trtops.tracking", "evil.tracking"))

    lines = contradictions(logged, config)
    expected = {}
    for name, (_, run, text) in FORGERIES.items():
        expected[name] = text.format(entry=entries[logged.runs[run]], reuse=reuse)
    expected["a loader"] = f"{Artifact.MLMODEL} of logged model"
    assert {name: text for name, text in expected.items() if not any(text in line for line in lines)} == {}


def test_numbers_of_unfinished_run_are_unverified(logged: Logged) -> None:
    """As an audit or a gate of another process logs them, that is still at work or was killed."""
    tracker, engine = logged.tracker, logged.runs["fp16"]
    config = AuditConfig(runs=(engine,), rebuild=False)
    run = tracker.start("audit", "of a colleague", kind="audit")
    run.log_metrics({("audit", "passed"): 1.0}, engine=engine)

    [audited] = audit(config, tracker=tracker).runs

    assert audited.contradictions == ()
    assert any(run.id in line and "RUNNING" in line for line in audited.unverified)
    logged.execute("UPDATE runs SET status = 'FINISHED' WHERE run_uuid = ?", run.id)
    assert any(run.id in line for line in contradictions(logged, config))


def test_run_that_ends_during_the_audit_is_compared(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run logs its last numbers of an engine after the audit has read the engine's numbers."""
    tracker, engine = logged.tracker, logged.runs["fp16"]
    run = tracker.start("audit", "of a colleague", kind="audit")
    run.log_metrics({("audit", "passed"): 1.0}, engine=engine)
    read_facts = derived._row_facts

    def read_facts_then_end(*arguments: Any) -> derived.Derived:
        if not Path(tracker._client.get_run(run.id).info.artifact_uri, Artifact.MANIFEST).exists():
            run.log_metrics({("audit", "runs"): 1.0}, engine=engine)
            run.finish("good")
        return read_facts(*arguments)

    monkeypatch.setattr(derived, "_row_facts", read_facts_then_end)
    [audited] = audit(AuditConfig(runs=(engine,), rebuild=False), tracker=tracker).runs

    assert audited.contradictions == () and not any(run.id in line for line in audited.unverified)


def contradictions(store: Logged, config: AuditConfig) -> list[str]:
    result = audit(config, tracker=store.tracker)
    every = [*(problem for run in result.runs for problem in run.contradictions), *result.log.contradictions]
    return [contradiction.text() for contradiction in every]


# Tables of MLflow's database that trtops fills, and their columns: covered by a run's statement or the log, derived
# from the run and compared with it, or free. Files behind addresses have the digests of the manifest.
COLUMNS = """
    runs covered: run_uuid name status start_time end_time lifecycle_stage experiment_id user_id
    runs derived: artifact_uri
    runs free: source_type source_name entry_point_name source_version deleted_time
    tags covered: key value run_uuid
    params covered: key value run_uuid
    metrics covered: key value is_nan run_uuid
    metrics free: timestamp step
    latest_metrics covered: key value is_nan run_uuid
    latest_metrics free: timestamp step
    experiments covered: experiment_id name
    experiments free: workspace artifact_location lifecycle_stage creation_time last_update_time
    experiment_tags free: key value experiment_id
    datasets derived: dataset_uuid name digest dataset_source_type dataset_source
    datasets free: experiment_id dataset_schema dataset_profile
    inputs derived: source_type source_id destination_type destination_id
    inputs free: input_uuid step
    input_tags derived: input_uuid value
    input_tags free: name
    logged_models covered: model_id lifecycle_stage
    logged_models derived: experiment_id name artifact_location status model_type source_run_id
    logged_models free: creation_timestamp_ms last_updated_timestamp_ms status_message
    logged_model_metrics derived: model_id metric_name metric_timestamp_ms metric_step metric_value run_id
    logged_model_metrics derived: dataset_name dataset_digest
    logged_model_metrics free: experiment_id dataset_uuid
    logged_model_params derived: model_id param_key param_value
    logged_model_params free: experiment_id
    logged_model_tags derived: model_id tag_key tag_value
    logged_model_tags free: experiment_id
    registered_models covered: name
    registered_models free: workspace creation_time last_updated_time description
    registered_model_tags free: workspace name key value
    registered_model_aliases covered: name alias version
    registered_model_aliases free: workspace
    model_versions covered: name version description source run_id
    model_versions derived: storage_location
    model_versions free: workspace creation_time last_updated_time user_id current_stage run_link status status_message
    model_version_tags covered: name version key value
    model_version_tags free: workspace
"""
# Of traces, prompts, gateways, reviews, jobs and webhooks.
UNUSED = """
    assessments budget_policies endpoint_bindings endpoint_model_mappings endpoint_tags endpoints entity_associations
    evaluation_dataset_records evaluation_dataset_tags evaluation_datasets guardrail_configs guardrails issues job_locks
    jobs label_schemas mcp_access_endpoints mcp_server_aliases mcp_server_tags mcp_server_version_tags
    mcp_server_versions mcp_servers model_definitions online_scoring_configs review_queue_items
    review_queue_label_schemas review_queue_users review_queues scheduler_leases scorer_versions scorers secrets
    span_metrics spans sql_assessment_daily_rollups sql_span_cost_daily_rollups sql_trace_metric_daily_rollups
    sql_trace_rollup_rebuild_queue trace_info trace_metrics trace_request_metadata trace_tags webhook_events webhooks
    workspaces
"""


def covered_columns() -> Iterator[tuple[str, str, list[str]]]:
    """Yield tables, how columns of each are covered, and their names."""
    for line in COLUMNS.strip().splitlines():
        place, _, names = line.partition(": ")
        table, how = place.split()
        yield table, how, names.split()


def test_every_column_of_mlflow_is_considered() -> None:
    for module in ("tracking.dbmodels", "model_registry.dbmodels"):
        importlib.import_module(f"mlflow.store.{module}.models")
    tables = importlib.import_module("mlflow.store.db.base_sql_model").Base.metadata.tables

    columns = {(name, column.name) for name, table in tables.items() for column in table.columns}
    unused = UNUSED.split()
    considered = {(table, name) for table, _, names in covered_columns() for name in names}
    assert {column for column in columns if column[0] not in unused} <= considered
