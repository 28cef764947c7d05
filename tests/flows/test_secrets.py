"""Secrets from all sources are masked in Prefect, MLflow, output and errors."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flows.convert import convert
from flows.debug_build import debug_build
from tests import models
from tests.hostile import HostileServer, serving
from trtops import errors
from trtops.cli.main import main
from trtops.logger import mask_log_records
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.store import open_tracker

SECRETS = {
    "password of an address": "tr4cking-pw",
    "password of a database": "p@ssw0rd-db",
    "AWS": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "token": "query-t0ken-1234",
    "Prefect": "pnu_" + "0123456789abcdefghijABCD",
    "key": "AKIA" + "IOSFODNN7EXAMPLE",
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS["AWS"])
    monkeypatch.setenv("PREFECT_API_KEY_OF_THE_TEAM", SECRETS["Prefect"])
    monkeypatch.setenv("TEAM_DATABASE", f"postgresql://me:{SECRETS['password of a database']}@db/runs")
    monkeypatch.setenv("TRTOPS_TRACKING_WAIT", "0")


def leaks(text: str) -> list[str]:
    return [name for name, secret in SECRETS.items() if secret in text]


def read_all(folder: Path) -> str:
    """Every file below a folder, as text."""
    return "".join(p.read_bytes().decode("latin-1") for p in folder.rglob("*") if p.is_file())


def dump(database: Path) -> str:
    """Everything in a SQLite database, with its journal."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        return "\n".join(opened.iterdump())


@pytest.mark.usefixtures("planted")
def test_secrets_are_masked_everywhere(store: Path, tmp_path: Path, prefect_home: Path, caplog, capfd) -> None:
    text_with_secrets = (
        f"https://me:{SECRETS['password of an address']}@h/x?token={SECRETS['token']} {SECRETS['AWS']} "
        f"{SECRETS['key']} postgresql://me:{SECRETS['password of a database']}@db/runs {SECRETS['Prefect']}"
    )
    model = models.conv_net().fixed().write(tmp_path)
    quick = ConvertConfig(check=CheckConfig(latency_runs=0, plots="never"))
    messages = []

    assert convert(model, quick, experiment=text_with_secrets[:400]).verdict == "good"
    for failing in (
        lambda: convert(model, quick, data=f"https://h/x?token={SECRETS['token']}"),
        lambda: convert(model, quick, data=text_with_secrets),
        lambda: debug_build(model, resume=text_with_secrets),
    ):
        with pytest.raises(errors.TrtopsError) as raised:
            failing()
        messages.append(f"{raised.value!s} {raised.value!r}")
    assert main(["convert", str(model), "-o", str(tmp_path / "x.ort"), "--data-loader-script", text_with_secrets]) != 0
    assert main(["runs", "list", "--store", f"postgresql://me:{SECRETS['password of a database']}@db/runs"]) == 3
    captured = capfd.readouterr()

    assert leaks(" ".join([*messages, captured.out, captured.err, caplog.text])) == []
    assert leaks(dump(store / "mlflow.db") + read_all(store / "artifacts")) == []
    assert leaks(dump(prefect_home / "prefect.db") + read_all(prefect_home)) == []


@pytest.mark.usefixtures("planted")
def test_password_of_tracking_address_is_masked(monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    with serving(HostileServer()) as address:
        address = address.replace("://", f"://me:{SECRETS['password of an address']}@")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        tracker = MlflowTracker()
        with pytest.raises(errors.TrackingError) as raised:
            tracker.load("cd" * 16)
        shown_texts = [repr(tracker), str(tracker.context), tracker.shown, str(raised.value)]
    try:
        open_tracker(address).find()
    except errors.TrackingUnavailableError:
        logging.getLogger("trtops.x").exception("failed")
    assert main(["runs", "list"]) == 3
    captured = capfd.readouterr()

    assert leaks("\n".join([*shown_texts, captured.out, captured.err])) == []


def test_log_records_are_masked_for_all_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_PASSWORD", SECRETS["AWS"])
    for _ in range(2):
        mask_log_records()
    handler = logging.Handler()
    seen: list[str] = []
    handler.emit = lambda record: seen.append(handler.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("somebody.else")
    logger.addHandler(handler)
    try:
        logger.error("got %s", SECRETS["AWS"])
        try:
            raise RuntimeError(f"with {SECRETS['AWS']}")
        except RuntimeError:
            logger.exception("failed")
    finally:
        logger.removeHandler(handler)

    assert seen[0] == "got ***" and "RuntimeError: with ***" in seen[-1] and leaks(str(seen)) == []
