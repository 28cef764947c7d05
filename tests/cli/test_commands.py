"""What commands do, end to end, in this process."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops.cli.main import main
from trtops.comparator import RunResults
from trtops.json import load_json, save_json


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models."""
    monkeypatch.chdir(tmp_path)
    for make in (models.identity, models.conv_net, models.transformer, models.multi_output, models.foldable):
        make().write(tmp_path)
    return tmp_path


def run(line: str) -> int:
    return main(line.split())


# --- run ------------------------------------------------------------------------------------------------------------


def test_equal_outputs_exit_with_0_and_different_ones_with_1(folder, capsys):
    assert run("run transformer.onnx --onnxrt --onnx --save-outputs both.json --atol 1e-4 --rtol 1e-4") == 0
    assert "PASSED" in capsys.readouterr().out

    RunResults([("other", [{"y": models.random(1, 1, 16, seed=5)}])])
    other = RunResults()
    other.add([{"y": np.full((1, 1, 16), 7, np.float32)}], runner_name="other")
    other.save("other.json")

    assert run("run transformer.onnx --onnxrt --load-outputs other.json") == 1
    assert "onnxrt" in capsys.readouterr().out


def test_runners_run_in_the_order_in_which_they_are_named(folder):
    assert run("run identity.onnx --onnx --onnxrt --save-outputs a.json") == 0
    assert run("run identity.onnx --onnxrt --onnx --save-outputs b.json") == 0

    first, second = ([name for name, _ in RunResults.load(f"{n}.json")] for n in "ab")
    assert [name.split("-")[0] for name in first] == ["onnx", "onnxrt"]
    assert [name.split("-")[0] for name in second] == ["onnxrt", "onnx"]


def test_saved_inputs_and_outputs_make_a_run_repeatable(folder):
    assert (
        run(
            "run conv_net.onnx --onnxrt --input-shapes image:[3,3,8,8] --seed 7 --iterations 2 --save-inputs i.json --save-outputs o.json"
        )
        == 0
    )

    feeds = load_json("i.json")
    assert [feed["image"].shape for feed in feeds] == [(3, 3, 8, 8)] * 2
    assert run("run conv_net.onnx --onnxrt --load-inputs i.json --load-outputs o.json") == 0


def test_random_inputs_are_those_of_polygraphy(folder):
    assert (
        run(
            "run conv_net.onnx --onnxrt --input-shapes image:[2,3,8,8] --seed 3 --val-range [-1,1] --save-inputs i.json"
        )
        == 0
    )

    expected = np.random.RandomState(3).random_sample((2, 3, 8, 8)) * 2 - 1
    np.testing.assert_array_equal(load_json("i.json")[0]["image"], expected.astype(np.float32))


def test_saved_outputs_alone_are_compared_with_one_another(folder):
    assert run("run identity.onnx --onnxrt --save-outputs a.json") == 0

    assert run("run --load-outputs a.json a.json") == 0


def test_each_error_statistic_named_is_evaluated(folder, capsys):
    assert run("run transformer.onnx --onnxrt --save-outputs a.json") == 0
    results = RunResults.load("a.json")
    worse = results[0][1][0]["y"].copy()
    worse[0, 0, 0] += 1
    results[0][1][0]["y"] = worse
    results.save("worse.json")

    assert (
        run("run transformer.onnx --onnxrt --load-outputs worse.json --check-error-stat median --atol 1e-3 --rtol 1e-3")
        == 0
    )
    assert (
        run(
            "run transformer.onnx --onnxrt --load-outputs worse.json --check-error-stat median max --atol 1e-3 --rtol 1e-3"
        )
        == 1
    )


def test_means_that_there_would_be_none_of_are_refused_before_anything_is_run(folder, capsys):
    line = "run conv_net.onnx --onnxrt --onnxrt --iterations 2 --check-average --save-outputs none.json"
    for more in ("", "--check-error-stat elemwise", "--fail-fast --check-error-stat mean"):
        assert run(f"{line} {more}") == 2
    assert not Path("none.json").exists()
    assert run(f"{line} --check-error-stat mean") == run(f"{line} --compare l2 cosine_similarity") == 0


