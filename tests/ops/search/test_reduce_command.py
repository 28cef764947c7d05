"""External commands as checks of sub-models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import models
from tests.waiting import FOR_EVER, commands_time_out_when, is_gone, until
from trtops import errors
from trtops.ops.evaluation.command import CommandCheck
from trtops.ops.search.reduce import reduce
from trtops.ops.search.reduce_search import ReduceConfig

PYTHON = sys.executable


def chain() -> models.Case:
    proto = models.model(
        "(float[4] x) => (float[4] y) { [a] t0 = Relu(x)\n [b] t1 = Sigmoid(t0)\n [c] t2 = Tanh(t1)\n [d] y = Neg(t2) }"
    )
    return models.Case(proto, {"x": models.random(4)})


def command(code: str, **options: object) -> CommandCheck:
    return CommandCheck(command=(PYTHON, "-c", code, "{model}"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "code", "printed", "verdict"),
    [
        ({}, 0, "", "pass"),
        ({}, 1, "", "fail"),
        ({}, -11, "", "fail"),
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


@pytest.mark.parity
@pytest.mark.parametrize("code", [0, 1, 2, -9])
@pytest.mark.parametrize("printed", ["", "it FAILED"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fail_codes": (1,)},
        {"ignore_fail_codes": (1,)},
        {"fail_regex": ("FAILED",)},
        {"fail_regex": ("FAILED",), "fail_codes": (1,)},
    ],
)
def test_what_fails_is_what_fails_for_polygraphy(code: int, printed: str, options: dict[str, tuple], monkeypatch):
    import re

    from polygraphy.tools.debug.subtool import iterative_debug_args as theirs

    args = theirs.CheckCmdArgs()
    args.check, args.show_output, args.hide_fail_output = ["x"], False, True
    args.fail_codes = list(options.get("fail_codes", ())) or None
    args.ignore_fail_codes = list(options.get("ignore_fail_codes", ())) or None
    args.fail_regexes = [re.compile(r) for r in options.get("fail_regex", ())] or None
    done = subprocess.CompletedProcess(["x"], code, printed.encode(), b"")
    monkeypatch.setattr(theirs.sp, "run", lambda *_, **__: done)

    passed = args.run_check("model.onnx")

    assert (command("", **options).evaluate(code, printed).verdict != "fail") == passed


def test_a_reduction_by_a_command_that_looks_at_the_model(tmp_path: Path):
    look = "import sys, onnx; sys.exit(7 if 'Tanh' in {n.op_type for n in onnx.load(sys.argv[1]).graph.node} else 0)"
    case = chain()

    result = reduce(case.proto, command(look, fail_codes=(7,)), ReduceConfig(width=2), feeds=[case.feed])

    assert [node.name for node in result.culprits[0].nodes] == ["c"]
    assert result.culprits[0].detail.startswith("exit code 7")


@pytest.mark.parity
def test_polygraphy_takes_the_inputs_and_the_golden_outputs_that_a_command_is_given():
    case = chain()
    tool = str(Path(PYTHON).with_name("polygraphy"))
    check = CommandCheck(
        command=(tool, "run", "{model}", "--onnxrt", "--load-inputs", "{inputs}", "--load-outputs", "{golden}")
    )

    assert reduce(case.proto, check, feeds=[case.feed]).verdict == "good"


def test_a_command_may_read_the_model_from_a_fixed_place_where_nothing_is_left_behind(tmp_path: Path):
    artifact = tmp_path / "polygraphy_debug.onnx"
    code = f"import onnx, sys; sys.exit(any(n.name == 'b' for n in onnx.load({str(artifact)!r}).graph.node))"
    check = CommandCheck(command=(PYTHON, "-c", code), artifact=str(artifact))
    case = chain()

    result = reduce(case.proto, check, feeds=[case.feed])

    assert [node.name for node in result.culprits[0].nodes] == ["b"]
    assert not artifact.exists()
    with pytest.raises(errors.ConfigError, match="width"):
        reduce(case.proto, check, ReduceConfig(width=2), feeds=[case.feed])


def leaving_a_child(folder: Path, then: str) -> tuple[str, Path]:
    """A program that starts a child which does not end by itself, and the file that the child's id is put into."""
    pid = folder / "pid"
    child = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({FOR_EVER})'])"
    return f"import subprocess, sys, time; open({str(pid)!r}, 'w').write(str({child}.pid)); {then}", pid


