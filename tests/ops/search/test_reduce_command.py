"""External commands as checks of sub-models."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import models
from tests.waiting import FOR_EVER, commands_time_out_when, is_gone, until
from trtops import errors, reduce
from trtops.ops.search import command as command_checks
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.reduce import ReduceConfig, ReduceResult
from trtops.system import worker

PYTHON = sys.executable


def command(code: str, **options: object) -> CommandCheck:
    return CommandCheck(command=(PYTHON, "-c", code, "{model}"), **options)  # type: ignore[arg-type]


def reduced(check: CommandCheck, **options: object) -> ReduceResult:
    """Reduce a chain of four nodes."""
    chain = models.model(
        "(float[4] x) => (float[4] y) { [a] t = Relu(x) [b] u = Sigmoid(t) [c] v = Tanh(u) [d] y = Neg(v) }"
    )
    return reduce(chain, check, ReduceConfig(**options), data=[{"x": models.random(4)}])


TRACEBACK = 'Traceback (most recent call last):\n  File "c.py", line 3, in <module>\n    f()\n    ^^^\n'


@pytest.mark.parametrize(
    ("options", "code", "printed", "verdict"),
    [
        ({}, 0, "", "pass"),
        ({}, 1, "", "fail"),
        ({}, -11, "", "fail"),
        ({}, 134, "", "fail"),
        ({}, 1, f"{TRACEBACK}AssertionError: x", "fail"),
        ({}, 1, f"{TRACEBACK}onnxruntime.capi.onnxruntime_pybind11_state.Fail: x", "fail"),
        ({}, 1, f"{TRACEBACK}Mismatch", "fail"),  # an exception of the script's own
        ({}, 1, f"{TRACEBACK}RuntimeError: x\nFAILED: the outputs differ", "fail"),  # one that the script has caught
        ({}, 3, f"{TRACEBACK}RuntimeError: x", "fail"),
        ({}, 1, "model.mlir:1: error: x", "fail"),
        ({"fail_codes": (1,)}, 1, f"{TRACEBACK}RuntimeError: x", "fail"),
        ({"fail_regex": ("RuntimeError",)}, 1, f"{TRACEBACK}RuntimeError: x", "fail"),
        ({"fail_codes": (127,)}, 127, "", "fail"),
        ({"fail_codes": (3,)}, 3, "", "fail"),
        ({"fail_codes": (3,)}, 1, "", "error"),
        ({"fail_codes": (3,)}, 0, "", "pass"),
        ({"ignore_fail_codes": (2,)}, 2, "", "pass"),
        ({"ignore_fail_codes": (2,)}, 1, "", "fail"),
        ({"fail_regex": ("FAILED", "Diff.*high")}, 1, "Difference too high", "fail"),
        ({"fail_regex": ("FAILED",)}, 0, "it FAILED", "fail"),
        ({"fail_regex": ("FAILED",)}, 1, "cannot allocate", "error"),
        ({"fail_regex": ("FAILED",), "fail_codes": (1,)}, 2, "FAILED", "error"),
        ({"fail_regex": ("FAILED",), "fail_codes": (1,)}, 1, "something else", "error"),
        ({"fail_regex": ("FAILED",), "ignore_fail_codes": (1,)}, 1, "FAILED", "pass"),
    ],
)
def test_only_the_failure_that_is_meant_counts(options: dict[str, object], code: int, printed: str, verdict: str):
    assert command("", **options).evaluate(code, printed).verdict == verdict


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (126, ""),
        (127, ""),
        (-9, ""),
        (137, ""),
        (1, f"a\n{TRACEBACK}\nDuring handling of it:\n\n{TRACEBACK}RuntimeError: no table\n"),
        (1, f"{TRACEBACK}KeyError: 'y'"),
        (1, "  File \"c.py\", line 1\n    (\n    ^\nSyntaxError: '(' was never closed"),
        (1, "/usr/bin/python: No module named x"),
        (2, "python: can't open file '/x.py': [Errno 2] No such file or directory"),
        (2, "usage: c.py\nc.py: error: unrecognized arguments: --x"),
        (2, "trtops run: unknown option --onxrt.\nTry: trtops run -h"),
    ],
)
def test_failures_of_the_command_itself_end_the_search(code: int, printed: str):
    with pytest.raises(errors.ScriptError) as failure:
        command("").evaluate(code, printed)
    assert f"exit code {code}:\n{printed.strip()}\nThis says nothing" in str(failure.value)


@pytest.mark.parity
def test_the_same_fails_as_for_polygraphy(monkeypatch: pytest.MonkeyPatch):
    from polygraphy.tools.debug.subtool import iterative_debug_args as theirs

    args = theirs.CheckCmdArgs()
    args.check, args.show_output, args.hide_fail_output = ["x"], False, True
    for fail, ignored, regex, code, printed in itertools.product(
        ((), (1,)), ((), (1,)), ((), ("FAILED",)), (0, 1, 2, -11), ("", "it FAILED")
    ):
        if fail and ignored:
            continue
        args.fail_codes, args.ignore_fail_codes = list(fail) or None, list(ignored) or None
        args.fail_regexes = [re.compile(pattern) for pattern in regex] or None
        done = subprocess.CompletedProcess(["x"], code, printed.encode(), b"")
        monkeypatch.setattr(theirs.sp, "run", lambda *_, done=done, **__: done)
        ours = command("", fail_codes=fail, ignore_fail_codes=ignored, fail_regex=regex).evaluate(code, printed)
        assert (ours.verdict != "fail") == args.run_check("model.onnx"), (fail, ignored, regex, code, printed)


@pytest.mark.parity
def test_polygraphy_reads_the_inputs_and_golden_outputs():
    tool = str(Path(PYTHON).with_name("polygraphy"))
    words = (tool, "run", "{model}", "--onnxrt", "--load-inputs", "{inputs}", "--load-outputs", "{golden}")
    assert reduced(CommandCheck(command=words)).verdict == "good"


def test_commands_read_the_model_or_a_fixed_file(tmp_path: Path):
    code = "import onnx, sys; sys.exit(7 * any(n.name == 'b' for n in onnx.load(sys.argv[1]).graph.node))"
    fixed = str(tmp_path / "polygraphy_debug.onnx")
    for check in (
        command(code, fail_codes=(7,)),
        CommandCheck(command=(PYTHON, "-c", code, fixed), artifact=fixed, fail_codes=(7,)),
    ):
        culprit = reduced(check).culprit
        assert [node.name for node in culprit.nodes] == ["b"] and culprit.detail.startswith("exit code 7")
    assert not Path(fixed).exists()


@pytest.mark.parametrize(("then", "limit"), [(f"time.sleep({FOR_EVER})", 1.5), ("print('bye')", None)])
def test_children_of_a_command_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, limit: float | None
):
    pid = tmp_path / "pid"
    child = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({FOR_EVER})'])"
    code = f"import subprocess, sys, time; open({str(pid)!r}, 'w').write(str({child}.pid)); {then}"
    if limit:
        commands_time_out_when(monkeypatch, lambda: pid.exists() and pid.read_text())

    result = reduced(command(code, timeout_seconds=limit))

    assert result.verdict == "good" and ("no answer within 1.5 s" in result.detail) == (limit is not None)
    until(lambda: is_gone(int(pid.read_text())))


def test_commands_of_trtops_are_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, script, pid = models.identity().write(tmp_path), tmp_path / "data.py", tmp_path / "pid"
    tool, start = (
        str(Path(PYTHON).with_name("trtops")),
        "import os, numpy, subprocess, sys, time\ndef load_data():\n    ",
    )
    child = f"open('pid', 'w').write(str(subprocess.Popen(['sleep', '{FOR_EVER}']).pid))"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "_idle", idle := {})

    def run(statement: str, limit: float | None = None) -> tuple[int | None, str]:
        script.write_text(f"{start}{statement}\n    return [{{'x': numpy.zeros((1, 1, 2, 2), 'f')}}]\n")
        return command_checks.run_group([tool, "run", str(model), "--onnxrt", "--data-loader-script", "data.py"], limit)

    monkeypatch.setenv("A_MARK", "of this check")
    code, printed = run(
        f"{child}; print(os.environ['A_MARK'], sys.argv[1], 'trtops.comparator.compare' in sys.modules)"
    )
    assert code == 0 and "of this check run True\n" in printed and "Command: trtops run" in printed
    until(lambda: is_gone(int(pid.read_text())))
    assert run("time.sleep(60)", 0.5)[0] is None
    code, printed = run("os.kill(os.getpid(), 11)")
    assert code == 3 and "died of signal 11" in printed
    assert run("sys.exit(7)")[0] == 7
    assert [child.starts for children in idle.values() for child in children] == [1]


def test_a_timeout_can_be_the_failure():
    code = f"import sys, time; time.sleep({FOR_EVER} if b'Tanh' in open(sys.argv[1], 'rb').read() else 0)"
    assert reduced(command(code, timeout_seconds=1, timeout_fails=True), max_checks=3).verdict == "bad"


def test_invalid_commands_are_refused():
    for options, message in (
        ({"command": ()}, "empty"),
        ({"command": ("polygraphy", "run")}, "has no place for the model"),
        ({"command": ("x", "{model}"), "fail_codes": (1,), "ignore_fail_codes": (2,)}, "not both"),
        ({"command": ("x", "{model}"), "fail_regex": ("(",)}, "regular expression"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            CommandCheck(**options)  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="no-such-program"):
        reduced(CommandCheck(command=("no-such-program", "{model}")))


def test_a_broken_check_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = tmp_path / "c.py"
    for printed, on_parts in (
        ("of a script", ""),
        ("of some parts", "if b'Tanh' not in open(sys.argv[1], 'rb').read(): "),
    ):
        script.write_text(
            f"import sys\nprint('before')\n{on_parts}raise RuntimeError({printed!r})\nsys.exit(1)".lstrip()
        )
        with pytest.raises(errors.ScriptError, match=f'(?s)before.*{script}", line 3.*RuntimeError: {printed}'):
            reduced(CommandCheck(command=(PYTHON, str(script), "{model}")))
    reduced(command("import sys; sys.exit('wrong path')"))
    assert "it may be broken" in caplog.text and "wrong path" in caplog.text
