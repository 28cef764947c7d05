"""Polygraphy's commands that need TensorRT, run with both tools: equal exit codes and lines.

Both run in this process, each in a folder of its own, in the order of the table.
"""

import gc
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli import test_polygraphy_commands as without_tensorrt
from tests.cli.polygraphy_commands import missing_lines, words
from tests.cli.tensorrt_commands import COMMANDS, ON_ONE_FILE, RANGE, SCRIPTS, output_lines, prepare
from trtops.cli.main import main
from trtops.logger import G_LOGGER

pytest.importorskip("polygraphy")

pytestmark = [pytest.mark.gpu, pytest.mark.parity, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

ERRORS = "an error has an exit code of its own, 3, where Polygraphy exits with 1 as if outputs differed"
OTHER_CODES: dict[str, tuple[int, str]] = {
    "run no_kernel.onnx --trt": (1, ERRORS),
    "run identity.onnx --trt --strongly-typed": (1, ERRORS),
}
"""Commands that exit with 3 here, with Polygraphy's exit code and the reason."""

AT_RANGE = f"run dynamic.onnx --trt --onnxrt {RANGE}"
OTHER_LINES: dict[str, str] = {
    r"debug (precision|reduce) .*\n(Finished |(PASSED|FAILED) \| Iteration).*": "other questions are asked, and fewer",
    rf"{re.escape(AT_RANGE)}\n.*": "random data of a dynamic input has the profile's opt shape, not 1 in each "
    "dimension",
}
"""Lines of Polygraphy's that are not said, or otherwise, with the reason: regular expressions of command and line."""


class Tool(NamedTuple):
    """A tool: its entry point in this process, the words that start it in another, and the name of its debug files."""

    main: Callable[[list[str]], Any]
    command: list[str]
    debug: str


def polygraphy_main(arguments: list[str]) -> int:
    """Polygraphy's entry point, with the exit codes of its process, and its log as it was before."""
    from polygraphy.logger import G_LOGGER as THEIRS
    from polygraphy.tools import main as their_main

    level = THEIRS.module_severity
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["polygraphy", *arguments])
            return int(their_main(arguments) or 0)
    except SystemExit as exc:
        return int(exc.code or 0)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        THEIRS.module_severity = level


TOOLS = {
    "polygraphy": Tool(polygraphy_main, [sys.executable, "polygraphy_tool.py"], "polygraphy_debug"),
    "trtops": Tool(main, [sys.executable, "-m", "trtops.cli"], "trtops_debug"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tool_folders = {}
    for tool in TOOLS:
        tool_folders[tool] = tmp_path_factory.mktemp(tool)
        prepare(tool_folders[tool], tool)
    # Checks are split at spaces, so that Polygraphy, which cannot be run with -m, is started by a script.
    (tool_folders["polygraphy"] / "polygraphy_tool.py").write_text(
        "from polygraphy.tools import main; raise SystemExit(main())"
    )
    return tool_folders


@pytest.fixture(autouse=True)
def messages(on_stdout, monkeypatch: pytest.MonkeyPatch):
    """Our messages are printed as on a terminal, and commands that are started find the checkout."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    severity = G_LOGGER.module_severity
    yield
    G_LOGGER.module_severity = severity


def carry_out(command: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command by a tool; returns its exit code and what it printed."""
    tool = TOOLS[name]
    capsys.readouterr()
    for script in SCRIPTS:
        sys.modules.pop(Path(script).stem, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code = tool.main(words(command, tool.command, tool.debug))
    gc.collect()
    shown = capsys.readouterr()
    return code, f"{shown.out}\n{shown.err}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tensorrt_command_behaves_like_polygraphys(command, folders, capsys):
    ours_in = folders["polygraphy" if command.startswith(ON_ONE_FILE) else "trtops"]
    their_code, theirs = carry_out(command, "polygraphy", folders["polygraphy"], capsys)
    code, ours = carry_out(command, "trtops", ours_in, capsys)

    if command in OTHER_CODES:
        assert (their_code, code) == (OTHER_CODES[command][0], 3)
        return
    transcript = f"\n--- Polygraphy ({their_code})\n{theirs[-4000:]}\n--- trtops ({code})\n{ours[-4000:]}"
    assert code == their_code, transcript
    missing = missing_lines(output_lines(command, theirs), output_lines(command, ours), ())
    assert [line for line in missing if not differs(command, line)] == [], transcript


def differs(command: str, line: str) -> bool:
    """Whether a line of a command's is a listed difference."""
    return any(re.fullmatch(pattern, f"{command}\n{line}") for pattern in OTHER_LINES)


def test_there_are_few_differences():
    tables = (OTHER_CODES, OTHER_LINES, without_tensorrt.OTHER_CODES, without_tensorrt.OTHER_LINES)

    assert sum(map(len, tables)) <= 10
    assert set(OTHER_CODES) <= set(COMMANDS)
