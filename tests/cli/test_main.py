"""The command itself: help, colours, what is imported, and what an interruption leaves behind."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import models
from tests.waiting import until
from trtops.cli import jobs, registry
from trtops.cli.commands import run
from trtops.cli.main import main
from trtops.logger import G_LOGGER

TRTOPS = [sys.executable, "-m", "trtops.cli"]


def process(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash, where ``trtops`` is the command, run in a process of its own."""
    source = str(Path(__file__).parents[2])
    words = ["bash", "-c", f'trtops() {{ {shlex.join(TRTOPS)} "$@"; }}; {line}']
    return subprocess.run(words, env={**os.environ, "PYTHONPATH": source, **environment}, capture_output=True)


@pytest.mark.parametrize("path", [*registry.COMMANDS, *registry.FOLDERS], ids=" ".join)
def test_help_shows_usage_and_examples(path, capsys):
    assert main([*path, "-h"]) == 0

    text = capsys.readouterr().out
    assert text.startswith(f"usage: trtops {' '.join(path)}")
    assert f"  trtops {path[0]}" in text
    assert "\x1b" not in text and "(default: )" not in text

    assert main([*path, "--help"]) == 0
    full = capsys.readouterr().out
    more_options = re.search(r"\n(\d+) more options: .* --help\n", text)
    assert full.count("\n") > 1.5 * text.count("\n") if more_options else full == text


def test_no_words_list_the_commands(capsys):
    for path in registry.NOT_SUPPORTED:
        assert main([*path, "model.onnx", "-o", "other.onnx"]) == 2
        output = capsys.readouterr().err
        assert "is not supported" in output and ("`trtops" in output or "Polygraphy" in output)
    assert main([]) == 2
    assert "inspect" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert re.fullmatch(r"trtops \| Version: \d+\.\d+\.\d+ \| Path: \['.*trtops'\]\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "line",
    [
        "surgeon -v sanitize identity.onnx -o s.onnx",
        "surgeon --log-file log.txt --verbosity VERBOSE sanitize identity.onnx -o s.onnx",
        "surgeon --log-format timestamp line-info sanitize -q identity.onnx -o s.onnx",
        "inspect --silent model identity.onnx",
        "debug -qq --log-file=log.txt repeat --until 1 --check true",
    ],
)
def test_log_options_before_the_last_word(line, folder, capsys):
    assert main(shlex.split(line)) == 0
    assert ("--silent" in line) == (capsys.readouterr().out == "")
    assert ("log.txt" in line) == Path("log.txt").exists()
    assert main(["surgeon", "-v"]) == 2
    assert main(["surgeon", "--log-file", "x", "sanitise"]) == 2
    assert "sanitize" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["-h", "run -h", "inspect model -h", "team up -h", "run identity.onnx --onnxrt"])
def test_slow_packages_are_not_imported(line, folder):
    heavy = {"mlflow", "prefect", "pandas", "matplotlib", "tensorrt"}
    heavy |= {"numpy", "onnx", "onnxruntime", "google.protobuf"} if "-h" in line else set()
    code = f"import sys; from trtops.cli.main import main; assert not main({line.split()}); "
    code += f"print({heavy} & sys.modules.keys())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


def test_verbosity_is_restored(folder, monkeypatch):
    seen = {}
    monkeypatch.setattr(run, "say_result", lambda result, store: seen.update(G_LOGGER.module_severity))
    before = dict(G_LOGGER.module_severity)

    assert main(shlex.split("run identity.onnx --onnxrt --verbosity WARNING backend/onnx:VERBOSE")) == 0
    assert seen == {"": G_LOGGER.WARNING, "backend/onnx": G_LOGGER.VERBOSE}
    assert dict(G_LOGGER.module_severity) == before


def test_log_file_has_the_requested_format(folder):
    assert main(shlex.split("run identity.onnx --onnxrt --log-file log.txt --log-format timestamp line-info")) == 0
    assert re.match(r"\[I\] \(\d\d:\d\d:\d\d\) \[\w+\.py:\d+\] ", (folder / "log.txt").read_text())