def test_top_k_is_compared_in_place_of_scores(folder):
    assert run("run conv_net.onnx --onnxrt --save-outputs a.json") == 0
    results = RunResults.load("a.json")
    results[0][1][0]["scores"] = results[0][1][0]["scores"] * np.float32(1.01)
    results.save("scaled.json")

    assert run("run conv_net.onnx --onnxrt --load-outputs scaled.json") == 1
    assert run("run conv_net.onnx --onnxrt --load-outputs scaled.json --postprocess top-3 --compare indices") == 0


def test_nan_and_infinity_are_faults_when_outputs_are_validated(folder):
    proto = models.model("(float[2] x) => (float[2] y) { y = Log(x) }")
    models.Case(proto, {}, name="log").write(folder)
    save_json([{"x": np.array([-1, 1], np.float32)}], "i.json")

    assert run("run log.onnx --onnxrt --load-inputs i.json --validate") == 1
    assert run("run identity.onnx --onnxrt --validate") == 0


def test_a_child_process_per_runner_gives_the_same(folder):
    assert run("run identity.onnx --onnxrt --use-subprocess --save-outputs a.json") == 0
    assert run("run identity.onnx --onnxrt --load-outputs a.json") == 0


def test_options_of_tensorrt_reach_a_child_process_without_its_objects(folder, caplog, rtx):
    proto = models.model("(float[1,3,224,224] x) => (float[1,3,224,224] y) { y = Relu(x) }")
    models.Case(proto, {}, name="large").write(folder)  # more data than a pipe holds

    assert run("run large.onnx --trt --use-subprocess --pool-limit workspace:64M") == 3
    assert "needs a GPU to load engines" in caplog.text


def test_heat_maps_and_error_plots_are_drawn_where_asked(folder):
    assert run("run identity.onnx --onnxrt --onnx --save-heatmaps maps --save-error-metrics-plot plots") == 0

    assert sorted(path.suffix for path in Path("maps").iterdir()) == [".png", ".png"]
    assert [path.suffix for path in Path("plots").iterdir()] == [".png"]


def test_all_tensors_can_be_made_outputs(folder):
    assert run("run conv_net.onnx --onnxrt --save-layer-outputs all.json") == 0

    assert {"c0", "logits", "scores"} <= set(RunResults.load("all.json")[0][1][0])


@pytest.mark.parametrize(
    "line",
    [
        "run conv_net.onnx --onnxrt --onnx --input-shapes image:[2,3,8,8] --seed 5 --val-range [-1,1] --atol 1e-4 scores:1e-3",
        "run transformer.onnx --onnxrt --load-outputs golden.json --compare l2 cosine_similarity --l2-threshold 1e-9",
        "run transformer.onnx --onnxrt --onnx-outputs m1 --shape-inference --validate --warm-up 2 --save-outputs out.json",
        "run conv_net.onnx --onnxrt --providers cpu --graph-optimization-level basic --postprocess top-2 --onnx --fail-fast",
    ],
)
def test_a_generated_script_ends_as_the_command_does(line, folder):
    assert run("run transformer.onnx --onnxrt --seed 2 --save-outputs golden.json") == 0
    expected = run(line)

    assert run(f"{line} --gen-script script.py") == 0
    with pytest.raises(SystemExit) as ended:
        runpy.run_path("script.py", run_name="__main__")
    assert ended.value.code == expected


def test_a_generated_script_is_short_and_reads_like_one_written_by_hand(folder):
    line = (
        "run conv_net.onnx --onnxrt --trt --fp16 --workspace 1G --trt-opt-shapes image:[4,3,8,8] --gen-script script.py"
    )

    assert run(line) == 0
    text = Path("script.py").read_text()
    assert len(text.splitlines()) < 45
    assert "CreateConfig(" in text and "fp16=True" in text and '.add("image", min=(4, 3, 8, 8)' in text
    compile(text, "script.py", "exec")


def test_a_generated_script_reads_a_saved_engine_as_every_release_can(folder):
    """TensorRT 8.6 has no stream reader, which Polygraphy's ``EngineFromPath`` takes for granted."""
    assert run("run saved.engine --trt --gen-script g.py") == 0
    assert 'engine_from_bytes_loader = EngineFromBytes(BytesFromPath("saved.engine"))' in Path("g.py").read_text()


