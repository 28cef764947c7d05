"""No recognized secret gets into params, tags, text artifacts, logs or messages."""

import logging
from pathlib import Path

import pytest

from trtops import errors
from trtops.logger import G_LOGGER
from trtops.system.masking import masked
from trtops.tracking.base import tracked
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Tag

# Put together here, lest a scanner take this file for a leak.
TOKENS = {
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub": "ghp_" + "a1B2" * 9,
    "GitHub, fine-grained": "github_pat_" + "11ABCDEFG0" * 3,
    "GitLab": "glpat-" + "abcDEF123_" * 2,
    "Slack": "xoxb-" + "123456789012-abcdefghijkl",
    "Hugging Face": "hf_" + "aBcDeFgHiJ" * 3,
    "OpenAI": "sk-" + "proj-abcdefghij1234567890",
    "Google": "AIza" + "SyA-1234567890abcdefghijklmnopqrstu",
    "NGC": "nvapi-" + "abcdefghij_1234567890",
    "Prefect": "pnu_" + "abcdefghij1234567890",
    "Databricks": "dapi" + "0123456789abcdef" * 2,
    "JWT": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0In0.s1gnature-of-it",
    "key": "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIE\nabc\n-----END RSA PRIVATE " + "KEY-----",
}


@pytest.mark.parametrize("service", TOKENS)
def test_service_tokens_are_masked(service: str) -> None:
    text = '{"before": 1, "t": "%s", "after": 2}'
    assert masked(text % TOKENS[service]) == text % "***"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql+psycopg://me:pa%20ss@db:5432/runs", "postgresql+psycopg://db:5432/runs"),
        ("postgresql://me:p@ss:word@db/runs, x", "postgresql://db/runs, x"),
        ("mysql://me:pa/ss@db/runs", "mysql://db/runs"),
        ("https://token@github.com/a/b.git", "https://github.com/a/b.git"),
        ('["http://a:b@c/d", "e@f"]', '["http://c/d", "e@f"]'),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer ***"),
        ('{"authorization": "Basic dXNlcjpwYXNz"}', '{"authorization": "Basic ***"}'),
        ("https://b/x?X-Amz-Signature=abc&X=1", "https://b/x?X-Amz-Signature=***&X=1"),
        ("https://b/x?a=1&sig=abc&access_token=def", "https://b/x?a=1&sig=***&access_token=***"),
        ("DefaultEndpointsProtocol=https;AccountKey=abc+/=;x", "DefaultEndpointsProtocol=https;AccountKey=***;x"),
    ],
)
def test_urls_headers_and_signatures_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000/#/experiments/1",
        '["http://a", "b@c"]',
        "fp16",
        f"/models/resnet@v2/model.onnx and {__file__}",
        "akia and task-of-the-day, risk-averse",
        "s3://bucket/key?versionId=3",
        '{"tactic": "sm80_xmma_gemm_f16f16", "seed": 100000}',
        "日本 \ud800",
        "",
    ],
)
def test_other_text_is_unchanged(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_TOKENS", "100000")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "models")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", __file__)

    assert masked(text) == text


def test_values_of_secret_variables_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter22")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "trtops:open sesame")
    monkeypatch.setenv("DATABASE", "postgresql://me:dragonfly@db/runs")

    masked_text = masked("xwJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEYx, hunter22; hunter222, open sesame, dragonfly")

    assert masked_text == "x***x, ***; hunter222, ***, ***"
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    assert masked("hunter22") == "hunter22"


def test_tracked_text_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "correct horse battery"
    monkeypatch.setenv("TEAM_PASSWORD", secret)
    text = f"postgres://me:{'x' * 9}@db says {secret} and {TOKENS['AWS']}"
    memory = MemoryTracker()

    with (
        pytest.raises(errors.ConfigError) as raised,
        tracked(memory, "m", "r", kind="build", tags={"first": text}) as run,
    ):
        run.log_params({"data": text, "nested": {"uri": text}})
        run.set_tags({"note": text, Tag.NOTE: text})
        run.log_text(text, "build.log")
        run.log_json({"said": [text]}, "spec.json")
        run.log_params({"data": text})  # the same again
        raise errors.ConfigError(text)

    info = memory.info(run.id)
    artifacts = memory._data(run.id).artifacts
    everything = f"{info.params}{info.tags}{artifacts}{raised.value}"
    assert secret not in everything and "x" * 9 not in everything and TOKENS["AWS"] not in everything
    assert info.params["data"] == info.tags["first"] == "postgres://db says *** and ***"
    assert info.tags[Tag.ERROR] == "ConfigError: postgres://db says *** and ***"


def test_log_lines_are_masked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    G_LOGGER.log_file = tmp_path / "log.txt"
    try:
        logging.getLogger("trtops.backend").warning("fetching %s", "https://me:secret@host/x")
        try:
            raise RuntimeError(TOKENS["GitLab"])
        except RuntimeError:
            logging.getLogger("trtops.backend").exception("failed")
    finally:
        G_LOGGER.log_file = None

    text = (tmp_path / "log.txt").read_text()
    assert "fetching https://host/x" in text and "RuntimeError: ***" in text and TOKENS["GitLab"] not in text