def _alive(mark: str) -> list[int]:
    """Processes that were started with a mark in their environment."""
    pids = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("TRTOPS_TEST_MARK") == mark:
                pids.append(process.pid)
    return pids


INTERRUPTED = {
    "repeat": "debug repeat --until 9 --artifacts model.txt --check {python} {sleeper}",
    "reduce": "debug reduce conv_net.onnx -o small.onnx --min-good good.onnx --iter-info i.json --check {python} "
    "{sleeper} {{model}}",
    "run": "run conv_net.onnx --onnxrt --onnx --data-loader-script {sleeper} --save-inputs in.json --save-outputs "
    "out.json --save-accuracy-results a.json",
    "convert": "convert conv_net.onnx --convert-to ort -o e.ort --data-loader-script {sleeper}",
    "campaign": "debug build conv_net.onnx --onnxrt --until 3 --data-loader-script {sleeper}",
    "build": "debug build conv_net.onnx --until 3 --builder-optimization-level 0 --check {python} {sleeper}",
    "convert by TensorRT": "convert conv_net.onnx -o e.engine --trt-network-postprocess-script {sleeper}:load_data",
}
BY_TENSORRT = ("build", "convert by TensorRT")


@pytest.mark.parametrize("name", INTERRUPTED)
def test_interruption_leaves_nothing_behind(name, folder, request):
    if name in BY_TENSORRT:
        request.getfixturevalue("rtx")
    number = signal.SIGTERM if name in ("repeat", "convert") else signal.SIGINT
    sleeper = folder / "sleeper.py"
    sleeper.write_text(
        "import pathlib, time\ndef load_data(*given, **named):\n    pathlib.Path('begun').touch()\n    "
        "time.sleep(3600)\nif __name__ == '__main__':\n    load_data()\n"
    )
    before = set(folder.iterdir())

    process = subprocess.Popen(
        [*TRTOPS, *INTERRUPTED[name].format(python=sys.executable, sleeper=sleeper).split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRTOPS_TEST_MARK": str(folder)},
        # Tests started in the background ignore Ctrl-C, and so would this child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )
    while not (folder / "begun").exists() and process.poll() is None:
        time.sleep(0.02)
    assert (folder / "begun").exists(), process.communicate()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does it: to the command and to its children
    else:
        process.send_signal(number)
    _, error = process.communicate()

    assert process.returncode == 130, error
    assert "Traceback" not in error
    until(lambda: not _alive(str(folder)))
    left = {path.name for path in set(folder.iterdir()) - before} - {"begun", "__pycache__"}
    assert not left - {"trtops_debug_replay.json"}  # answers with which a search resumes


# Python's own buffer is what cannot be written at the end, unless it has none.
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        ("check lint bad.onnx --json", ""),
        ("check lint bad.onnx --json", "1"),
        ("convert conv_net.onnx --convert-to ort --latency-runs 0 --max-engine-bytes 1", ""),
    ],
)
def test_closed_stdout_is_not_a_good_verdict(folder, command, unbuffered):
    Path("bad.onnx").write_bytes(models.model("(float[2] x) => (float[2] y) { y = Relu(z) }").SerializeToString())

    # The reader is gone before anything is printed.
    done = process(f"(trtops {command}; echo $? > code) | true; cat code", PYTHONUNBUFFERED=unbuffered)

    assert int(done.stdout) in (1, 141), done.stderr


def test_text_beyond_the_encoding_of_the_output_is_escaped(folder):
    proto = models.model("(float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.name = "größe"
    models.Case(proto, {}, name="m").write(folder)
    shown = process("trtops inspect model m.onnx", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0 and rb"Name: gr\xf6\xdfe" in shown.stdout


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("def load_data():\n    yield {'x': 1 / 0}\n", "ZeroDivisionError: division by zero"),
        ("def load_data(:\n", "SyntaxError"),
        ("import no_such_library\n", "No module named 'no_such_library'"),
        ("def other():\n    pass\n", "Could not import symbol: load_data from"),
    ],
)
def test_errors_of_user_scripts_are_shown(text, output, folder, caplog):
    Path("data.py").write_text(text)

    assert main(shlex.split("run identity.onnx --onnxrt --data-loader-script data.py")) == 3
    assert output in caplog.text and "data.py" in caplog.text
    assert "bug in trtops" not in caplog.text and "trtops/" not in caplog.text.replace("tests/", "")


