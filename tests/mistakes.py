"""The fifteen usual mistakes: what each face of trtops prints, and the exit code.

``tests/cli/test_mistakes.py`` makes each; a page of the documentation lists them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """One mistake."""

    title: str  # what was done wrongly
    says: str  # words that the command and the exception have in common
    code: int  # exit code of the command
    error: str  # what it raises in Python; empty for one that gives a bad verdict
    command: str  # the line for trtops
    python: str  # an expression that makes it


_TABLE = """
The model is not there | missing.onnx does not exist | 3 | InvalidModelError
    convert missing.onnx --convert-to ort --experiment e
    convert('missing.onnx', tracker=tracker)
The file is no ONNX model | text.onnx | 3 | InvalidModelError
    convert text.onnx --convert-to ort --experiment e
    convert('text.onnx', tracker=tracker)
An option is mistyped | expriment | 2 | TypeError
    convert model.onnx --convert-to ort --expriment e
    convert('model.onnx', tracker=tracker, expriment='e')
There is no such precision | fp17 | 2 | ConfigError
    gate model.onnx --precisions fp17
    BuildConfig(precision='fp17')
The data is not there | nowhere.npz | 3 | TrtopsError
    convert model.onnx --convert-to ort --experiment e --load-inputs nowhere.npz
    convert('model.onnx', ConvertConfig(check=CheckConfig(data='nowhere.npz')), tracker=tracker)
The data lacks an input | image | 3 | InputError
    convert model.onnx --convert-to ort --experiment e --load-inputs other_name.npz
    convert('model.onnx', ConvertConfig(check=CheckConfig(data='other_name.npz')), tracker=tracker)
The data has another shape | shape | 3 | InputError
    convert model.onnx --convert-to ort --experiment e --load-inputs other_shape.npz
    convert('model.onnx', ConvertConfig(check=CheckConfig(data='other_shape.npz')), tracker=tracker)
TensorRT is not installed | pip install "trtops[trt]" | 3 | BackendUnavailableError
    convert model.onnx --experiment e
    convert('model.onnx', ConvertConfig(build=BuildConfig().on_backend('tensorrt')), tracker=tracker)
There is no such run | abcdef12 | 3 | RunNotFoundError
    runs promote abcdef12
    promote('abcdef12', tracker=tracker)
The folder has no store | There is no store in | 3 | StoreError
    runs list --store nowhere
    existing_tracker('nowhere')
A number is out of range | parallel | 2 | ConfigError
    debug build model.onnx --onnxrt --until 2 --experiment e --parallel 0
    DebugBuildConfig(parallel=0)
What takes a number got a word | many | 2 | FormatError
    debug build model.onnx --onnxrt --until 2 --experiment e --parallel many
    DebugBuildConfig.from_json('{"parallel": "many"}')
There is no such algorithm | entropie | 2 | FormatError
    calibrate model.onnx --load-inputs images.npz --algorithm entropie
    CalibrateConfig.from_json('{"algorithm": "entropie"}')
The policy is not there | policy.yaml | 3 | TrtopsError
    gate model.onnx --policy policy.yaml
    read_policy('policy.yaml')
The outputs differ, which is a verdict and no error | bad | 1 |
    compare other.onnx model.onnx --experiment e
    compare('other.onnx', 'model.onnx', tracker=tracker).verdict
"""


def _parse(title: str, command: str, python: str) -> Mistake:
    title, says, code, error = (part.strip() for part in title.split("|"))
    return Mistake(title, says, int(code), error, command.strip(), python.strip())


_LINES = _TABLE.strip().splitlines()
MISTAKES = tuple(_parse(*_LINES[start : start + 3]) for start in range(0, len(_LINES), 3))
"""The usual mistakes."""
