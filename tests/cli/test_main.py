"""The command itself: help, completion, colours, what is imported, and what an interruption leaves behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import models
from tests.waiting import until
from trtops.cli import registry
from trtops.cli.main import main

TRTOPS = [sys.executable, "-m", "trtops.cli"]
WITH_TRTOPS = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("path", [*registry.COMMANDS, *registry.FOLDERS], ids=" ".join)
def test_help_shows_usage_and_examples(path, capsys):
    assert main([*path, "-h"]) == 0

    text = capsys.readouterr().out
    assert text.startswith(f"usage: trtops {' '.join(path)}")
    assert f"  trtops {path[0]}" in text or "source <(" in text
    assert "\x1b" not in text and "(default: )" not in text


def test_help_after_check_is_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(["debug", "repeat", "--until", "1", "--check", *TRTOPS, "run", "-h"]) == 0
    assert "1 of 1 iterations passed" in capsys.readouterr().out


@pytest.mark.parametrize("path", registry.NOT_SUPPORTED, ids=" ".join)
def test_unsupported_commands_say_what_to_do(path, capsys):
    assert main([*path, "model.onnx", "-o", "other.onnx"]) == 2
    output = capsys.readouterr().err
    assert "is not supported" in output and ("`trtops" in output or "Polygraphy" in output)


def test_no_words_list_the_commands(capsys):
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
def test_log_options_before_the_last_word(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)

    assert main(shlex.split(line)) == 0
    assert ("--silent" in line) == (capsys.readouterr().out == "")
    assert ("log.txt" in line) == Path("log.txt").exists()


def test_log_options_alone_are_wrong_usage(capsys):
    assert main(["surgeon", "-v"]) == 2
    assert main(["surgeon", "--log-file", "x", "sanitise"]) == 2
    assert "sanitize" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["-h"], ["run", "-h"], ["inspect", "model", "-h"], ["team", "up", "-h"], ["store", "ui", "-h"]]
)
def test_help_imports_nothing_slow(words):
    heavy = ("numpy", "onnx", "onnxruntime", "mlflow", "prefect", "cyclopts", "pandas", "matplotlib", "tensorrt")
    code = (
        f"import sys; from trtops.cli.main import main; main({words}); sys.exit(any(m in sys.modules for m in {heavy}))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, f"{words} imports too much"


def test_untracked_run_imports_no_mlflow(tmp_path):
    models.identity().write(tmp_path)
    code = (
        "import sys; from trtops.cli.main import main; assert main(['run', 'identity.onnx', '--onnxrt']) == 0; "
        "sys.exit(any(m in sys.modules for m in ('mlflow', 'prefect', 'pandas', 'matplotlib', 'tensorrt')))"
    )

    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True).returncode == 0


def test_bash_completes_commands_and_options(tmp_path):
    script = subprocess.run([*TRTOPS, "completion", "bash"], capture_output=True, text=True).stdout

    def completed(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        test = (
            f'{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _trtops; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(["bash", "-c", test], capture_output=True, text=True, cwd=tmp_path, env=WITH_TRTOPS)
        return done.stdout.split()

    assert completed("trtops", "insp") == ["inspect"]
    assert set(completed("trtops", "inspect", "d")) == {"data", "diff", "diff-tactics"}
    assert completed("trtops", "run", "m.onnx", "--load-o") == ["--load-outputs"]
    assert completed("trtops", "debug", "pr") == ["prove", "precision"]
    assert completed("trtops", "inspect", "model", "pr") == []  # bash then completes file names
    assert completed("trtops", "debug", "reduce", "m.onnx", "--mode", "") == ["bisect", "linear"]


def test_verbosity_is_restored(tmp_path, monkeypatch):
    from trtops.cli.commands import run
    from trtops.logger import G_LOGGER

    seen = {}
    monkeypatch.setattr(run, "say", lambda text: seen.update(G_LOGGER.module_severity))
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)
    before = dict(G_LOGGER.module_severity)

    assert main(shlex.split("run identity.onnx --onnxrt --verbosity WARNING backend/onnx:VERBOSE")) == 0
    assert seen == {"": G_LOGGER.WARNING, "backend/onnx": G_LOGGER.VERBOSE}
    assert dict(G_LOGGER.module_severity) == before


def test_log_file_has_the_requested_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)

    assert main(shlex.split("run identity.onnx --onnxrt --log-file log.txt --log-format timestamp line-info")) == 0
    assert re.match(r"\[I\] \(\d\d:\d\d:\d\d\) \[\w+\.py:\d+\] ", (tmp_path / "log.txt").read_text())


def test_unwritable_log_file_is_wrong_usage(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)

    assert main(shlex.split(f"inspect model identity.onnx --log-file {tmp_path}")) == 2
    assert f"--log-file {tmp_path}: Is a directory" in capsys.readouterr().err
    assert main(shlex.split("inspect model identity.onnx")) == 0


def _alive(mark: str) -> dict[int, str]:
    """Processes that were started with a mark in their environment, and what they were started as."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
    return found


