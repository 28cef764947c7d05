"""What commands do, end to end, in this process."""

import fcntl
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from tests.cli import seed_lines
from trtops.cli.main import main
from trtops.comparator import RunResults
from trtops.json import save_json
from trtops.tracking.writing import Run


def run(line: str) -> int:
    return main(line.split())


BROKEN = "(float[4] x) => (float[4] y) { t = Relu(x)\n [sum] y = Add(t, k) }"
CUSTOM = "(float[4] x) => (float[4] y) { t = Relu(x)\n u = custom.CustomOp(t)\n y = Neg(u) }"
SCENARIOS = {
    "compare outputs": """
        0 run transformer.onnx --onnxrt --onnx --atol 1e-4 --rtol 1e-4 # PASSED
        0 run conv_net.onnx --onnxrt --input-shapes image:[3,3,8,8] --iterations 2 --save-inputs i --save-outputs o
        0 run conv_net.onnx --onnxrt --load-inputs i --load-outputs o
        0 run identity.onnx --onnxrt --use-subprocess --save-outputs a.json
        0 run identity.onnx --onnxrt --load-outputs a.json
        0 run --load-outputs a.json a.json
        1 run identity.onnx --onnxrt --seed 9 --load-outputs a.json # FAILED
    """,
    "reject averages": """
        2 run conv_net.onnx --onnxrt --onnxrt --iterations 2 --check-average
        2 run conv_net.onnx --onnxrt --onnxrt --iterations 2 --check-average --check-error-stat elemwise
        2 run conv_net.onnx --onnxrt --onnxrt --check-average --fail-fast --check-error-stat mean
        0 run conv_net.onnx --onnxrt --onnxrt --iterations 2 --check-average --check-error-stat mean
        0 run conv_net.onnx --onnxrt --onnxrt --iterations 2 --check-average --compare l2 cosine_similarity
    """,
    "no runners": """
        2 run # No runners have been selected
        2 run identity.onnx # --onnxrt
        0 run identity.onnx --gen-script g.py
    """,
    "TensorFlow": """
        2 run model.h5 --tf --load-outputs golden.json # tf2onnx.convert
        2 run model.pb --onnxrt # tf2onnx.convert
        2 convert model.keras -o model.onnx # tf2onnx.convert
        2 inspect model model.graphdef --shape-inference # tf2onnx.convert
    """,
    "convert": """
        0 run conv_net.onnx --onnxrt --save-inputs i.json --save-outputs o.json
        0 convert --fp-to-fp16 -o low.onnx conv_net.onnx
        2 convert --fp16 -o low16.onnx conv_net.onnx # --fp-to-fp16 rewrites an ONNX file
        0 run low.onnx --onnxrt --load-inputs i.json --load-outputs o.json --atol 1e-2 --rtol 1e-2
        1 convert conv_net.onnx -o engine.ort # unproven
        0 convert conv_net.onnx -o engine.ort --input-shapes image:[2,3,8,8] # good
        0 inspect model engine.ort
        2 inspect model conv_net.onnx --combine-tensor-info saved.json # TensorRT engine
    """,
    "guesses": """
        0 run identity.onnx --onnxrt --input-shapes x:1x1x2x2
        3 run identity.onnx --onnxrt --input-shapes y:[1,1,2,2] # no input 'y'
        0 convert identity.onnx --onnxrt # good
        2 convert identity.onnx --onnxrt -o i.engine # contradicts
        2 convert identity.onnx --precision fp16 # '--fp16'
        2 diff-tactics # 'inspect diff-tactics' or 'debug diff-tactics'
    """,
    "saved comparisons": """
        1 run transformer.onnx --onnxrt --onnx --atol 1e-9 --rtol 1e-9 --save-accuracy-results acc.json
        0 check accuracy acc.json --atol 1e-3 --rtol 1e-3 --check-error-stat max
        1 check accuracy acc.json --atol 1e-12 --rtol 1e-12 --check-error-stat max --save-accuracy-results b.json
        1 check accuracy b.json
        0 run multi_output.onnx --onnxrt --save-outputs a.json
        0 run multi_output.onnx --onnxrt --seed 9 --save-outputs b.json
        0 inspect diff a.json a.json
        1 inspect diff a.json b.json --rtol=1e-3 # sum/0:1
    """,
    "surgeon": """
        0 run foldable.onnx --onnxrt --save-outputs o.json
        0 surgeon sanitize foldable.onnx --fold-constants --cleanup --toposort -o clean.onnx
        0 run clean.onnx --onnxrt --load-outputs o.json
        0 surgeon insert conv_net.onnx --op Clip --inputs logits --outputs logits --name cap -o capped.onnx
        0 inspect model capped.onnx --show layers # Clip
        0 run capped.onnx --onnxrt
        2 surgeon sanitize conv_net.onnx -o conv_net.onnx # overwrite
        0 surgeon weight-strip conv_net.onnx -o bare.onnx
        0 surgeon weight-reconstruct bare.onnx --original conv_net.onnx -o back.onnx
        0 run conv_net.onnx --onnxrt --save-outputs o.json
        0 run back.onnx --onnxrt --load-outputs o.json
        0 surgeon prune custom.onnx --remove-node-types CustomOp -o plain.onnx
        0 run plain.onnx --onnxrt
        3 surgeon prune custom.onnx --remove-node-types Custom0p -o plain.onnx # Did you mean 'CustomOp'?
        0 template onnx-gs conv_net.onnx -o change.py
        1 check lint broken.onnx -o report.json # sum
        0 check lint conv_net.onnx --seed 4 --val-range [0,2]
        2 check accuracy acc.json --save-heatmaps maps # trtops run --load-outputs
        2 inspect sparsity conv_net.onnx # surgeon prune
    """,
    "data": """
        0 run conv_net.onnx --onnxrt --onnx-outputs r0 --iterations 2 --save-inputs i.json --save-outputs o.json
        0 data merge i.json o.json -o merged.json # Wrote 2 iterations
        0 data concat merged.json merged.json -o twice.json # Wrote 4 iterations
        0 data to-input o.json -o part.json
        0 surgeon extract conv_net.onnx --inputs r0 -o rest.onnx
        0 run rest.onnx --onnxrt --load-inputs part.json
        0 inspect data o.json --json # {
        0 inspect model conv_net.onnx --json # {
    """,
    "parts": """
        0 inspect capability custom.onnx --onnxrt --with-partitioning -o parts --save-external-data
        1 inspect capability custom.onnx --onnxrt --with-partitioning -o parts --save-external-data --exit-on-bad
        2 inspect capability custom.onnx --onnxrt --with-partitioning -o parts --save-external-data weights.bin
    """,
    "pictures": """
        2 inspect model conv_net.onnx --save-visual net.html # netron
        0 run identity.onnx --onnxrt --onnx --save-heatmaps maps --save-error-metrics-plot plots
    """,
    "debug": """
        0 debug reduce conv_net.onnx -o small.onnx --onnxrt --atol 1e-3 --rtol 1e-3 # does not fail
        0 debug build conv_net.onnx --onnxrt --num-iterations 2 --input-shapes image:[2,3,8,8] # 2 good, 0 bad
        0 debug precision transformer.onnx --fp16 --atol 1e-2 --rtol 1e-2 -o mixed.onnx --save-layer-outputs layers.json
        0 run mixed.onnx --onnxrt
        0 run transformer.onnx --onnxrt --save-inputs in.json --save-outputs good.json
        0 run transformer.onnx --onnxrt --seed 9 --save-outputs other.json
        1 debug precision transformer.onnx --load-inputs in.json --golden-outputs other.json # does not give the golden
        0 debug precision transformer.onnx --load-inputs in.json --golden-outputs good.json --atol 1e-2 --rtol 1e-2
        1 debug accuracy transformer.onnx --emulate bf16 --atol 1e-5 --rtol 1e-5
        0 debug accuracy conv_net.onnx --onnxrt --atol 1e-3 --rtol 1e-3
    """,
    "wrong usage": """
        2 run m.onnx --onnxrt --fp61 # Did you mean '--fp16'?
        2 inspect modle m.onnx # Did you mean 'model'?
        2 run m.onnx --onnxrt --atol much # expected a number
        2 convert m.onnx --convert-to tr # Did you mean 'trt'?
        2 run conv_net.onnx --onnxrt --experiment e --gen script.py
        3 run nowhere.onnx --onnxrt # nowhere.onnx
        3 store ui --root http://tracking:5000 # is a server
        3 check accuracy none.json # none.json: No such file or directory
        2 inspect model identity.onnx --log-file . # Is a directory
    """,
    "exit codes of checks": """
        0 debug repeat --until 1 --check {python} -m trtops.cli run -h # 1 of 1 iterations passed
        0 debug repeat --until 1 --exit-on-bad --ignore-fail-code 4 --check {python} -c "import sys; sys.exit(4)"
        1 debug repeat --until 1 --exit-on-bad --fail-code 4 --check {python} -c "import sys; sys.exit(4)"
        0 debug repeat --until 1 --fail-regex boom --check {python} -c "print('boom'); exit(4)"
        1 debug repeat --until 1 --exit-on-bad --fail-regex boom --check {python} -c "print('boom'); exit(4)"
        0 debug repeat --until good --fail-regex bang --ignore-fail-code 4 --check {python} -c "print('boom'); exit(4)"
    """,
}
"""Lines in order, each with its exit code and, after #, a text that it prints or logs."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_lines_exit_and_print(name, folder, capsys, caplog):
    models.Case(models.model(BROKEN, {"k": np.ones(3, np.float32)}), {}, name="broken").write(folder)
    models.Case(models.model(CUSTOM), {}, name="custom").write(folder)
    for line in SCENARIOS[name].strip().splitlines():
        code, _, rest = line.strip().partition(" ")
        words, _, text = rest.partition(" # ")
        caplog.clear()
        for word in words.split():
            if word.endswith((".h5", ".pb", ".keras", ".graphdef")):
                Path(word).write_bytes(b"")

        assert main(shlex.split(words.format(python=sys.executable))) == int(code), words
        shown = capsys.readouterr()
        assert text in " ".join((shown.out + shown.err + caplog.text).split()), words
        assert "Traceback" not in caplog.text


def test_calibrated_cache_is_shown_and_used(folder):
    save_json([{"image": models.random(4, 3, 8, 8, seed=n)} for n in range(3)], "data.json")

    assert run("calibrate conv_net.onnx --load-inputs data.json -o a.json") in (0, 1)
    assert run("inspect calibration a.json") == 0
    assert run("sensitivity conv_net.onnx --calibration-cache a.json --load-inputs data.json --budget 0.5") == 0


def test_templates_build_an_engine(folder, rtx):
    assert run("template trt-network conv_net.onnx -o network.py") == 0
    assert run("template trt-config --sparse-weights --trt-opt-shapes image:[2,3,8,8] -o config.py") == 0
    assert run("convert network.py -o e.engine --trt-config-script config.py") == 0
    assert Path("e.engine").stat().st_size > 0
    assert run("convert conv_net.onnx") == 0
    assert Path("conv_net.engine").stat().st_size > 0
    assert run("inspect model conv_net.onnx --display-as trt --show layers") == 0


def test_unrecorded_conversions_copy_no_model(folder, monkeypatch):
    copied = []
    monkeypatch.setattr(Run, "log_file", lambda run, file, path: copied.append(path))

    assert run("convert identity.onnx --onnxrt") == 0
    assert not copied


def test_runners_run_in_order(folder):
    for names in (["onnx", "onnxrt"], ["onnxrt", "onnx"]):
        assert run(f"run conv_net.onnx --{names[0]} --{names[1]} --save-layer-outputs a.json") == 0
        results = RunResults.load("a.json")
        assert [name.split("-")[0] for name, _ in results] == names
        assert {"c0", "logits", "scores"} <= set(results[0][1][0])


def test_tensorrt_options_reach_a_child_process(folder, caplog, rtx):
    proto = models.model("(float[1,3,224,224] x) => (float[1,3,224,224] y) { y = Relu(x) }")
    models.Case(proto, {}, name="large").write(folder)  # more data than a pipe holds

    assert run("run large.onnx --trt --use-subprocess --pool-limit workspace:64M") == 3
    assert "needs a GPU to load engines" in caplog.text


def test_generated_scripts_are_short(folder):
    line = (
        "run conv_net.onnx --onnxrt --trt --fp16 --workspace 1G --trt-opt-shapes image:[4,3,8,8] --gen-script script.py"
    )

    assert run(line) == 0
    text = Path("script.py").read_text()
    assert len(text.splitlines()) < 45
    assert "CreateConfig(" in text and "fp16=True" in text and '.add("image", min=(4, 3, 8, 8)' in text
    compile(text, "script.py", "exec")
    # TensorRT 8.6 has no stream reader, which Polygraphy's ``EngineFromPath`` needs.
    assert run("run saved.engine --trt --gen-script g.py") == 0
    assert f'EngineFromBytes(BytesFromPath("{folder}/saved.engine"))' in Path("g.py").read_text()


def test_reductions_read_answers_from_a_pipe(folder, monkeypatch, capsys):
    Path("answers").write_text("f\n" * 30)
    opened = os.open("answers", os.O_RDONLY)
    lowest = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1)
    high = fcntl.fcntl(opened, fcntl.F_DUPFD, lowest)  # as in a process with many open files
    os.close(opened)
    with open(high) as answers:
        monkeypatch.setattr(sys, "stdin", answers)
        assert run("debug reduce conv_net.onnx -o small.onnx") == 0
    assert len(onnx.load("small.onnx").graph.node) == 1


def test_installed_script_can_be_silent(folder):
    script = Path(sys.executable).with_name("trtops")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "trtops.cli"]

    for options, printed in (("--silent", ""), ("--log-file log.txt -q", "1 iteration")):
        words = [*command, "run", "identity.onnx", "--onnxrt", *options.split()]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and printed in done.stdout and "\x1b" not in done.stdout
    assert done.stdout and Path("log.txt").exists()


def test_polygraphy_replays_are_compared(folder, capsys):
    for path, tactic in (("good/a.json", 1), ("good/b.json", 2), ("bad/c.json", 3)):
        seed_lines.write_replay(Path("replays", path), tactic)
    tensors = "(TensorInfo(DataType.FLOAT, (4, 1), -1, 1),)"
    text = f"(Implementation: 1, Tactic: 3) | Inputs: {tensors} | Outputs: {tensors}"

    assert run("inspect tactics replays/bad/c.json") == 0
    assert f"[I] Layer: conv1\n        Algorithm: {text}\n" in capsys.readouterr().out
    assert run("inspect diff-tactics --dir replays") == 0
    output = capsys.readouterr().out
    loaded = "[I] Loaded 2 good tactic replays.\n[I] Loaded 1 bad tactic replays.\n[I] Found potentially bad tactics:\n"
    assert output.startswith(loaded)
    assert f"[I] Layer: conv1\n        Algorithms: ['{text}']\n" in output
