"""Weights that sparse kernels could use."""

from __future__ import annotations

from pathlib import Path

import onnx

from trtops.backend.onnx.loader import onnx_from_path
from trtops.backend.onnx.sparsity import check_sparsity
from trtops.ops.model.inspect.inspection import Inspection
from trtops.record import to_jsonable
from trtops.tables import table


def inspect_sparsity(model: str | Path | onnx.ModelProto) -> Inspection:
    """Which weights of an ONNX model sparse kernels could use, and which are 2:4 sparse already.

    Raises:
        ModelError: If it is no model.
    """
    found = check_sparsity(onnx_from_path(model) if isinstance(model, (str, Path)) else model)

    def text() -> str:
        sparse = sum(weight.sparse for weight in found)
        rows = ((w.name, str(w.shape), str(w.axis), "yes" if w.sparse else "no", f"{w.zeros:.1%}") for w in found)
        head = f"{sparse} of {len(found)} weights that could be are 2:4 sparse."
        return "\n".join([head, "", table(("weight", "shape", "axis", "2:4", "zeros"), rows)])

    return Inspection("sparsity", lambda: [to_jsonable(weight) for weight in found], text)
