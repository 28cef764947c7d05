import subprocess
import sys

import pytest

from tests import models
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.ort_format import read_graph
from trtops.backend.onnxrt.tactics import Candidate

# Runs in a process of its own: importing the generated reader changes the root logger and sys.path.
_ORACLE = """
import sys
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import InferenceSession

graph = InferenceSession.GetRootAs(open(sys.argv[1], "rb").read(), 0).Model().Graph()
for index in range(graph.NodesLength()):
    node = graph.Nodes(index)
    inputs = [node.Inputs(i).decode() for i in range(node.InputsLength())]
    outputs = [node.Outputs(i).decode() for i in range(node.OutputsLength())]
    texts = [node.Name(), node.Domain(), node.OpType(), node.ExecutionProviderType()]
    print([text.decode() for text in texts], node.SinceVersion(), inputs, outputs, node.AttributesLength())
"""


@pytest.mark.parametrize("make", [models.conv_net, models.transformer, models.qdq_net])
def test_nodes_equal_onnx_runtimes_reader(make, tmp_path):
    path = tmp_path / "engine.ort"
    with Optimizer(make().proto, ("CPUExecutionProvider",), 0, SessionLog()) as optimizer:
        path.write_bytes(optimizer(Candidate()).plan)

    found = read_graph(path.read_bytes())
    nodes, types = found.nodes, found.types
    done = subprocess.run([sys.executable, "-c", _ORACLE, str(path)], capture_output=True, text=True, check=True)

    ours = [
        f"{[n.name, n.domain, n.op, n.provider]} {n.since_version} {list(n.inputs)} {list(n.outputs)}"
        f" {len(n.attributes)}"
        for n in nodes
    ]
    assert ours == done.stdout.splitlines()
    assert {"float"} <= set(types.values())


def test_attributes_have_their_values():
    text = "(float[1,3,8,8] x) => (float[1,3,4,4] y) { y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x) }"
    with Optimizer(models.model(text), ("CPUExecutionProvider",), 0, SessionLog()) as optimizer:
        (node,) = read_graph(optimizer(Candidate(("NchwcTransformer",))).plan).nodes

    expected = {"kernel_shape": [2, 2], "ceil_mode": 0, "auto_pad": "NOTSET"}
    assert {name: value for name, value in node.attributes if name in expected} == expected
