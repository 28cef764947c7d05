"""G_LOGGER: what is shown, when, and how it looks."""

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtops import errors
from trtops.logger import G_LOGGER, LogMode

SEVERITIES = [
    "ULTRA_VERBOSE", "SUPER_VERBOSE", "EXTRA_VERBOSE", "VERBOSE", "INFO", "START", "FINISH", "WARNING", "ERROR",
    "CRITICAL",
]  # fmt: skip


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    logger = logging.getLogger("trtops")
    handlers, severity = list(logger.handlers), G_LOGGER.module_severity
    settings = {name: getattr(G_LOGGER, name) for name in ("colors", "letter", "timestamp", "line_info")}
    yield
    G_LOGGER.log_file = None
    G_LOGGER.module_severity = severity
    for name, value in settings.items():
        setattr(G_LOGGER, name, value)
    logger.handlers[:] = handlers


def run(code: str) -> tuple[list[str], list[str]]:
    """Run a script that has G_LOGGER; returns its standard output's and standard error's lines."""
    done = subprocess.run(
        [sys.executable, "-c", f"from trtops.logger import G_LOGGER\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_severities_are_logging_levels() -> None:
    levels = [getattr(G_LOGGER, name) for name in SEVERITIES]

    assert levels == sorted(set(levels)) and levels[0] > logging.NOTSET
    assert (G_LOGGER.VERBOSE, G_LOGGER.INFO, G_LOGGER.CRITICAL) == (logging.DEBUG, logging.INFO, logging.CRITICAL)
    assert logging.getLevelName(G_LOGGER.EXTRA_VERBOSE) == "EXTRA_VERBOSE"


def test_scripts_see_info_on_stdout() -> None:
    out, err = run("G_LOGGER.verbose('no'); G_LOGGER.info('yes\\ntwo lines'); G_LOGGER.print_line('said', 30)")
    assert (out, err) == (["[I] yes", "    two lines", "[W] said"], [])

    out, err = run("import contextlib\nwith contextlib.suppress(Exception): G_LOGGER.critical('lost')")
    assert (out, err) == ([], ["[!] lost"])


def test_package_messages_respect_severity() -> None:
    _, err = run(
        """
import logging
from trtops import func
log = logging.getLogger("trtops.backend.onnx.loader")
log.info("quiet: not needed")
with G_LOGGER.verbosity(G_LOGGER.VERBOSE):
    log.debug("shown")
log.debug("not any more")
with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
    log.error("hushed")
log.warning("shown again")
"""
    )

    assert err == ["[V] shown", "[W] shown again"]


def test_configured_programs_get_no_handler() -> None:
    _, err = run("import logging; logging.basicConfig(level=0, format='mine: %(message)s'); G_LOGGER.info('once')")

    assert err == ["mine: once"]


def test_importing_the_package_leaves_logging_alone() -> None:
    code = "import logging, trtops.backend.onnx; l = logging.getLogger('trtops'); print(l.level, l.handlers)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "0 []\n"


def test_severities_by_path_apply_below(caplog: pytest.LogCaptureFixture) -> None:
    with G_LOGGER.verbosity(
        {"": G_LOGGER.ERROR, "backend/trt": G_LOGGER.VERBOSE, "backend/onnx/loader.py": G_LOGGER.INFO}
    ):
        assert G_LOGGER.module_severity.get() == G_LOGGER.module_severity.get("comparator") == G_LOGGER.ERROR
        assert G_LOGGER.module_severity.get("backend/trt/runner.py") == G_LOGGER.VERBOSE
        logging.getLogger("trtops.backend.trt.infer.runner").debug("one")
        logging.getLogger("trtops.backend.onnx.loader").debug("no")
        logging.getLogger("trtops.backend.onnx.loader").info("two")
        logging.getLogger("trtops.comparator").warning("no")

    assert [record.message for record in caplog.records] == ["one", "two"]
    assert logging.getLogger("trtops.backend.trt").level == logging.NOTSET


def test_callables_are_only_called_if_wanted(caplog: pytest.LogCaptureFixture) -> None:
    def costly() -> str:
        calls.append(1)
        return "made"

    calls: list[int] = []
    G_LOGGER.module_severity = G_LOGGER.INFO
    G_LOGGER.verbose(costly)
    assert calls == []
    G_LOGGER.info(costly)
    assert calls == [1] and caplog.messages == ["made"]


def test_the_same_message_can_be_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        G_LOGGER.warning("only once, please", mode=LogMode.ONCE)

    assert caplog.messages == ["only once, please"]


def test_indentation_is_per_thread(caplog: pytest.LogCaptureFixture) -> None:
    with G_LOGGER.indent(), G_LOGGER.indent(2):
        G_LOGGER.error("deep\ndeeper")
        thread = threading.Thread(target=lambda: G_LOGGER.error("flat"))
        thread.start()
        thread.join()
    G_LOGGER.error("back")

    assert caplog.messages == [" " * 12 + "deep\n" + " " * 12 + "deeper", "flat", "back"]


def test_lines_have_the_requested_parts(tmp_path: Path) -> None:
    G_LOGGER.log_file = tmp_path / "logs" / "run.log"
    G_LOGGER.timestamp = G_LOGGER.line_info = True
    G_LOGGER.warning("with all")
    G_LOGGER.timestamp = G_LOGGER.line_info = G_LOGGER.letter = False
    G_LOGGER.warning("bare")
    path = G_LOGGER.log_file
    G_LOGGER.log_file = None
    G_LOGGER.warning("not in the file")

    lines = Path(str(path)).read_text().splitlines()
    assert re.fullmatch(r"\[W\] \(\d\d:\d\d:\d\d\) \[test_logger\.py:\d+\] with all", lines[0])
    assert lines[1:] == ["bare"]


def test_failing_callables_raise_unless_allowed(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        G_LOGGER.info(lambda: 1 / 0)
    with G_LOGGER.verbosity(G_LOGGER.VERBOSE):
        G_LOGGER.verbose(lambda: 1 / 0)

    assert caplog.messages == ["<Error while logging this message: division by zero>"]


def test_critical_logs_and_raises(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(errors.TrtopsError, match="stop"):
        G_LOGGER.critical("stop")
    with pytest.raises(KeyError):
        G_LOGGER.critical("stop", KeyError)

    assert [record.levelno for record in caplog.records] == [G_LOGGER.CRITICAL] * 2


def test_other_loggers_have_their_own_settings() -> None:
    out, err = run(
        """
from trtops.logger import Logger
other = Logger(severity={"": Logger.WARNING}, letter=False)
for logger in (other, G_LOGGER):
    logger.info("info")
    logger.warning("warning")
other.module_severity = Logger.INFO
other.info("now")
G_LOGGER.module_severity = Logger.ERROR
other.info("still")
G_LOGGER.info("no")
"""
    )
    assert (out, err) == (["warning", "[I] info", "[W] warning", "now", "still"], [])


def test_callbacks_get_severities() -> None:
    severities: list[int] = []
    G_LOGGER.register_callback(lambda severity: severities.append(severity.get()))
    with G_LOGGER.verbosity(G_LOGGER.ERROR):
        pass
    G_LOGGER.module_severity = {"": G_LOGGER.VERBOSE, "backend/trt": G_LOGGER.INFO}
    assert severities == [logging.INFO, logging.ERROR, logging.INFO, logging.DEBUG]
    assert G_LOGGER.module_severity.get("backend/trt/loader.py") == logging.INFO
    G_LOGGER.logger_callbacks.clear()