RTX = {"TRTOPS_USE_TENSORRT_RTX": "1"}
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


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")
@pytest.mark.parametrize("name", INTERRUPTED)
def test_interruption_leaves_nothing_behind(name, tmp_path, request):
    if name in BY_TENSORRT:
        request.getfixturevalue("rtx")
    number = signal.SIGTERM if name in ("repeat", "convert") else signal.SIGINT
    models.conv_net().write(tmp_path)
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text(
        "import pathlib, time\n\n\ndef load_data(*given, **named):\n    pathlib.Path('begun').touch()\n    "
        "time.sleep(3600)\n\n\n"
        "if __name__ == '__main__':\n    load_data()\n"
    )
    before = set(tmp_path.iterdir())
    mark = f"TRTOPS_TEST_MARK={tmp_path}"
    words = INTERRUPTED[name].format(python=sys.executable, sleeper=sleeper).split()

    process = subprocess.Popen(
        [*TRTOPS, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRTOPS_TEST_MARK": str(tmp_path), **(RTX if name in BY_TENSORRT else {})},
        # Tests started in the background ignore Ctrl-C, and so would this child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.02)
    assert (tmp_path / "begun").exists(), process.communicate()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does it: to the command and to its children
    else:
        process.send_signal(number)
    _, error = process.communicate()

    assert process.returncode == 130, error
    assert "Traceback" not in error
    until(lambda: not _alive(mark))
    left = {path.name for path in set(tmp_path.iterdir()) - before} - {"begun", "__pycache__"}
    assert not left - {"trtops_debug_replay.json"}  # answers with which a search resumes


# Python's own buffer is what cannot be written at the end, unless it has none.
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        ("check lint bad.onnx --json", ""),
        ("check lint bad.onnx --json", "1"),
        ("gate conv_net.onnx --precisions fp16 --policy strict.yaml", ""),
    ],
)
def test_closed_stdout_is_not_a_good_verdict(tmp_path, command, unbuffered):
    models.conv_net().write(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(
        models.model("(float[2] x) => (float[2] y) { y = Relu(z) }").SerializeToString()
    )
    strict = "latency: null\naccuracy:\n  tolerances: {atol: 0.0, rtol: 0.0}\n"
    (tmp_path / "strict.yaml").write_text(strict)
    words = shlex.join([*TRTOPS, *shlex.split(command)])
    piped = f"set -o pipefail; ({words}; echo $? > code) | true; cat code"  # the reader is gone before anything is said

    done = subprocess.run(
        ["bash", "-c", piped], cwd=tmp_path, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, capture_output=True
    )

    assert int(done.stdout) in (1, 141), done.stderr


def test_full_disk_is_an_error(tmp_path):
    models.conv_net().write(tmp_path)
    words = shlex.join([*TRTOPS, "inspect", "model", "conv_net.onnx"])

    done = subprocess.run(["bash", "-c", f"{words} > /dev/full"], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 3 and "No space left on device" in done.stderr and "Traceback" not in done.stderr


def script_run(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The installed command in a process of its own."""
    words = [sys.executable, "-m", "trtops.cli", *shlex.split(line)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, check=False)


def test_unprintable_letters_are_escaped(tmp_path):
    proto = models.model("(float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.name = "größe"
    models.Case(proto, {}, name="m").write(tmp_path)

    shown = script_run("inspect model m.onnx", tmp_path, PYTHONIOENCODING="ascii")
    assert shown.returncode == 0 and rb"Name: gr\xf6\xdfe" in shown.stdout


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("def load_data():\n    yield {'x': 1 / 0}\n", "ZeroDivisionError: division by zero"),
        ("def load_data(:\n", "SyntaxError"),
        ("def other():\n    pass\n", "does not define 'load_data'"),
    ],
)
def test_errors_of_user_scripts_are_shown(text, output, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)
    (tmp_path / "data.py").write_text(text)

    assert main(shlex.split("run identity.onnx --onnxrt --data-loader-script data.py")) == 3
    assert output in caplog.text and "data.py" in caplog.text
    assert "bug in trtops" not in caplog.text and "trtops/" not in caplog.text.replace("tests/", "")


def test_data_messages_appear_once(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    models.dynamic_identity().write(tmp_path)

    for _ in range(2):  # and again in the next command
        caplog.clear()
        assert main(shlex.split("run dynamic_identity.onnx --onnxrt --iterations 5 --save-inputs i.json")) == 0
        assert caplog.text.count("has the dynamic shape") == 1


def test_missing_file_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)

    assert main(["check", "accuracy", "none.json"]) == 3
    assert caplog.messages == ["none.json: No such file or directory"]


def test_help_lists_environment_variables(tmp_path, capsys):
    assert main(["-h"]) == 0
    text = capsys.readouterr().out
    assert "TRTOPS_HOME" in text and "NO_COLOR" in text

    models.identity().write(tmp_path)
    wrong = script_run("run identity.onnx --onnxrt", tmp_path, TRTOPS_ARRAY_SWAP_THRESHOLD_MB="many")
    assert wrong.returncode in (2, 3) and b"is 'many'; expected a whole number" in wrong.stderr


def test_doctor_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 0
    assert "makes it" in capsys.readouterr().out

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert main(["doctor", "--store", "http://127.0.0.1:9"]) == 1
    said = capsys.readouterr().out
    assert "problem  MLflow: does not answer" in said and "problem  Prefect: does not answer" in said
    assert "2 problems found" in said and "do: " in said
    assert list(tmp_path.iterdir()) == []
