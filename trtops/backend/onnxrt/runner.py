"""Inference with ONNX Runtime, imported when a runner is activated.

Reference runners run a model as it is, without optimizations: for golden outputs, and to examine tensors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.loader import ValueOrCallable
from trtops.backend.runner import BaseRunner, Feed
from trtops.func import value_of
from trtops.metadata import DataType, TensorMetadata, TensorSpec
from trtops.system.processes import temporary_prefix
from trtops.system.trial import try_in_child

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

    from trtops.backend.onnx.model import Model
    from trtops.backend.onnx.submodel import Arrays
    from trtops.backend.onnxrt.inference import Inference


class OnnxrtRunner(BaseRunner):
    """Runs inference in an ONNX Runtime session; several threads may infer at once.

    Accepts numpy arrays in host memory (bfloat16 and 8-bit floats as arrays of ``ml_dtypes``) and torch tensors; with a
    torch tensor among the inputs, the outputs are torch tensors in host memory. Outputs are new arrays at every
    inference.

    >>> import numpy as np
    >>> from trtops.backend.onnxrt import SessionFromOnnx
    >>> with OnnxrtRunner(SessionFromOnnx("model.onnx")) as runner:
    ...     outputs = runner.infer(dict(np.load("feed.npz")))
    >>> {name: array.shape for name, array in outputs.items()}
    {'scores': (2, 10)}
    """

    def __init__(
        self, sess: ValueOrCallable[ort.InferenceSession], name: str | None = None, prefix: str = "onnxrt-runner"
    ) -> None:
        """Wrap a session owned by the caller, or a callable creating one at each activation.

        ``sess`` is the session while the runner is active. By default runners are numbered: ``<prefix>-N0`` and so on.
        """
        super().__init__(name, prefix)
        self._sess = sess
        self.sess: ort.InferenceSession | None = None
        self._inference: Inference | None = None
        self._is_tried = False

    def activate_impl(self) -> None:
        """Get the session and the metadata of its inputs and outputs."""
        # Imports numpy and ONNX Runtime, which creating a runner does not need.
        from trtops.backend.onnxrt.inference import Inference

        self._is_tried = not callable(self._sess)
        if not self._is_tried:
            try_in_child(_infer_once, self._sess, None)
        session = value_of(self._sess)
        try:
            self._inputs = TensorMetadata.of(map(_tensor_spec, session.get_inputs()))
            self._outputs = TensorMetadata.of(map(_tensor_spec, session.get_outputs()))
        except UnicodeDecodeError as exc:
            raise errors.InvalidModelError(
                f"{self.name}: the name of an input or output is not UTF-8 ({exc.object!r:.80}); rename it."
            ) from None
        for spec in (*self._inputs.values(), *self._outputs.values()):
            if spec.dtype in (DataType.INT4, DataType.FLOAT4):
                raise errors.UnsupportedFeatureError(
                    f"{self.name}: {spec} cannot be passed to ONNX Runtime from Python. Cast it to a wider type inside "
                    "the model."
                )
        # ONNX Runtime reports unknown rank like a scalar, so the rank of such inputs is not checked.
        self._expected_inputs = TensorMetadata.of(
            s if s.shape else TensorSpec(s.name, s.dtype, None) for s in self._inputs.values()
        )
        self._inference = Inference(session, self._inputs, self._outputs, self.name)
        self._stop_inference = self._inference.stop
        self.sess = session

    def deactivate_impl(self) -> None:
        """Release the session."""
        self.sess = self._inference = self._stop_inference = None

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the session's inputs. A tensor of unknown rank appears as a scalar."""
        return self._inputs

    def get_output_metadata(self) -> TensorMetadata:
        """Return the session's outputs (names, dtypes and shapes, in order); only while active."""
        return self._outputs

    def second_context(self) -> OnnxrtRunner:
        """Return a runner of the same session."""
        assert self.sess is not None
        return OnnxrtRunner(self.sess, f"{self.name} again")

    def last_device_time(self) -> float | None:
        """Repeat the last inference on a GPU without copies, and return its seconds; None on a CPU."""
        # Directly after the copies of an inference its launches take up to 15 % longer.
        assert self._inference is not None
        return self._inference.repeat()

    def time_with(self, clock: Callable[[], float]) -> None:
        """Measure the next inferences with another clock, such as one for CPU time; only while active."""
        assert self._inference is not None
        self._inference.clock = clock

    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run the session."""
        assert self._inference is not None
        if not self._is_tried:
            try_in_child(_infer_once, self._sess, dict(feed_dict))
            self._is_tried = True
        outputs, self._inference_seconds = self._inference(feed_dict)
        return outputs


def _infer_once(source: Callable[[], ort.InferenceSession], feed: Feed | None) -> None:
    """Load a session, and run it once if there is a feed."""
    with OnnxrtRunner(source, "the model") as runner:
        if feed is not None:
            runner.infer(feed)


def _tensor_spec(node: ort.NodeArg) -> TensorSpec:
    """A session's input or output; sequences and maps have neither dtype nor shape."""
    from trtops.backend.onnx.messages import TensorProto
    from trtops.backend.onnx.model import data_type

    kind = node.type.removeprefix("optional(")  # passed like the tensor inside
    if not kind.startswith("tensor("):
        return TensorSpec(node.name)
    element = TensorProto.DataType.Value(kind.removeprefix("tensor(").rstrip(")").upper())
    return TensorSpec(node.name, data_type(element), tuple(node.shape) if kind == node.type else None)


