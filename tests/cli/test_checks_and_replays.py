"""Searches that a command evaluates, what they read and leave, and how they resume; in this process, on real models."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import onnx

from tests import models
from trtops.cli.main import main
from trtops.json import load_json, save_json


def run(line: str, *check: str) -> int:
    """A line, with the words of a command behind ``--check``."""
    return main([*shlex.split(line), *(["--check", *check] if check else [])])


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


COUNTED = "open('asked.txt', 'a').write('x'); "


def asked() -> int:
    path = Path("asked.txt")
    return len(path.read_text()) if path.exists() else 0


KEEPS_ERF = (
    COUNTED + "import onnx,sys; m=onnx.shape_inference.infer_shapes(onnx.load(sys.argv[1])); "
    "erf=next(n for n in m.graph.node if n.op_type=='Erf'); "
    "types={v.name: v.type.tensor_type.elem_type for v in m.graph.value_info}; "
    "sys.exit(types[erf.input[0]] != onnx.TensorProto.FLOAT)"
)
SEARCH = "debug precision transformer.onnx"
HAS_ERF = (
    f"{COUNTED}import sys; print('seen', len(sys.argv)); "
    "sys.exit(b'Erf' in open('trtops_debug.onnx', 'rb').read())"  # without onnx, which takes a quarter of a second
)
REDUCE = "debug reduce transformer.onnx -o small.onnx"


def test_replayed_answers_are_not_repeated(folder, capsys):
    line = f"{SEARCH} --fp16 -o mixed.onnx --artifacts asked.txt --art-dir sorted"
    assert run(line, *python(KEEPS_ERF), "{model}") == 0
    output = capsys.readouterr().out
    assert "1 of" in output and "must stay in FP32: erf\n" in output
    assert not Path("trtops_debug.onnx").exists()
    asked_first = len(json.loads(Path("trtops_debug_replay.json").read_text()))
    assert len([*Path("sorted/good").iterdir(), *Path("sorted/bad").iterdir()]) == asked_first > 2

    replay = "--load-debug-replay trtops_debug_replay.json"
    assert run(f"{SEARCH} --fp16 {replay}", *python(KEEPS_ERF), "{model}") == 0
    assert asked() == 0


def test_a_foreign_replay_is_rejected(folder, caplog):
    context = {"state": {"num_nodes": 3}, "iteration_info": {"iteration": 0}, "success": True}
    Path("other.json").write_text(json.dumps({"_N0": {**context, "polygraphy_class": "IterationContext"}}))

    assert run("debug precision transformer.onnx --load-debug-replay other.json") in (2, 3)
    assert "which nodes were tested" in caplog.text


def test_releases_without_layer_precisions_are_rejected(folder, caplog, rtx):
    assert run("debug precision conv_net.onnx --fp16", *python(COUNTED)) == 3
    assert "reads {model}" in caplog.text and asked() == 0

    words = ["-m", "trtops.cli", "convert", "{model}", "-o", "mixed.engine", "--builder-optimization-level", "0"]
    built = f"import subprocess, sys; subprocess.run([sys.executable, *{words}], check=True)"
    assert run("debug precision conv_net.onnx --fp16", *python(built)) == 0
    assert Path("mixed.engine").stat().st_size > 1000


def test_reduce_sorts_and_shows_what_checks_leave(folder, capsys):
    outputs = []
    for option in ("--show-output", "--artifacts asked.txt --art-dir sorted --iter-info i.json", "--hide-fail-output"):
        assert run(f"{REDUCE} {option}", *python(HAS_ERF)) == 0
        outputs.append(capsys.readouterr().out)

    steps = [line for line in outputs[0].splitlines() if line.startswith("check ")]
    shown, quiet, hidden = (text.count("seen 1") for text in outputs)
    assert shown >= len(steps) > quiet > hidden
    assert [node.op_type for node in onnx.load("small.onnx").graph.node] == ["Erf"]
    assert list(Path("sorted/bad").iterdir()) and list(Path("sorted/good").iterdir())
    assert not Path("trtops_debug.onnx").exists() and not Path("i.json").exists()
    summary = r"Finished \d+ iteration\(s\) \| Passed: \d+/\d+ \| Pass Rate: [\d.]+%"
    assert "1 of" in outputs[0] and re.search(summary, outputs[0])


def test_reduced_models_come_with_data_and_weights(folder):
    line = f"{REDUCE} --min-good good.onnx --save-external-data weights.bin --external-data-size-threshold 0"
    assert run(f"{line} --val-range [3,3.5] --no-reduce-inputs", *python(HAS_ERF)) == 0

    (feed,) = load_json("small_inputs.json")
    array = next(iter(feed.values()))
    assert 3 <= array.min() <= array.max() <= 3.5
    assert run("run small.onnx --onnxrt --load-inputs small_inputs.json") == 0
    assert run("run good.onnx --onnxrt") == 0


def test_a_person_is_asked_about_each_part(folder, monkeypatch, capsys):
    prompts = []

    def answer(prompt):
        prompts.append(prompt)
        names = [node.name for node in onnx.load("trtops_debug.onnx").graph.node]
        return "x" if len(prompts) == 1 else "fail" if "erf" in names else "pass"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)

    assert run(REDUCE) == 0
    assert [node.op_type for node in onnx.load("small.onnx").graph.node] == ["Erf"]
    assert prompts[0].startswith(">>> Did 'trtops_debug.onnx' [p]ass or [f]ail?") and "choose" in prompts[1]
    assert not Path("trtops_debug.onnx").exists()


def test_repeat_sorts_files_and_can_be_replayed(folder, capsys):
    code = f"import json,sys; n=json.load(open('i.json'))['iteration']; {COUNTED} sys.exit(n == 2)"
    options = "--artifacts asked.txt --art-dir kept --iter-info i.json"
    assert run(f"debug repeat --until bad {options}", *python(code)) == 0
    assert sorted(path.parent.name for path in Path("kept").glob("*/*")) == ["bad", "good", "good"]
    out = capsys.readouterr().out
    assert "2 of 3 iterations passed" in out
    assert "[I] Finished 3 iteration(s) | Passed: 2/3 | Pass Rate: 66.66666666666667%" in out
    assert len(json.loads(Path("trtops_debug_replay.json").read_text())) == 3

    replay = "--load-debug-replay trtops_debug_replay.json --save-debug-replay all.json"
    assert run(f"debug repeat --until 5 {replay}", *python(COUNTED)) == 0
    assert asked() == 2 and "4 of 5 iterations passed" in capsys.readouterr().out
    assert len(json.loads(Path("all.json").read_text())) == 5


def shapes_of(path: str) -> dict[str, list[int]]:
    graph = onnx.load(path).graph
    return {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def test_shapes_come_from_running_the_model(folder):
    net = models.model(
        "(float[n] x) => (float[k] y) { i = NonZero(x)\n j = Transpose<perm = [1, 0]>(i)\n g = GatherND(x, j)\n h "
        "= Neg(g)\n y = Exp(h) }"
    )
    models.Case(net, {}, name="sized").write(folder)
    save_json([{"x": np.array([0, 1, 2, 0, 3], np.float32)}], "i.json")
    observed = "sized.onnx --force-fallback-shape-inference --load-inputs i.json"

    assert run(f"surgeon sanitize {observed} -o static.onnx") == 0
    assert shapes_of("static.onnx") == {"x": [5], "i": [1, 3], "j": [3, 1], "g": [3], "h": [3], "y": [3]}
    assert run("run static.onnx --onnxrt --load-inputs i.json") == 0
    assert run(f"surgeon extract {observed} --inputs g:auto:auto --outputs h:auto -o part.onnx") == 0
    assert shapes_of("part.onnx")["g"] == [3]