def test_a_generated_script_has_short_lines_says_nothing_twice_and_is_printed_where_asked(folder, capsys):
    capsys.readouterr()
    line = (
        "run conv_net.onnx --trt --onnxrt --fp16 --int8 --calibration-cache c.cache --trt-min-shapes image:[1,3,8,8] "
        "--trt-opt-shapes image:[4,3,8,8] --trt-max-shapes image:[8,3,8,8] --val-range image:[-1,1] --gen-script -"
    )

    assert run(line) == 0
    text = capsys.readouterr().out
    assert text.count("DataLoader(") == 1 and text.count("'") == text.count("'image:[") * 2
    assert max(map(len, text.splitlines())) <= 110
    compile(text, "script.py", "exec")


def test_a_generated_script_says_what_the_command_says_and_writes_what_it_writes(folder):
    assert run("run conv_net.onnx --onnxrt --save-outputs a.json --seed 1") == 0
    assert run("run conv_net.onnx --onnxrt --load-outputs a.json --gen script.py") == 0
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 if "PASSED" in done.stdout else done.returncode == 1 and "FAILED" in done.stdout

    assert run("run conv_net.onnx --save-onnx low.onnx --fp-to-fp16 --gen script.py") == 0
    assert "import sys" not in Path("script.py").read_text() and not Path("low.onnx").exists()
    subprocess.run([sys.executable, "script.py"], capture_output=True, check=True)
    assert Path("low.onnx").exists()
    assert run("run conv_net.onnx --onnxrt --experiment e --gen script.py") == 2


@pytest.mark.parametrize("line", ["run identity.onnx", "run", "run identity.onnx --gen-script g.py"])
def test_a_run_without_runners_or_outputs_does_nothing_and_says_so(folder, caplog, line):
    assert run(line) == 0
    if "--gen-script" in line:
        runpy.run_path("g.py", run_name="__main__")
    else:
        assert "No runners have been selected" in caplog.text and "--onnxrt" in caplog.text


def test_tensorflow_models_need_tf2onnx_and_the_error_says_what_to_install(folder, caplog):
    assert run("run model.h5 --tf --load-outputs golden.json") == 3
    assert "pip install tensorflow tf2onnx" in caplog.text


def test_onnx_runtime_is_not_compared_with_itself_under_the_name_of_tensorflow(folder, capsys):
    assert run("run model.h5 --tf --onnxrt") == 2
    assert "would compare it with itself" in " ".join(capsys.readouterr().err.split())


# --- convert --------------------------------------------------------------------------------------------------------


def test_a_model_is_converted_to_fp16_and_agrees_within_its_precision(folder):
    assert run("run conv_net.onnx --onnxrt --save-inputs i.json --save-outputs o.json") == 0
    assert run("convert --fp-to-fp16 -o low.onnx conv_net.onnx") == 0

    assert any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in onnx.load("low.onnx").graph.initializer)
    assert run("run low.onnx --onnxrt --load-inputs i.json --load-outputs o.json --atol 1e-2 --rtol 1e-2") == 0


def test_an_engine_of_onnx_runtime_is_evaluated_and_written(folder, capsys):
    assert run("convert conv_net.onnx -o engine.ort") == 0

    assert "good" in capsys.readouterr().out
    assert run("inspect model engine.ort") == 0


def test_without_a_file_name_an_engine_is_named_after_the_model(folder, rtx):
    assert run("convert conv_net.onnx") == 0
    assert Path("conv_net.engine").stat().st_size > 0


def test_tensorrt_builds_with_several_profiles(folder, rtx):
    shapes = [
        f"--trt-{bound}-shapes image:[{n},3,8,8]"
        for ns in ((1, 2, 4), (8, 8, 8))
        for bound, n in zip(("min", "opt", "max"), ns)
    ]

    assert (
        run(f"convert conv_net.onnx -o e.engine --workspace 64M --builder-optimization-level 1 {' '.join(shapes)}") == 0
    )
    assert Path("e.engine").stat().st_size > 0
    assert run("inspect model conv_net.onnx --display-as trt --show layers") == 0


