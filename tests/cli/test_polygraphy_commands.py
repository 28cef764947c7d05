"""Polygraphy's commands with the name changed: its exit codes, and its lines where people look for them.

What Polygraphy says was recorded by :mod:`tests.cli.polygraphy_commands`; ours are run here, in this process.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.polygraphy_commands import TABLE, kept_lines, missing_lines, prepare, words
from trtops.cli.main import main

SAID = json.loads(TABLE.read_text())["commands"]

# Wrong usage is 2 throughout, as argparse has it; Polygraphy exits with 1, or with 0 if there is nothing to run.
WRONG_USAGE = {"run no_such_option.onnx --no-such-option", "run identity.onnx"}

OTHER_LINES: dict[str, str] = {
    r"mean=inf.*": "quantiles between equal infinities are infinite, not NaN",
    r"(PASSED|FAILED) \| Iteration \d+ \|": "reduce asks other questions, and fewer",
    r"Finished \d+ iteration\(s\) \| Passed: \d+/[3-9] ": "likewise",
}
"""Lines of Polygraphy's that are not said, or otherwise, with the reason: regular expressions."""


OTHER_CODES = {"check lint empty.onnx": 1}
"""Exit codes unlike Polygraphy's: the output of this model has no node, so that nothing loads it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    commands_folder = tmp_path_factory.mktemp("commands")
    prepare(commands_folder)
    return commands_folder


@pytest.mark.parametrize("command", SAID)
def test_a_command_behaves_like_polygraphys(command, folder, monkeypatch, capsys, on_stdout):
    monkeypatch.chdir(folder)
    expected = SAID[command]

    code = main(words(command, [sys.executable, "-m", "trtops.cli"], "trtops_debug"))

    printed = kept_lines(command, capsys.readouterr().out)
    if command in WRONG_USAGE:
        assert code == 2
        return
    if command in OTHER_CODES:
        assert code == OTHER_CODES[command] != expected["exit"]
        return
    assert code == expected["exit"]
    assert missing_lines(expected["lines"], printed, OTHER_LINES) == []
