"""Progress bars and pages: on terminals, and in files."""

import io
import re
import sys

import pytest

from trtops.tables import table
from trtops.terminal import print_line, print_page, progress, show_status

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


def test_narrow_tables_leave_out_columns_and_cut_no_number() -> None:
    header, rows = ("run", "kind", "a long metric", "name"), [["0ce83184", "build", "12.3456789", "FP32 " + "x" * 60]]
    lines = table(header, rows, 50, expendable=["kind"]).split("\n")
    assert lines[0].split() == ["run", "a", "long", "metric", "name"] and "12.3456789" in lines[2]
    assert max(map(len, lines)) <= 50 and "…" in lines[2] and lines[3] == "Not shown here: kind."
    lines = table(header, rows, 24).split("\n")
    assert "0ce83184" in lines[2] and max(map(len, lines[:3])) <= 24
    assert lines[3] == "Not shown here: a long metric, name."


def test_tables_on_narrow_terminals_lose_columns_and_no_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    names = ("output", "verdict", "max abs", "a long name", "another one")
    page = "\n".join(
        f"| {' | '.join(row)} |" for row in (names, ["---"] * 5, ("y", "good", "4.768e-07", "0.1", "1\\|2"))
    )
    print_page(f"# title\n\n{page}\n\nend\n")
    shown = " ".join(terminal.getvalue().split())
    assert "4.768e-07" in shown and "…" not in shown
    assert "Not shown here: a long name, another one." in shown and shown.endswith("end")


def test_a_status_is_replaced_by_other_output(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show_status("The command has taken 3 s so far")
    show_status("The command has taken 4 s so far")
    print_line("done", terminal)
    assert terminal.getvalue().split("\r\x1b[K")[1:] == [
        "The command has taken 3 s so far", "The command has taken 4 s so far", "done\n",
    ]  # fmt: skip
