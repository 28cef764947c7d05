"""The record of a quantized model: layers that read 8 bits, and the reasons of those that do not."""

from dataclasses import dataclass

from trtops import errors
from trtops.record import Record

# Products that can be quantized, which take most of the time. ONNX Runtime has no integer kernel for ConvTranspose, and
# TensorRT none in FP8.
OP_TYPES: tuple[str, ...] = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, kw_only=True)
class Quantization(Record):
    """The result of quantizing a model. Layers are named by their node, or its first output where that has no name."""

    layers: tuple[str, ...]  # those that read 8 bits
    kept_layers: tuple[str, ...]  # requested in higher precision
    excluded: tuple[tuple[str, tuple[str, ...]], ...] = ()  # by placement rule, those that it excludes
    missing: tuple[str, ...] = ()  # tensors that the cache lacks, whose layers were not changed
    in_bodies: tuple[str, ...] = ()  # layers in If, Loop and Scan, which stay: calibration has no values there
    # Layers for which the back end has no 8-bit kernel, unless `qdq_op_types` names types.
    by_type: tuple[str, ...] = ()

    def require_layers(self) -> None:
        """Raise CalibrationError if no layer was quantized."""
        if not self.layers:
            raise errors.CalibrationError(
                f"8 bits were requested, but no layer of the model is quantized; {self._left_out()}; others do not "
                "compute in FP32. Keep fewer, name fewer qdq_rules, start from FP32, or build another precision."
            )

    def sentence(self) -> str:
        """What was quantized, in a line."""
        return f"{len(self.layers)} layers read 8 bits; {self._left_out()}"

    def _left_out(self) -> str:
        """The products without 8-bit inputs, by reason, in part of a line."""
        rules = [f"{rule} ({', '.join(names)})" for rule, names in self.excluded]
        text = f"kept: {', '.join(self.kept_layers) or 'none'}; excluded by rule: {'; '.join(rules) or 'none'}"
        text += f"; no ranges for {', '.join(self.missing)}" if self.missing else ""
        text += f"; in bodies of If, Loop or Scan: {', '.join(self.in_bodies)}" if self.in_bodies else ""
        if self.by_type:
            option = f"--qdq-op-types {' '.join(OP_TYPES)}"
            text += f"; without 8-bit kernels: {', '.join(self.by_type)} ({option} quantizes them)"
        return text
