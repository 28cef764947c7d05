"""Model lists: what is wrong with one is said with its line, all at once."""

from pathlib import Path

import pytest

from tests import models
from trtops import errors
from trtops.ops.engines.model_list import read_model_list


def write(folder: Path, text: str) -> Path:
    file = folder / "models.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def complaints(folder: Path, text: str) -> list[str]:
    """What is said of a list, without the folder."""
    with pytest.raises(errors.FormatError) as raised:
        read_model_list(write(folder, text))
    return str(raised.value).replace(f"{folder}/", "").splitlines()


def test_defaults_are_merged_and_paths_absolute(tmp_path: Path):
    read = read_model_list(
        write(
            tmp_path,
            """
defaults:
  precisions: [fp32, fp16]
  data: images
  tolerances: {fp16: {atol: 0.1}, int8: {atol: 3}}
  policy: {bad: report}
models:
  - model: a.onnx
  - model: /elsewhere/b.onnx
    precisions: [int8]
    backends: [tensorrt]
    data: loader.py:load
    tolerances: {int8: {atol: .inf}}
    policy: {timeout_minutes: 2}
    tensorrt: {workspace_bytes: 4096}
    input_shapes: {x: [1, 3, 32, 32]}
""",
        )
    )

    first, second = read.models
    assert (first.model, first.precisions, first.data) == (f"{tmp_path}/a.onnx", ("fp32", "fp16"), f"{tmp_path}/images")
    assert (second.model, second.data) == ("/elsewhere/b.onnx", f"{tmp_path}/loader.py:load")
    assert (second.policy.bad, second.policy.timeout_minutes) == ("report", 2)
    assert second.tolerances["fp16"].atol == 0.1 and second.tolerances["int8"].atol == float("inf")
    config = second.config("int8", "tensorrt")
    assert config.check.input_shapes == {"x": (1, 3, 32, 32)}
    assert config.build.options.to_dict()["workspace_bytes"] == 4096
    assert (config.timeout_seconds, config.isolated, config.check.tolerances) == (120, True, second.tolerances["int8"])
    assert read.lines == (8, 9)


def test_all_errors_are_reported_with_lines(tmp_path: Path):
    assert complaints(
        tmp_path,
        """defaults:
  precisions: [fp32, fp61]
modles: 3
models:
  - model: a.onnx
    precisons: [fp16]
  - model: b.onnx
    iterations: "3"
    tolerances:
      fp16: {atol: -1}
    policy:
      bad: warn
  - model: c.onnx
    tolerances:
      f16: {atol: 1}
      fp32: {atoll: 1}
  - 3
  - data: x
""",
    ) == [
        "models.yaml:2: precisions.1: Input should be 'fp32', 'fp16', 'bf16', 'fp8' or 'int8' (found 'fp61')",
        "models.yaml:3: unknown key 'modles'. Did you mean 'models'?",
        "models.yaml:6: unknown key 'precisons'.",
        "models.yaml:8: iterations: Input should be a valid integer (found '3')",
        "models.yaml:10: tolerances.fp16: Tolerances.atol: found -1.0; expected 0 or more",
        "models.yaml:12: policy.bad: Input should be 'fail' or 'report' (found 'warn')",
        "models.yaml:15: tolerances.f16: Input should be 'fp32', 'fp16', 'bf16', 'fp8' or 'int8' (found 'f16')",
        "models.yaml:16: unknown key 'tolerances.fp32.atoll'.",
        "models.yaml:17: expected keys and values, such as 'model: a.onnx' (found 3).",
        "models.yaml:18: model: Field required",
    ]


BOMB = "\n".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10 if i else ['1'] * 10)}]" for i in range(12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "models.yaml: its aliases stand for more values"),
        ("models: [a", "models.yaml:1: not YAML: "),
        ("models:\n  - {model: a, model: b}", "models.yaml:2: 'model' is here twice"),
        ("models:\n  - model: 2024-01-01", "models.yaml:2: '2024-01-01' is read as a timestamp. Put it in quotes."),
        ("models:\n  - model: !!python/object/apply:os.system [x]", "models.yaml:2: model: Input should be a valid"),
        ("models: 3", "models.yaml:1: expected a mapping with a list called 'models'."),
        ("- a", "models.yaml:1: expected a mapping with a list called 'models'."),
        ("models:\n  - model: a\n    precisions: []", "models.yaml:2: precisions is empty"),
        ("defaults: {model: a}\nmodels: []", "models.yaml:1: expected keys and values like a model's"),
        ("models:\n  - &a [*a, *a]", "models.yaml: its aliases stand for more values than a file of this kind has."),
        ("a: \x07", "models.yaml: not YAML: "),
    ],
)
def test_invalid_lists_are_refused_with_lines(text: str, message: str, tmp_path: Path):
    assert complaints(tmp_path, text)[0].startswith(message)


def test_patterns_expand_to_files_and_builds(tmp_path: Path):
    folder = tmp_path / "with [brackets] and *"
    for name in ("nets/a.onnx", "nets/deep/b.onnx", "nets/c.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    listed = "models:\n  - model: nets/**/*.onnx\n    precisions: [fp32, fp16]\n    backends: [onnxruntime, tensorrt]\n"

    builds = read_model_list(write(folder, listed)).builds()

    assert [(Path(b.model).name, b.backend, b.precision, b.missing) for b in builds] == [
        (name, backend, precision, "")
        for name in ("a.onnx", "b.onnx")
        for backend in ("onnxruntime", "tensorrt")
        for precision in ("fp32", "fp16")
    ]
    assert builds[0].location.endswith("models.yaml:2")


def test_missing_files_are_reported_with_lines(tmp_path: Path):
    models.conv_net().write(tmp_path)
    (tmp_path / "labels.npy").touch()
    listed = """models:
  - model: conv_nett.onnx
  - model: conv_net.onnx
    labels: lables.npy
    data: there/data.npz
    calibration_data: load.py:data
  - model: x*.onnx
"""
    problems = read_model_list(write(tmp_path, listed)).problems()

    assert [problem.replace(f"{tmp_path}/", "") for problem in problems] == [
        "models.yaml:2: model: conv_nett.onnx matches no file.",
        "models.yaml:3: data: there/data.npz does not exist. labels: lables.npy does not exist. "
        "calibration_data: load.py does not exist.",
        "models.yaml:7: model: x*.onnx matches no file.",
    ]
