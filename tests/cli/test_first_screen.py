"""What a terminal of 80 columns shows: one screen, and everything with ``-v``."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from tests.stores import copy_store
from trtops.cli.main import main

pty = pytest.importorskip("pty")


def screen_of(words: list[str], folder: Path) -> tuple[int, list[str]]:
    """Run a command in a terminal of 80 columns; return its exit code and the lines that remain."""
    import fcntl
    import struct
    import termios

    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder)
        os.execvpe(sys.executable, [sys.executable, "-m", "trtops", *words], {**os.environ, "TRTOPS_HOME": "mlruns"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    output = b""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # how Linux reports that the process has closed the terminal
            break
        if not part:
            break
        output += part
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode()).replace("\r\n", "\n")
    return code, [line.rpartition("\r")[2] for line in plain.split("\n")]


def test_a_conversion_fits_one_screen(template: Path, tmp_path: Path) -> None:
    case = models.conv_net()
    case.write(tmp_path)
    copy_store(template, tmp_path / "mlruns")
    np.savez(tmp_path / "feed.npz", **case.feed)
    line = ["convert", "conv_net.onnx", "--convert-to", "ort", "--load-inputs", "feed.npz", "--experiment", "e"]

    code, lines = screen_of(line, tmp_path)

    shown = [text for text in lines if text and not text.startswith("[I]")]
    assert code == 0 and len(shown) <= 12 and max(map(len, shown)) <= 80, shown
    labels = [text.split(":")[0] for text in shown if not text.startswith(" ")]
    assert labels == ["verdict", "because", "figures", "run", "next"]
    assert re.search(r"figures: FP32 engine, [\d.]+ KiB, p50 [\d.]+ ms, p99 [\d.]+ ms", "\n".join(shown))

    [file] = (tmp_path / "mlruns").rglob("timing.json")
    times = {step: seconds["cpu_seconds"] for step, seconds in json.loads(file.read_text()).items()}
    assert {"start", "open store", "open data", "build", "run reference", "draw report"} <= times.keys()
    assert times["other"] <= 0.1 * times["total"], times

    code, detailed = screen_of([*line, "-v"], tmp_path)
    assert code == 0 and len(detailed) > 25 and any(text.startswith("Not shown here: ") for text in detailed)
    assert any(text.split()[:2] == ["scores", "good"] for text in detailed)


def test_run_shows_its_verdict_and_pipes_get_all_lines(tmp_path: Path, monkeypatch, capsys, caplog) -> None:
    models.conv_net().fixed().write(tmp_path)
    line = ["run", "conv_net.onnx", "--onnxrt", "--onnxrt"]

    code, lines = screen_of(line, tmp_path)
    assert code == 0 and [text.split(":")[0] for text in lines if text[:1].strip()] == ["verdict", "because", "figures"]
    assert "onnxrt-runner-N0 and onnxrt-runner-N1 agree in scores (max abs 0" in " ".join(lines).replace("  ", "")

    monkeypatch.chdir(tmp_path)
    assert main(line) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[I] RUNNING | Command: ") and lines[-1].startswith("[I] PASSED | Runtime: ")
    assert "Accuracy Summary | onnxrt-runner-N" in caplog.text
    assert "verdict: good" in lines[-7:]


FORGED = "\nverdict: good\nrun:     deadbeef\nnext:    trtops runs promote deadbeef\n"
ON_NAMES = """
    convert M --convert-to ort --latency-runs 0 --experiment e; compare M M --latency-runs 0 -v; run M --onnxrt --onnxrt
    debug accuracy M --emulate fp16; debug precision M --fp16; check lint M; inspect model M; runs show RUN
    convert M --convert-to ort --input-shapes q:[1,2]; surgeon sanitize M -o s.onnx
"""


@pytest.mark.parametrize("ending", [FORGED, "A" * 100_000], ids=["forged lines", "long names"])
def test_names_forge_and_flood_nothing(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "mlruns"))
    x, y, w = (f"{name}{ending}" for name in "xyw")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", [x, w], [y], f"n{ending}")],
        "g",
        [value(x, onnx.TensorProto.FLOAT, [2, 4])],
        [value(y, onnx.TensorProto.FLOAT, [2, 3])],
        [onnx.numpy_helper.from_array(models.random(4, 3), w)],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    run = ""
    for line in ON_NAMES.replace("\n", ";").split(";"):
        words = [{"M": "m.onnx", "RUN": run}.get(word, word) for word in line.split()]
        code = main(words) if words else 0
        out, err = capfd.readouterr()
        lines = f"{out}{err}".splitlines()
        ids = [text.split()[1] for text in lines if text.startswith("run:")]
        assert code in (0, 1, 3) and "Traceback" not in err, err
        assert len(ids) <= 1 and "deadbeef" not in ids, line
        assert not any(text.startswith(("next:", "verdict:")) and "deadbeef" in text for text in lines), line
        assert max(map(len, lines), default=0) < 5000 and len(lines) < 200, (line, max(lines, key=len)[:100])
        run = run or "".join(ids)
    assert run
