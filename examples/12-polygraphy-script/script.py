"""Two runners on the same inputs, as a script for Polygraphy does it; `polygraphy` has become `trtops` in the imports."""

from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.comparator import Comparator, CompareFunc

runners = [OnnxrtRunner(SessionFromOnnx("digits.onnx"), name=name) for name in ("first", "second")]
results = Comparator.run(runners)
assert Comparator.compare_accuracy(results, compare_func=CompareFunc.simple(atol=1e-5))