def test_a_network_script_and_a_config_script_from_templates_build(folder, rtx):
    assert run("template trt-network conv_net.onnx -o network.py") == 0
    assert run("template trt-config --sparse-weights --trt-opt-shapes image:[2,3,8,8] -o config.py") == 0

    assert run("convert network.py -o e.engine --trt-config-script config.py") == 0
    assert Path("e.engine").stat().st_size > 0


def test_missing_tensorrt_is_an_error_that_says_what_to_install(folder, caplog, no_tensorrt):
    assert run("convert conv_net.onnx -o e.engine") == 3

    assert "pip install tensorrt" in caplog.text
    assert not Path("e.engine").exists()


# --- inspect, check, data -------------------------------------------------------------------------------------------


def test_inspections_print_json_for_programs(folder, capsys):
    assert run("run conv_net.onnx --onnxrt --save-outputs o.json --silent") == 0

    for line in (
        "inspect model conv_net.onnx",
        "inspect data o.json",
        "inspect sparsity conv_net.onnx",
        "check lint conv_net.onnx",
    ):
        capsys.readouterr()
        assert run(f"{line} --json") == 0
        assert json.loads(capsys.readouterr().out)


def test_lint_finds_what_is_wrong_and_writes_its_report(folder):
    proto = models.model(
        "(float[4] x) => (float[4] y) { t = Relu(x)\n [sum] y = Add(t, k) }", {"k": np.ones(3, np.float32)}
    )
    models.Case(proto, {}, name="broken").write(folder)

    assert run("check lint broken.onnx -o report.json") == 1
    report = json.loads(Path("report.json").read_text())
    assert report["summary"]["failing"] == ["sum"]
    assert run("check lint conv_net.onnx --seed 4 --val-range [0,2]") == 0


def test_a_saved_comparison_is_reevaluated_by_other_tolerances(folder):
    assert run("run transformer.onnx --onnxrt --onnx --atol 1e-9 --rtol 1e-9 --save-accuracy-results acc.json") == 1

    assert run("check accuracy acc.json --atol 1e-3 --rtol 1e-3 --check-error-stat max") == 0
    assert (
        run("check accuracy acc.json --atol 1e-12 --rtol 1e-12 --check-error-stat max --save-accuracy-results b.json")
        == 1
    )
    assert run("check accuracy b.json") == 1


def test_files_of_outputs_are_compared_output_by_output(folder, capsys):
    assert run("run multi_output.onnx --onnxrt --save-outputs a.json") == 0
    assert run("run multi_output.onnx --onnxrt --seed 9 --save-outputs b.json") == 0

    assert run("inspect diff a.json a.json") == 0
    capsys.readouterr()
    assert run("inspect diff a.json b.json --rtol=1e-3") == 1
    assert "sum/0:1" in capsys.readouterr().out


def test_inputs_and_outputs_of_a_part_become_the_inputs_of_the_next(folder):
    assert (
        run("run conv_net.onnx --onnxrt --onnx-outputs r0 --iterations 2 --save-inputs i.json --save-outputs o.json")
        == 0
    )

    assert run("data merge i.json o.json -o merged.json") == 0
    assert [sorted(feed) for feed in load_json("merged.json")] == [["image", "r0"]] * 2
    assert run("data concat merged.json merged.json -o twice.json") == 0
    assert len(load_json("twice.json")) == 4
    assert run("data to-input o.json -o part.json") == 0
    assert run("surgeon extract conv_net.onnx --inputs r0 -o rest.onnx") == 0
    assert run("run rest.onnx --onnxrt --load-inputs part.json") == 0


def test_two_calibration_caches_that_differ_exit_with_1(folder):
    save_json([{"image": models.random(4, 3, 8, 8, seed=n)} for n in range(3)], "data.json")

    code = run("calibrate conv_net.onnx --load-inputs data.json -o a.json --compare-with fp32")
    assert code in (0, 1)
    assert run("calibrate conv_net.onnx --load-inputs data.json -o b.json --algorithm minmax --compare-with fp32") in (
        0,
        1,
    )
    assert run("inspect calibration a.json") == 0
    assert run("inspect calibration a.json a.json") == 0
    assert run("inspect calibration a.json b.json --ratio 1") == 1
    assert run("sensitivity conv_net.onnx --calibration-cache a.json --load-inputs data.json --budget 0.5") == 0


