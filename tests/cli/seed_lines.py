"""Command lines of the documents that the project came from, and a folder in which they can run."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests import models, seeds
from trtops.comparator import RunResults
from trtops.json import save_json
from trtops.tactics.record import read_record

SEEDS = seeds.FOLDER

_VARIABLES = {
    "model": ("model.onnx",),
    "model_name": ("model",),
    "bs": ("1", "8"),
    "precision": ("fp32", "fp16", "int8"),
}


@dataclass(frozen=True)
class SeedLine:
    """One command line.

    Attributes:
        seed: The document's number.
        words: The words behind the command's name.
    """

    seed: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.seed} trtops {shlex.join(self.words)}"


def decoded(path: Path) -> str:
    """A document's text; one was UTF-8 read as Windows-1254 and saved as UTF-8 again."""
    text = path.read_text(encoding="utf-8")
    if "Ã¥" not in text and "å¸¸" not in text:
        return text
    data = bytearray()
    for character in text:
        try:
            data += character.encode("cp1254")
        except UnicodeEncodeError:
            data += bytes([ord(character)]) if ord(character) < 256 else b"?"
    return data.decode("utf-8", "replace")


def lines() -> list[SeedLine]:
    """Every command line of the documents, once each, loops unrolled."""
    found: dict[SeedLine, None] = {}
    for path in sorted(SEEDS.glob("*.txt")):
        for text in commands(decoded(path)):
            for words in _unrolled(text):
                found[SeedLine(path.name[:3], tuple(words))] = None
    return list(found)


def commands(text: str) -> list[str]:
    """Command lines of a document as they stand there, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = []
    for line in joined.splitlines():
        stripped = line.strip().removeprefix("timeout 300 ")
        if stripped.startswith("polygraphy "):
            found.append(stripped)
        elif "`" in line and not stripped.startswith("```"):
            found += [span for span in re.findall(r"`(polygraphy [^`]+)`", line)]
    return [line for line in found if not _is_prose(line)]


def _is_prose(line: str) -> bool:
    """Placeholders, and commands named in passing rather than written out."""
    return line in ("polygraphy run", "polygraphy inspect model", "polygraphy debug")


def _unrolled(text: str) -> list[list[str]]:
    text = re.sub(r"\s+(\|\||#|--check-)\s.*$", "", text) if "||" in text or " #" in text else text
    text = re.sub(r"\$\(basename \$model\)", "model", text)
    used = [name for name in _VARIABLES if re.search(rf"\$\{{?{name}\b", text)]
    lines = []
    for values in itertools.product(*(_VARIABLES[name] for name in used)):
        line = text
        for name, value in zip(used, values):
            line = re.sub(rf"\$\{{{name}\}}|\${name}\b", value, line)
        for one in _alternatives(line):
            one = one.replace("<command>", "doctor")
            lines.append(["trtops" if word == "polygraphy" else _ours(word) for word in shlex.split(one)][1:])
    return lines


def _alternatives(line: str) -> list[str]:
    if "*.onnx/*.engine" in line:
        return [line.replace("*.onnx/*.engine", "model.onnx"), line.replace("*.onnx/*.engine", "model.engine")]
    return [line]


def _ours(word: str) -> str:
    """Default file names have the project's name in them."""
    return re.sub(r"^polygraphy_(debug|capability|artifacts)", r"trtops_\1", word)


def needs_tensorrt(words: tuple[str, ...]) -> bool:
    """Whether a line cannot be carried out without TensorRT."""
    text = " ".join(words)
    if words[-1] == "-h" or words[:2] in (
        ("inspect", "diff-tactics"),
        ("debug", "diff-tactics"),
        ("inspect", "tactics"),
    ):
        return False
    if "--gen-script" in words:
        return False
    if words[:2] in (("debug", "build"), ("debug", "reduce")):
        return True
    if words[0] == "convert":
        return "--fp-to-fp16" not in words
    trt = "--trt" in words or "--trt-engine" in words
    return trt or "--convert-to trt" in text or "--trt-network-func" in words or words[-1].endswith(".engine")


