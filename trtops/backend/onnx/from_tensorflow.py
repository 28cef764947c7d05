"""ONNX models from TensorFlow and Keras files, converted by tf2onnx in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtops import errors
from trtops.backend.onnx.model import read_proto
from trtops.extras import require
from trtops.system.allowed import check_file
from trtops.system.processes import temporary_prefix

if TYPE_CHECKING:
    import onnx

_ENDS_OF_GRAPH = """
import json, sys
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

content = open(sys.argv[1], "rb").read()
saver = ""
if sys.argv[1].endswith(".meta"):
    meta = MetaGraphDef.FromString(content)
    nodes, saver = meta.graph_def.node, meta.saver_def.restore_op_name.rpartition("/")[0]
else:
    nodes = GraphDef.FromString(content).node
nodes = [node for node in nodes if not saver or not node.name.startswith(saver + "/")]
read = {name.lstrip("^").split(":")[0] for node in nodes for name in node.input}
no_outputs = {
    "Placeholder", "PlaceholderV2", "Const", "NoOp", "Assert", "Assign", "AssignVariableOp", "ReadVariableOp",
    "VarHandleOp", "VarIsInitializedOp", "VariableV2",
}
inputs = [node.name + ":0" for node in nodes if node.op in ("Placeholder", "PlaceholderV2")]
outputs = [node.name + ":0" for node in nodes if node.name not in read and node.op not in no_outputs]
print(json.dumps({"inputs": inputs, "outputs": outputs}))
"""


@dataclass(frozen=True)
class OnnxFromTensorFlow:
    """Converts a Keras file, a frozen graph, or a folder with a saved model or a checkpoint."""

    path: str | Path
    kind: Literal["keras", "frozen", "ckpt"]
    checkpoint: str | None = None  # its name without extension, in the folder; without it the folder is a saved model
    # Such as ``scores:0``. Frozen graphs and checkpoints have none; their default is the tensors that nothing reads,
    # and their inputs are their placeholders.
    outputs: Sequence[str] | None = None
    opset: int | None = None

    def __call__(self) -> onnx.ModelProto:
        """Convert the model; InvalidModelError if it does not exist, or tf2onnx cannot convert it."""
        require("tensorflow", "tf2onnx")
        if not Path(self.path).exists():
            raise errors.InvalidModelError(f"{self.path} does not exist; expected a TensorFlow model.")
        check_file(self.path, "TensorFlow model")  # a Lambda layer of Keras is code that gets executed
        path = os.path.abspath(self.path)
        if self.kind == "keras":
            source = ["--keras", path]
        elif self.kind == "frozen":
            source = ["--graphdef", path]
        elif self.checkpoint is not None:
            source = ["--checkpoint", os.path.join(path, f"{self.checkpoint}.meta")]
        else:
            source = ["--saved-model", path]
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("tensorflow")) as folder:
            output = Path(folder, "model.onnx")
            command = ["-m", "tf2onnx.convert", *source, "--output", str(output)]
            outputs = list(self.outputs or ())
            if self.kind == "frozen" or self.checkpoint is not None:
                done = _run_python(["-c", _ENDS_OF_GRAPH, source[1]], folder)
                if done.returncode:
                    raise errors.InvalidModelError(
                        f"TensorFlow cannot read {self.path}:\n{done.stderr[-2000:].strip()}"
                    )
                ends = json.loads(done.stdout.splitlines()[-1])
                command += ["--inputs", ",".join(ends["inputs"])]
                outputs = [name if ":" in name else f"{name}:0" for name in outputs or ends["outputs"]]
            if outputs:
                command += ["--outputs", ",".join(outputs)]
            if self.opset is not None:
                command += ["--opset", str(self.opset)]
            done = _run_python(command, folder)
            if done.returncode or not output.exists():
                raise errors.InvalidModelError(f"tf2onnx cannot convert {self.path}:\n{done.stderr[-2000:].strip()}")
            return read_proto(output)


def _run_python(arguments: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an empty folder: it imports modules from there first, and another may have a ``tensorflow.py``."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