# --- surgeon --------------------------------------------------------------------------------------------------------


def test_sanitizing_folds_constants_and_keeps_what_the_model_computes(folder, capsys):
    assert run("run foldable.onnx --onnxrt --save-outputs o.json") == 0
    assert run("surgeon sanitize foldable.onnx --fold-constants --cleanup --toposort -o clean.onnx") == 0

    assert len(onnx.load("clean.onnx").graph.node) < len(onnx.load("foldable.onnx").graph.node)
    assert run("run clean.onnx --onnxrt --load-outputs o.json") == 0


def test_weights_are_stripped_and_put_back(folder):
    assert run("run conv_net.onnx --onnxrt --save-outputs o.json") == 0
    Path("kept.txt").write_text("b2\n")
    assert run("surgeon weight-strip conv_net.onnx -o bare.onnx --exclude-list kept.txt") == 0

    assert Path("bare.onnx").stat().st_size < Path("conv_net.onnx").stat().st_size
    assert run("surgeon weight-reconstruct bare.onnx --original conv_net.onnx -o back.onnx") == 0
    assert run("run back.onnx --onnxrt --load-outputs o.json") == 0


def test_nodes_of_a_type_are_taken_out_and_pass_their_input_on(folder, caplog):
    proto = models.model("(float[4] x) => (float[4] y) { t = Relu(x)\n u = custom.CustomOp(t)\n y = Neg(u) }")
    models.Case(proto, {}, name="custom").write(folder)

    assert run("surgeon prune custom.onnx --remove-node-types CustomOp -o plain.onnx") == 0
    assert [node.op_type for node in onnx.load("plain.onnx").graph.node] == ["Relu", "Neg"]
    assert run("run plain.onnx --onnxrt") == 0
    assert run("surgeon prune custom.onnx --remove-node-types Custom0p -o plain.onnx") == 3
    assert "Did you mean 'CustomOp'?" in caplog.text


def test_a_node_is_inserted_where_named(folder):
    assert run("surgeon insert conv_net.onnx --op Clip --inputs logits --outputs logits --name cap -o capped.onnx") == 0
    assert "Clip" in [node.op_type for node in onnx.load("capped.onnx").graph.node]
    assert run("run capped.onnx --onnxrt") == 0


def test_the_model_itself_is_never_written_over(folder, caplog):
    assert run("surgeon sanitize conv_net.onnx -o conv_net.onnx") == 3
    assert "replace" in caplog.text


# --- debug ----------------------------------------------------------------------------------------------------------


def test_a_failing_model_is_reduced_by_a_command_and_what_it_left_is_sorted(folder, capsys):
    check = shlex.split(f"{sys.executable} -c __CODE__")
    code = "import onnx,sys; open('seen.txt','w').write('x'); sys.exit('erf' in [n.name for n in onnx.load('trtops_debug.onnx').graph.node])"
    words = shlex.split(
        "debug reduce transformer.onnx -o small.onnx --min-good good.onnx --artifacts seen.txt --art-dir sorted --iter-info i.json --check"
    )

    assert main([*words, *(code if word == "__CODE__" else word for word in check)]) == 0
    assert [node.op_type for node in onnx.load("small.onnx").graph.node] == ["Erf"]
    assert list(Path("sorted/bad").iterdir()) and list(Path("sorted/good").iterdir())
    assert not Path("trtops_debug.onnx").exists() and not Path("i.json").exists()
    assert json.loads(Path("trtops_debug_replay.json").read_text())
    out = capsys.readouterr().out
    assert "1 of" in out and re.search(r"Finished \d+ iteration\(s\) \| Passed: \d+/\d+ \| Pass Rate: [\d.]+%", out)


def test_a_model_that_does_not_fail_is_told_so(folder, capsys):
    assert run("debug reduce conv_net.onnx -o small.onnx --onnxrt --atol 1e-3 --rtol 1e-3") == 0
    assert "does not fail" in capsys.readouterr().out