def test_a_command_that_hangs_is_ended_with_all_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code, pid = leaving_a_child(tmp_path, then=f"time.sleep({FOR_EVER})")
    commands_time_out_when(monkeypatch, lambda: pid.exists() and pid.read_text())
    case = chain()

    result = reduce(case.proto, command(code, timeout_seconds=1.5), feeds=[case.feed])

    assert result.verdict == "good" and "no answer within 1.5 s" in result.detail
    until(lambda: is_gone(int(pid.read_text())))


def test_a_child_that_outlives_its_command_is_ended_too_and_does_not_hold_up_the_answer(tmp_path: Path):
    code, pid = leaving_a_child(tmp_path, then="print('bye')")
    case = chain()

    result = reduce(case.proto, command(code), feeds=[case.feed])

    assert result.verdict == "good"
    until(lambda: is_gone(int(pid.read_text())))


def test_running_out_of_time_may_be_the_failure_that_is_meant():
    code = f"import sys, time; time.sleep({FOR_EVER} if b'Tanh' in open(sys.argv[1], 'rb').read() else 0)"
    check = command(code, timeout_seconds=1, timeout_fails=True)
    case = chain()

    result = reduce(case.proto, check, ReduceConfig(max_checks=3), feeds=[case.feed])

    assert result.verdict == "bad"


def test_what_a_command_prints_is_kept_for_people_also_where_it_is_no_text():
    case = chain()
    code = (
        "import sys; sys.stdout.buffer.write(b'\\xff bad kernel'); sys.stderr.write('!'); "
        "sys.exit(b'Tanh' in open(sys.argv[1], 'rb').read())"
    )

    result = reduce(case.proto, command(code), ReduceConfig(max_checks=1), feeds=[case.feed])

    assert "bad kernel" in result.detail and "!" in result.detail


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": ()}, "empty"),
        ({"command": ("polygraphy", "run")}, "has no place for the model"),
        ({"command": ("x", "{model}"), "fail_codes": (1,), "ignore_fail_codes": (2,)}, "not both"),
        ({"command": ("x", "{model}"), "fail_regex": ("(",)}, "no regular expression"),
    ],
)
def test_commands_that_cannot_be_meant_are_refused(options: dict[str, object], message: str):
    with pytest.raises(errors.ConfigError, match=message):
        CommandCheck(**options)  # type: ignore[arg-type]


def test_a_program_that_does_not_exist_is_named_and_is_no_verdict():
    case = chain()

    with pytest.raises(errors.ConfigError, match="no-such-program"):
        reduce(case.proto, CommandCheck(command=("no-such-program", "{model}")), feeds=[case.feed])


def test_a_command_is_a_record_and_survives_json():
    check = command("x", fail_codes=(3,), timeout_seconds=5.0)

    assert CommandCheck.from_json(check.to_json()) == check


def test_a_check_that_cannot_work_is_told_from_a_model_that_fails(tmp_path: Path) -> None:
    script = tmp_path / "check.py"
    script.write_text("import a_module_that_is_not_there\n")
    check = CommandCheck(command=(sys.executable, str(script), "{model}"))
    with pytest.raises(errors.ConfigError, match=r"(?s)The check is broken.*a_module_that_is_not_there"):
        reduce(models.transformer().proto, check)


@pytest.mark.parametrize("op", ["Identity", "Relu"])
def test_a_model_of_one_node_that_fails_is_no_broken_check(tmp_path: Path, op: str) -> None:
    script = tmp_path / "check.py"
    script.write_text(
        f"import sys, onnx\nsys.exit(any(n.op_type == {op!r} for n in onnx.load(sys.argv[1]).graph.node))\n"
    )
    proto = models.model(f"(float[2] x) => (float[2] y) {{ y = {op}(x) }}")
    result = reduce(proto, CommandCheck(command=(sys.executable, str(script), "{model}")))
    assert [len(culprit.nodes) for culprit in result.culprits] == [1]
