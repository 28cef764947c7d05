"""Inference with ONNX's own reference implementation, for golden outputs without any optimizer.

Plugins with the name of an ONNX operator (such as ``InstanceNormalization``) are computed as ONNX defines the operator,
others as a script registers them (:func:`trtops.backend.pluginref.references.register`).
"""

import time
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import BaseRunner, Feed, ValueOrCallable
from trtops.backend.onnx import walk
from trtops.backend.onnx.model import tensor_spec
from trtops.backend.pluginref.references import operators_of
from trtops.func import value_of
from trtops.metadata import TensorMetadata


class PluginRefRunner(BaseRunner):
    """Runs a model node by node in numpy, on arrays in host memory; outputs are new at every inference."""

    def __init__(self, graph: ValueOrCallable[Any], name: str | None = None) -> None:
        """Take a ``ModelProto`` or an ONNX-GraphSurgeon graph, or a callable for a new one at each activation."""
        super().__init__(name, "pluginref-runner")
        self._source = graph
        self._evaluator: Any = None

    def activate_impl(self) -> None:
        """Look up all operators; UnsupportedFeatureError if one has no reference implementation."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        model = value_of(self._source)
        if not isinstance(model, onnx.ModelProto):
            import onnx_graphsurgeon as gs

            model = gs.export_onnx(model)
        try:
            self._evaluator = ReferenceEvaluator(model, new_ops=operators_of(list(walk.nodes(model))))
        except Exception as exc:  # of many kinds, some of them onnx's own without a base class
            message = f"The model does not have a reference implementation registered! ONNX reports: {exc}"
            raise errors.UnsupportedFeatureError(f"{message}. Use another runner.") from exc
        weights = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in weights]
        self._inputs = TensorMetadata.of(tensor_spec(value) for value in inputs)
        self._names = [value.name for value in model.graph.output]

    def deactivate_impl(self) -> None:
        """Release the model."""
        self._evaluator = None

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the model's inputs."""
        return self._inputs

    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run all nodes; InferenceError if one fails."""
        started = time.perf_counter()
        try:
            outputs = self._evaluator.run(None, {name: np.asarray(feed_dict[name]) for name in self._inputs})
        except Exception as exc:  # raised by a node's numpy code
            raise errors.InferenceError(f"{self.name}: ONNX's reference implementation failed: {exc}") from exc
        self.inference_time = time.perf_counter() - started
        return dict(zip(self._names, outputs))