def test_repeating_sorts_files_by_verdict_and_stops_as_told(folder, capsys):
    code = "import json,sys; n=json.load(open('i.json'))['iteration']; open('left.txt','w').write(str(n)); sys.exit(n == 2)"
    words = shlex.split("debug repeat --until bad --artifacts left.txt --art-dir kept --iter-info i.json --check")

    assert main([*words, sys.executable, "-c", code]) == 0
    assert len(list(Path("kept/good").iterdir())) == 2
    assert [path.read_text() for path in Path("kept/bad").iterdir()] == ["2"]
    out = capsys.readouterr().out
    assert "2 of 3 iterations passed" in out
    assert "[I] Finished 3 iteration(s) | Passed: 2/3 | Pass Rate: 66.66666666666667%" in out


def test_codes_and_expressions_tell_the_failure_that_is_meant(folder):
    failing = [sys.executable, "-c", "import sys; print('boom'); sys.exit(4)"]

    assert (
        main(["debug", "repeat", "--until", "1", "--exit-on-bad", "--ignore-fail-code", "4", "--check", *failing]) == 0
    )
    assert main(["debug", "repeat", "--until", "1", "--fail-regex", "boom", "--check", *failing]) == 0
    assert main(["debug", "repeat", "--until", "1", "--exit-on-bad", "--fail-regex", "boom", "--check", *failing]) == 1
    assert (
        main(
            [
                "debug",
                "repeat",
                "--until",
                "good",
                "--fail-regex",
                "bang",
                "--ignore-fail-code",
                "4",
                "--check",
                *failing,
            ]
        )
        == 0
    )


def test_engines_are_built_in_a_child_process_evaluated_and_sorted(folder, rtx):
    code = "import os,sys; sys.exit(not os.path.getsize('trtops_debug.engine') > 1000)"
    words = shlex.split(
        "debug build conv_net.onnx --until 2 --artifacts trtops_debug.engine --art-dir kept --builder-optimization-level 1 --check"
    )

    assert main([*words, sys.executable, "-c", code]) == 0
    assert len(list(Path("kept/good").iterdir())) == 2


def test_a_campaign_that_is_not_remembered_names_no_run(folder, capsys):
    assert run("debug build conv_net.onnx --onnxrt --num-iterations 2 --atol 1e-3 --rtol 1e-3") == 0
    page = capsys.readouterr().out
    assert "2 builds: 2 good, 0 bad, 0 crashed or hung." in page and "MLflow run" not in page


def test_layers_that_must_stay_in_fp32_are_found(folder, capsys):
    assert (
        run(
            "debug precision transformer.onnx --fp16 --atol 1e-2 --rtol 1e-2 -o mixed.onnx --save-layer-outputs layers.json"
        )
        == 0
    )

    assert onnx.load("mixed.onnx").graph.node
    assert json.loads(Path("layers.json").read_text())["tensors"]


def test_golden_outputs_of_other_data_are_refused_before_the_search(folder, capsys):
    assert run("run transformer.onnx --onnxrt --save-outputs good.json") == 0
    assert run("run transformer.onnx --onnxrt --seed 9 --save-outputs other.json") == 0

    assert run("debug precision transformer.onnx --golden-outputs other.json") == 1
    assert "does not give the golden outputs" in capsys.readouterr().out
    assert run("debug precision transformer.onnx --golden-outputs good.json --atol 1e-2 --rtol 1e-2") == 0


def test_an_inaccurate_engine_is_followed_tensor_by_tensor(folder, capsys):
    assert run("debug accuracy transformer.onnx --emulate bf16 --atol 1e-5 --rtol 1e-5") == 1
    assert run("debug accuracy conv_net.onnx --onnxrt --atol 1e-3 --rtol 1e-3") == 0


def test_an_unknown_part_of_the_line_is_wrong_usage_with_the_near_option(capsys):
    assert run("run m.onnx --onnxrt --fp61") == 2
    assert "Did you mean '--fp16'?" in capsys.readouterr().err
    assert run("inspect modle m.onnx") == 2
    assert "Did you mean 'model'?" in capsys.readouterr().err
    assert run("run m.onnx --onnxrt --atol much") == 2
    assert "expected a number" in capsys.readouterr().err
    assert run("convert m.onnx --convert-to tr") == 2
    assert "Did you mean 'trt'?" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_an_error_of_ours_and_not_a_traceback(folder, caplog):
    assert run("run nowhere.onnx --onnxrt") == 3
    assert "nowhere.onnx" in caplog.text and "Traceback" not in caplog.text