def write_folder(folder: Path, seed: str) -> None:
    """Everything that the lines of a document name."""
    net = models.model(
        """(float[n,3,224,224] input) => (float[n,10] output1, float[n,4] output2, float[n,4] final_output) {
            [conv1] conv1_output = Conv<strides = [32, 32]>(input, w)
            [relu1] relu1_output = Relu(conv1_output)
            [sensitive_layer] intermediate = GlobalAveragePool(relu1_output)
            output2 = Flatten(intermediate)
            [problematic_layer] output1 = MatMul(output2, h)
            final_output = Identity(output2)
        }""",
        {"w": models.random(4, 3, 3, 3, seed=1), "h": models.random(4, 10, seed=2)},
    )
    image = models.random(1, 3, 224, 224)
    (folder / "engines").mkdir()
    models.Case(net, {"input": image}, name="model").write(folder)
    for name in ("clean", "reduced", "resnet50", "large_model", "huge_model", "dynamic_model"):
        shutil.copy(folder / "model.onnx", folder / f"{name}.onnx")
    two = models.model(
        "(float[1,3,224,224] image, float[1,1,224,224] mask) => (float[1,3,224,224] y) { y = Mul(image, mask) }"
    )
    models.Case(two, {}, name="multi_input_model").write(folder)
    models.identity().write(folder)
    models.identity().write(folder, "identity_fp16")
    models.dynamic_identity().write(folder)
    if seed == "000":
        batched = models.model("(float[n,3,28,28] X) => (float[n,3,28,28] Y) { Y = Identity(X) }")
        models.Case(batched, {}, name="dynamic_identity").write(folder)
    for name in ("model", "identity", "dynamic_identity", "trtops_debug", "engines/model"):
        (folder / f"{name}.engine").write_bytes(b"not an engine")
    small = models.identity()
    _write_data(folder, small.feed if seed == "000" else {"input": image})
    _write_outputs(folder, small.feed["x"])
    _write_scripts(folder, seed)
    _write_tactics(folder)


def _write_data(folder: Path, feed: models.Arrays) -> None:
    for name in ("inputs", "real_data"):
        save_json([dict(feed)], str(folder / f"{name}.json"))
    save_json([{"X": models.random(1, 2, 28, 28)}], str(folder / "custom_inputs.json"))


def _write_outputs(folder: Path, y: np.ndarray) -> None:
    identity = RunResults()
    identity.add([{"y": y}], runner_name="onnxrt-runner-N0")
    identity.save(str(folder / "outputs_fp32.json"))
    outputs = RunResults()
    outputs.add([{"output1": models.random(1, 10)}], runner_name="onnxrt-runner-N0")
    (folder / "results").mkdir()
    names = ("inference_results", "outputs", "expected", "actual", "golden", "fp32_baseline", "onnxrt_outputs")
    for name in (*names, "results/model_fp32", "results/model_fp16"):
        outputs.save(str(folder / f"{name}.json"))


_FEEDS = {"000": '"x": np.ones((1, 1, 2, 2), np.float32)', "001": '"X": np.ones((1, 2, 28, 28), np.float32)'}


def _write_scripts(folder: Path, seed: str) -> None:
    feed = "import numpy as np\n\n\ndef load_data():\n    for _ in range(2):\n        yield {{{}}}\n"
    usual = '"input": np.ones((1, 3, 224, 224), np.float32)'
    (folder / "data_loader.py").write_text(feed.format(_FEEDS.get(seed, usual)))
    (folder / "calibration_data.py").write_text(feed.format(usual))
    (folder / "example.py").write_text(
        "from trtops import func\nfrom trtops.backend.trt import CreateNetwork\n\n\n"
        "@func.extend(CreateNetwork())\ndef create_network(builder, network):\n    import tensorrt as trt\n\n"
        "    given = network.add_input(name='x', shape=(2, 4), dtype=trt.float32)\n"
        "    network.mark_output(network.add_identity(given).get_output(0))\n\n\nload_network = create_network\n"
    )
    calibration = folder.parents[2] / "api" / "04_int8_calibration_in_tensorrt"
    calibration.mkdir(parents=True)
    script = feed.format(_FEEDS["000"]).replace("load_data", "calib_data")
    (calibration / "example.py").write_text(script)


def _write_tactics(folder: Path) -> None:
    info = {"dtype": "DataType.FLOAT", "strides": [4, 1], "vectorized_dim": -1, "components_per_element": 1}

    def replay(tactic: int) -> dict[str, object]:
        algorithm = {"implementation": 1, "tactic": tactic, "inputs": [info], "outputs": [info]}
        return {
            "replay": {"conv1": {**algorithm, "polygraphy_class": "Algorithm"}},
            "polygraphy_class": "TacticReplayData",
        }

    import json

    for name, tactic in (("replay", 1), ("build1", 1), ("build2", 2), ("bad_tactics", 2), ("tactics", 1)):
        (folder / f"{name}.json").write_text(json.dumps(replay(tactic)))
    shutil.copy(folder / "tactics.json", folder / "tactics.cache")
    (folder / "replays" / "good").mkdir(parents=True)
    shutil.copy(folder / "replay.json", folder / "replays" / "good" / "replay_N0.json")
    assert read_record(folder / "replay.json").choices
