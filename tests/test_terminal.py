"""Progress bars and pages: on terminals, and in files."""

import io
import re
import sys

import pytest

from trtops.tables import table
from trtops.terminal import print_page, progress

PAGE = "# title\n\n\n\n| a | layer |\n|---|---|\n| 1 | x\\|y |\n| 22 | z |\n\nend\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    for target in (terminal, file):
        monkeypatch.setattr(sys, "stderr", target)
        with progress("Measuring", "layers") as update:
            update(2, 4)
            print("a line of the log", file=sys.stderr)
            update(4)

    plain = re.sub(r"\x1b\[[0-9;?]*[a-z]", "", terminal.getvalue(), flags=re.IGNORECASE)
    assert re.search(r"Measuring ━+ 4/4 0:00:00 layers", plain)
    assert re.search(r"(^|\n|\x1b\[2K)a line of the log\n", terminal.getvalue())
    assert file.getvalue() == "a line of the log\n"


def test_pages_are_rendered_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    for target in (terminal, file):
        monkeypatch.setattr(sys, "stdout", target)
        print_page(PAGE)

    assert file.getvalue() == "# title\n\n| a | layer |\n|---|---|\n| 1 | x\\|y |\n| 22 | z |\n\nend\n"
    assert "title" in terminal.getvalue() and "x|y" in terminal.getvalue()


def test_columns_of_numbers_are_aligned_right() -> None:
    assert table(["a", "n"], [["x", "1"], ["y", "22"]]) == "a   n\n-  --\nx   1\ny  22"
