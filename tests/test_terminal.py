"""Progress bars: on terminals only, and below the lines of the log."""

from __future__ import annotations

import io
import logging
import re
import sys

import pytest

from trtops.terminal import progress


def test_progress_is_shown_on_terminals_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for target in (terminal, file):
        with progress("Measuring", "layers", file=target) as bar:
            bar.update(2, 4)
            bar.update(4, 4)

    last = re.sub(r"\x1b\[[0-9;?]*[a-z]", "", terminal.getvalue(), flags=re.IGNORECASE).rstrip().splitlines()[-1]
    assert re.search(r"Measuring ━+ 4/4 0:00:00 layers", last)
    assert file.getvalue() == ""


def test_log_lines_appear_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    logging.getLogger("trtops.test").addHandler(handler)
    try:
        with progress("Measuring", "layers") as bar:
            bar.update(2, 4)
            logging.getLogger("trtops.test").warning("a line of the log")
    finally:
        logging.getLogger("trtops.test").removeHandler(handler)

    assert handler.stream is terminal
    assert re.search(r"(^|\n|\x1b\[2K)a line of the log\n", terminal.getvalue())
