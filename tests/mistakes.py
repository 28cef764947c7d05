"""The fifteen usual mistakes: what each face of trtops prints, and the exit code.

``tests/cli/test_mistakes.py`` makes each; a page of the documentation lists them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """One mistake."""

    what: str  # what was done wrongly
    says: str  # words that the command and the exception have in common
    code: int  # exit code of the command
    command: str  # the line for trtops
    python: str  # an expression that makes it
    error: str  # what it raises; empty for one that gives a bad verdict


MISTAKES = (
    Mistake(
        "The model is not there",
        "missing.onnx does not exist",
        3,
        "convert missing.onnx --convert-to ort --experiment e",
        "convert('missing.onnx', tracker=tracker)",
        "InvalidModelError",
    ),
    Mistake(
        "The file is no ONNX model",
        "text.onnx",
        3,
        "convert text.onnx --convert-to ort --experiment e",
        "convert('text.onnx', tracker=tracker)",
        "InvalidModelError",
    ),
    Mistake(
        "An option is mistyped",
        "expriment",
        2,
        "convert model.onnx --convert-to ort --expriment e",
        "convert('model.onnx', tracker=tracker, expriment='e')",
        "TypeError",
    ),
    Mistake(
        "There is no such precision",
        "fp17",
        2,
        "gate model.onnx --precisions fp17",
        "BuildConfig(precision='fp17')",
        "ConfigError",
    ),
    Mistake(
        "The data is not there",
        "nowhere.npz",
        3,
        "convert model.onnx --convert-to ort --experiment e --load-inputs nowhere.npz",
        "convert('model.onnx', ConvertConfig(check=CheckConfig(data='nowhere.npz')), tracker=tracker)",
        "TrtopsError",
    ),
    Mistake(
        "The data lacks an input",
        "image",
        3,
        "convert model.onnx --convert-to ort --experiment e --load-inputs other_name.npz",
        "convert('model.onnx', ConvertConfig(check=CheckConfig(data='other_name.npz')), tracker=tracker)",
        "InputError",
    ),
    Mistake(
        "The data has another shape",
        "shape",
        3,
        "convert model.onnx --convert-to ort --experiment e --load-inputs other_shape.npz",
        "convert('model.onnx', ConvertConfig(check=CheckConfig(data='other_shape.npz')), tracker=tracker)",
        "InputError",
    ),
    Mistake(
        "TensorRT is not installed",
        "pip install tensorrt",
        3,
        "convert model.onnx --experiment e",
        "convert('model.onnx', ConvertConfig(build=BuildConfig().on_backend('tensorrt')), tracker=tracker)",
        "BackendUnavailableError",
    ),
    Mistake(
        "There is no such run",
        "abcdef12",
        3,
        "runs promote abcdef12",
        "promote('abcdef12', tracker=tracker)",
        "RunNotFoundError",
    ),
    Mistake(
        "The folder has no store",
        "There is no store in",
        3,
        "runs list --store nowhere",
        "existing_tracker('nowhere')",
        "StoreError",
    ),
    Mistake(
        "A number is out of range",
        "parallel",
        2,
        "debug build model.onnx --onnxrt --until 2 --experiment e --parallel 0",
        "DebugBuildConfig(parallel=0)",
        "ConfigError",
    ),
    Mistake(
        "What takes a number got a word",
        "many",
        2,
        "debug build model.onnx --onnxrt --until 2 --experiment e --parallel many",
        'DebugBuildConfig.from_json(\'{"parallel": "many"}\')',
        "FormatError",
    ),
    Mistake(
        "There is no such algorithm",
        "entropie",
        2,
        "calibrate model.onnx --load-inputs images.npz --algorithm entropie",
        'CalibrateConfig.from_json(\'{"algorithm": "entropie"}\')',
        "FormatError",
    ),
    Mistake(
        "The policy is not there",
        "policy.yaml",
        3,
        "gate model.onnx --policy policy.yaml",
        "read_policy('policy.yaml')",
        "TrtopsError",
    ),
    Mistake(
        "The outputs differ, which is a verdict and no error",
        "bad",
        1,
        "compare other.onnx model.onnx --experiment e",
        "compare('other.onnx', 'model.onnx', tracker=tracker).verdict",
        "",
    ),
)
