"""The audit flow finds runs that contradict themselves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flows.audit import audit
from tests import models
from trtops import errors
from trtops.ops.auditing.op import AuditConfig
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.tracking.schema import Tag
from trtops.tracking.store import default_tracker


def test_audit_fails_after_digest_was_changed(store: Path, tmp_path: Path) -> None:
    check = CheckConfig(latency_runs=0, plots="never")
    built = convert(models.conv_net().write(tmp_path), ConvertConfig(check=check), tracker=default_tracker())

    result = audit(AuditConfig(ways=("replay",)), experiment="conv_net", sample=3)

    assert result.headline == "1 of 1 runs pass" and result.grades
    assert default_tracker().info(result.run_id).tags[Tag.PREFECT_FLOW_RUN]
    with closing(sqlite3.connect(store / "mlflow.db")) as database, database:
        database.execute("UPDATE tags SET value = ? WHERE key = ?", ("0" * 64, Tag.ENGINE_SHA256))
    failing = audit(experiment="conv_net", rebuild=False)
    [failed] = failing.failed
    assert failing.verdict == "bad" and failing.headline == "0 of 1 runs pass"
    assert failed.id == built.run_id and failed.contradictions[0].what == "engine"


def test_runs_of_another_backend_are_left_out(store: Path, tmp_path: Path) -> None:
    convert(models.conv_net().write(tmp_path), tracker=default_tracker())

    with pytest.raises(errors.ConfigError, match="No run matches"):
        audit(experiment="conv_net", backend="tensorrt")
