"""The page of usual mistakes, from the table that ``tests/cli/test_mistakes.py`` makes each of them by."""

from __future__ import annotations

from tests.mistakes import MISTAKES
from trtops.tables import markdown_table

HEAD = """# When something is wrong

An error is one message on standard error: it names the thing, what was found and what to do. It creates no run and no
experiment. Exit codes:

| exit code | meaning |
| --- | --- |
| 0 | good |
| 1 | bad: outputs differ, or a check failed. The run has the reasons |
| 2 | wrong usage: an unknown option or an invalid value |
| 3 | an error: a file that cannot be read, a store that does not answer, a library that is not there |
| 4 | `trtops gate` is undecided: the report says what would decide |
| 130 | interrupted |
| 141 | whoever read the output went away before there was a verdict |

`trtops doctor` looks at store, servers, workers, GPU and releases, and says what to do.

## Fifteen usual ones

A test makes each of these in both ways. What is quoted stands in the message.
"""


def text() -> str:
    """The page."""
    header = ("mistake", "says", "exit code", "`trtops ...`", "Python raises")
    rows = (
        (case.title, f"`{case.says}`", str(case.code), f"`{case.command}`", f"`{case.error or '-'}`")
        for case in MISTAKES
    )
    return f"{HEAD}\n{markdown_table(header, rows)}\n"
