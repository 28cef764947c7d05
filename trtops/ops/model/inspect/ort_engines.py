"""Engines of ONNX Runtime: models in its own format, optimized."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trtops.backend.onnxrt.engine import open_plan
from trtops.backend.onnxrt.plan import read_plan
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.onnxrt.session import DEFAULT_PROVIDERS
from trtops.ops.model.inspect.inspection import Inspection
from trtops.record import JSONValue, to_jsonable


def inspect_ort_engine(path: Path, show: Collection[str]) -> Inspection:
    """An engine of ONNX Runtime: loaded by it first, since the reader trusts its bytes."""
    plan = path.read_bytes()
    with OnnxrtRunner(open_plan(plan, providers=DEFAULT_PROVIDERS, threads=0), "inspected") as runner:
        inputs, outputs = runner.get_input_metadata(), runner.get_output_metadata()
    nodes = [dataclasses.asdict(node) for node in read_plan(plan).nodes]
    record: dict[str, JSONValue] = {
        "inputs": [str(spec) for spec in inputs.values()],
        "outputs": [str(spec) for spec in outputs.values()],
        "nodes": [{key: _json_value(value) for key, value in node.items()} for node in nodes],
    }

    def text() -> str:
        head = ["==== ONNX Runtime Engine ====", f"Inputs: {inputs}", f"Outputs: {outputs}", f"{len(nodes)} nodes"]
        return "\n".join([*head, *(_node_line(node) for node in nodes if show)])

    return Inspection("ort", lambda: record, text)


def _json_value(value: object) -> JSONValue:
    try:
        return to_jsonable(value)
    except TypeError:
        return str(value)


def _node_line(node: Mapping[str, Any]) -> str:
    inputs, outputs = (", ".join(map(str, node.get(key, ()))) for key in ("inputs", "outputs"))
    return f"  {node.get('op', node.get('op_type', '?'))} {node.get('name', '')!r}: {inputs} -> {outputs}"
