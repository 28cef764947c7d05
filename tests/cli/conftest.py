"""A folder with models, and the log on standard output."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models."""
    monkeypatch.chdir(tmp_path)
    for make in (models.identity, models.conv_net, models.transformer, models.multi_output, models.foldable):
        make().write(tmp_path)
    return tmp_path


@pytest.fixture
def on_stdout() -> Iterator[None]:
    """The log's lines for people are printed to standard output, where a test runner takes all messages."""

    class OnStdout(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "on_stdout", False):
                print(record.getMessage())

    handler = OnStdout()
    logging.getLogger("trtops").addHandler(handler)
    yield
    logging.getLogger("trtops").removeHandler(handler)