@dataclass(frozen=True)
class SessionFromMemory:
    """Loads a session from a model in memory, of any size, shared and not changed."""

    model: onnx.ModelProto
    optimized: bool = True

    def __call__(self) -> ort.InferenceSession:
        """Create the session; it belongs to the caller; raises as ``SessionFromOnnx``."""
        from trtops.backend.onnx.model import is_large, is_lean
        from trtops.backend.onnx.save import save_model
        from trtops.backend.onnxrt.library import ort
        from trtops.backend.onnxrt.loader import SessionFromOnnx

        # Interleaved: the threads sleep between runs, so that they do not disturb what is timed at the same time.
        level = None if self.optimized else ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        # Protobuf cannot serialize it, so it goes through a file.
        if is_large(self.model) and not is_lean(self.model):
            with tempfile.TemporaryDirectory(prefix=temporary_prefix("model")) as folder:
                path = Path(folder, "model.onnx")
                save_model(self.model, path, external_data_path="")
                return SessionFromOnnx(path, graph_optimization_level=level, interleaved=True)()
        return SessionFromOnnx(self.model, graph_optimization_level=level, interleaved=True)()


def reference_outputs(model: onnx.ModelProto, feeds: Sequence[Feed]) -> list[Arrays]:
    """Run a model in memory without optimizing it, and return the outputs for each feed."""
    with OnnxrtRunner(SessionFromMemory(model, optimized=False), "reference") as runner:
        return list(map(runner.infer, feeds))


def reference_runner(model: Model, name: str | None = None) -> OnnxrtRunner:
    """Return a runner of a model on the CPU with every graph optimization off. The model is read at each activation."""
    return OnnxrtRunner(partial(_reference_session, model), name, "onnxrt-reference")


def _reference_session(model: Model) -> ort.InferenceSession:
    from trtops.backend.onnx.model import is_large
    from trtops.backend.onnxrt.loader import SessionFromOnnx

    # ONNX Runtime takes files with this ending for its own format, and a child would load a large model first.
    if model.is_unchanged() and model.files()[0].suffix != ".ort" and not is_large(model.structure()):
        loader = SessionFromOnnx(model.files()[0], graph_optimization_level="ORT_DISABLE_ALL", interleaved=True)
        session = loader()
        if model.is_unchanged():
            return session
    return SessionFromMemory(model.proto(lean=True), optimized=False)()
