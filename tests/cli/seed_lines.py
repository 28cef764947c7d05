"""Command lines of the documents that the project came from, and a folder in which they can run."""

import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import models, seeds
from trtops.comparator import RunResults
from trtops.json import save_json

SEEDS = seeds.FOLDER

_VARIABLES = {
    "model": ("model.onnx",),
    "model_name": ("model",),
    "bs": ("1", "8"),
    "precision": ("fp32", "fp16", "int8"),
}


class SeedLine(NamedTuple):
    """A command line: the number of its document, and the words behind the command's name."""

    seed: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.seed} trtops {shlex.join(self.words)}"


def lines() -> list[SeedLine]:
    """Every command line of the documents, once each, loops unrolled."""
    unique_lines: dict[SeedLine, None] = {}
    for path in sorted(SEEDS.glob("*.txt")):
        for text in _commands(path.read_text(encoding="utf-8")):
            for words in _unrolled(text):
                unique_lines[SeedLine(path.name[:3], tuple(words))] = None
    return list(unique_lines)


def _commands(text: str) -> list[str]:
    """Command lines of a document, continued lines joined, but for commands named in passing."""
    commands = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        stripped = line.strip().removeprefix("timeout 300 ")
        if stripped.startswith("polygraphy "):
            commands.append(stripped)
        elif "`" in line and not stripped.startswith("```"):
            commands += [span for span in re.findall(r"`(polygraphy [^`]+)`", line)]
    return [line for line in commands if line not in ("polygraphy run", "polygraphy inspect model", "polygraphy debug")]


def _unrolled(text: str) -> Iterator[list[str]]:
    text = re.sub(r"\s+(\|\||#|--check-)\s.*$", "", text) if "||" in text or " #" in text else text
    text = re.sub(r"\$\(basename \$model\)", "model", text)
    used = [name for name in _VARIABLES if re.search(rf"\$\{{?{name}\b", text)]
    for values in itertools.product(*(_VARIABLES[name] for name in used)):
        line = text.replace("<command>", "doctor")
        for name, value in zip(used, values):
            line = re.sub(rf"\$\{{{name}\}}|\${name}\b", value, line)
        for file in ("model.onnx", "model.engine") if "*.onnx/*.engine" in line else ("",):
            words = shlex.split(line.replace("*.onnx/*.engine", file))[1:]
            # Default file names have the project's name in them.
            ours = (re.sub(r"^polygraphy_(debug|capability|artifacts)", r"trtops_\1", word) for word in words)
            yield ["trtops" if word == "polygraphy" else word for word in ours]


def needs_tensorrt(words: tuple[str, ...]) -> bool:
    """Whether a line cannot be carried out without TensorRT."""
    no_builds = (("inspect", "diff-tactics"), ("debug", "diff-tactics"), ("inspect", "tactics"))
    if words[-1] == "-h" or "--gen-script" in words or words[:2] in no_builds:
        return False
    if words[:2] in (("debug", "build"), ("debug", "reduce")):
        return True
    if words[0] == "convert":
        return "--fp-to-fp16" not in words
    named = bool({"--trt", "--trt-engine", "--trt-network-func"} & set(words))
    return named or "--convert-to trt" in " ".join(words) or words[-1].endswith(".engine")


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
    feed = small.feed if seed == "000" else {"input": image}
    for name in ("inputs", "real_data"):
        save_json([dict(feed)], str(folder / f"{name}.json"))
    save_json([{"X": models.random(1, 2, 28, 28)}], str(folder / "custom_inputs.json"))
    (folder / "results").mkdir()
    names = ("inference_results", "outputs", "expected", "actual", "golden", "fp32_baseline", "onnxrt_outputs")
    for name in (*names, "results/model_fp32", "results/model_fp16", "outputs_fp32"):
        saved = RunResults()
        outputs = {"y": small.feed["x"]} if name == "outputs_fp32" else {"output1": models.random(1, 10)}
        saved.add([outputs], runner_name="onnxrt-runner-N0")
        saved.save(str(folder / f"{name}.json"))
    _write_scripts(folder, seed)
    names = ("replay.json", "build1.json", "tactics.json", "tactics.cache", "replays/good/replay_N0.json")
    for name, tactic in (dict.fromkeys(names, 1) | {"build2.json": 2, "bad_tactics.json": 2}).items():
        write_replay(folder / name, tactic)


def _write_scripts(folder: Path, seed: str) -> None:
    feed = "import numpy as np\n\n\ndef load_data():\n    for _ in range(2):\n        yield {{{}}}\n"
    small, usual = '"x": np.ones((1, 1, 2, 2), np.float32)', '"input": np.ones((1, 3, 224, 224), np.float32)'
    feeds = {"000": small, "001": '"X": np.ones((1, 2, 28, 28), np.float32)'}
    (folder / "data_loader.py").write_text(feed.format(feeds.get(seed, usual)))
    (folder / "calibration_data.py").write_text(feed.format(usual))
    (folder / "example.py").write_text(
        "from trtops import func\nfrom trtops.backend.trt import CreateNetwork\n\n\n"
        "@func.extend(CreateNetwork())\ndef create_network(builder, network):\n    import tensorrt as trt\n\n"
        "    given = network.add_input(name='x', shape=(2, 4), dtype=trt.float32)\n"
        "    network.mark_output(network.add_identity(given).get_output(0))\n\n\nload_network = create_network\n"
    )
    calibration = folder.parents[2] / "api" / "04_int8_calibration_in_tensorrt"
    calibration.mkdir(parents=True)
    (calibration / "example.py").write_text(feed.format(small).replace("load_data", "calib_data"))


def write_replay(path: Path, tactic: int) -> None:
    """Write a replay of one layer as Polygraphy does."""
    info = {"dtype": "DataType.FLOAT", "strides": [4, 1], "vectorized_dim": -1, "components_per_element": 1}
    algorithm = {"implementation": 1, "tactic": tactic, "inputs": [info], "outputs": [info]}
    replay = {"conv1": {**algorithm, "polygraphy_class": "Algorithm"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"replay": replay, "polygraphy_class": "TacticReplayData"}))