def test_the_real_script_works_and_is_silent_when_told(folder):
    script = Path(sys.executable).with_name("trtops")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "trtops.cli"]

    done = subprocess.run([*command, "run", "identity.onnx", "--onnxrt", "--silent"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run(
        [*command, "run", "identity.onnx", "--onnxrt", "--log-file", "log.txt", "-q"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr
    assert Path("log.txt").exists()


# --- what is shown, and what is missing -----------------------------------------------------------------------------


def test_heat_maps_that_cannot_be_shown_for_want_of_a_screen_are_told_of(folder, caplog):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")

    assert run("run identity.onnx --onnxrt --onnx --show-heatmaps --show-error-metrics-plot") == 0
    told = [
        record.getMessage() for record in caplog.records if "is not shown: there is no screen" in record.getMessage()
    ]
    assert len(told) == 3


@pytest.mark.parametrize(
    "line",
    [
        "run model.h5 --tf",
        "run model.pb --onnxrt",
        "convert model.keras -o model.onnx",
        "inspect model model.graphdef --shape-inference",
    ],
)
def test_every_way_to_a_tensorflow_model_says_what_to_install(line, folder, caplog):
    Path(line.split()[1 if line[0] != "i" else 2]).write_bytes(b"")

    assert run(line) == 3
    assert "pip install tensorflow tf2onnx" in caplog.text


def test_a_model_is_drawn_into_a_page_and_served_until_an_interruption(folder, capsys, monkeypatch):
    from trtops.ops.model import graph

    assert run("inspect model conv_net.onnx --save-visual net.html --shape-inference") == 0
    assert Path("net.html").read_text().count("<g id=n") > 5
    assert run("inspect model conv_net.onnx --visual --visual-port 70000") in (2, 3)

    def interrupted(page: str, port: int, ready: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(graph, "serve_page", interrupted)
    assert run("inspect model conv_net.onnx --visual") == 0
    assert run("convert conv_net.onnx -o e.ort") == 0
    assert run("inspect model e.ort --save-visual e.html") == 2


def test_a_tensorrt_network_is_drawn_as_well(folder, rtx):
    assert run("inspect model conv_net.onnx --display-as trt --save-visual net.html") == 0
    assert "CONVOLUTION" in Path("net.html").read_text()


def test_what_an_engine_s_tensors_held_is_for_engines(folder, capsys):
    assert run("inspect model conv_net.onnx --combine-tensor-info saved.json") == 2
    assert "TensorRT engine" in capsys.readouterr().err


def test_replay_files_of_polygraphy_are_told_and_compared_in_its_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    info = {"dtype": "DataType.FLOAT", "strides": [2, 1], "vectorized_dim": -1, "components_per_element": 1}
    for path, tactic in (("good/a.json", 1), ("good/b.json", 2), ("bad/c.json", 3)):
        algorithm = {
            "implementation": 9,
            "tactic": tactic,
            "inputs": [info | {"polygraphy_class": "TensorInfo"}],
            "outputs": [],
        }
        file = tmp_path / "replays" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        replay = {"replay": {"conv": algorithm | {"polygraphy_class": "Algorithm"}}} | {
            "polygraphy_class": "TacticReplayData"
        }
        file.write_text(json.dumps(replay))
    text = "(Implementation: 9, Tactic: 3) | Inputs: (TensorInfo(DataType.FLOAT, (2, 1), -1, 1),) | Outputs: ()"

    assert main(["inspect", "tactics", "replays/bad/c.json"]) == 0
    assert f"Layer: conv\n    Algorithm: {text}\n" in capsys.readouterr().out
    assert main(["inspect", "diff-tactics", "--dir", "replays"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "Loaded 2 good tactic replays.\nLoaded 1 bad tactic replays.\nFound potentially bad tactics:\n"
    )
    assert f"Layer: conv\n    Algorithms: ['{text}']\n" in said