def test_data_messages_appear_once(folder, caplog):
    models.dynamic_identity().write(folder)

    for _ in range(2):  # and again in the next command
        caplog.clear()
        assert main(shlex.split("run dynamic_identity.onnx --onnxrt --iterations 5 --save-inputs i.json")) == 0
        assert caplog.text.count("has the dynamic shape") == 1


def test_help_lists_environment_variables(folder, capsys):
    assert main(["-h"]) == 0
    text = capsys.readouterr().out
    assert "TRTOPS_HOME" in text and "NO_COLOR" in text

    wrong = process("trtops run identity.onnx --onnxrt", TRTOPS_ARRAY_SWAP_THRESHOLD_MB="many")
    assert wrong.returncode in (2, 3) and b"is 'many'; expected a whole number" in wrong.stderr


def test_doctor_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 0
    assert "makes it" in capsys.readouterr().out

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert main(["doctor", "--store", "http://127.0.0.1:9"]) == 1
    output = capsys.readouterr().out
    assert "problem  MLflow: does not answer" in output and "problem  Prefect: does not answer" in output
    assert "2 problems found" in output and "do: " in output
    assert list(tmp_path.iterdir()) == []


def test_hidden_gpu_of_onnx_runtime_is_named(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    models.conv_net().fixed().write(tmp_path)
    distributions = {"onnxruntime": ["onnxruntime", "onnxruntime-gpu", "onnxruntime"]}
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: distributions)
    mend = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"

    assert main(["doctor"]) == 1
    assert f"do: {mend}" in capsys.readouterr().out
    for command in ("convert", "run", "gate"):
        assert main([command, "conv_net.onnx", "--onnxrt", "--providers", "CUDAExecutionProvider"]) == 3
        hidden = "CUDAExecutionProvider is missing: onnxruntime and onnxruntime-gpu are both installed"
        assert hidden in caplog.text and mend in caplog.text, command
        caplog.clear()


def test_missing_tensorrt_names_onnxrt_where_it_is_an_option(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    models.conv_net().fixed().write(tmp_path)
    (tmp_path / "conv_net.plan").write_bytes(b"x")
    monkeypatch.setattr("trtops.extras.installed", lambda *modules: "tensorrt" not in modules)

    for line, names_option in {
        "convert conv_net.onnx": True,
        "inspect capability conv_net.onnx": True,
        "convert conv_net.onnx --trt": False,
        "evaluate conv_net.plan --model conv_net.onnx": False,
        "inspect model conv_net.plan": False,
    }.items():
        assert main(shlex.split(line)) == 3
        assert "This needs tensorrt" in caplog.text and ("--onnxrt" in caplog.text) is names_option, line
        caplog.clear()


def test_self_test_writes_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trtops.ops.self_test.BACKENDS", ("onnxruntime",))
    assert main(["doctor", "--self-test", "-o", "report.json"]) == 0
    text = (tmp_path / "report.json").read_text()
    [report] = json.loads(text)
    assert report["backend"] == "onnxruntime" and "host" not in report and str(tmp_path) not in text
    assert {check["outcome"] for check in report["checks"]} == {"passed"} and len(report["checks"]) >= 10

    monkeypatch.setattr("trtops.ops.self_test._LIMITS", {"fp32": -1.0, "fp16": 1.0, "int8": 1.0})
    assert main(["doctor", "--self-test"]) == 1  # no engine is that exact
    assert "failed      fp32" in capsys.readouterr().out


def test_long_step_is_named_while_it_runs(monkeypatch, caplog):
    monkeypatch.setattr(jobs, "_SILENT_IN_FILES", 0.01)
    caplog.set_level("INFO", "trtops.cli.jobs")

    with jobs.announcing("Convert"):
        until(lambda: caplog.messages)
        assert (
            jobs._announced("build", lambda: until(lambda: "; step 'build': " in caplog.messages[-1]) or "made")
            == "made"
        )
        until(lambda: caplog.messages[-1].endswith(" s so far"))
