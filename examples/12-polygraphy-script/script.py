"""Compare two runners on the same inputs, as a Polygraphy script; only the imports are renamed."""

from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.comparator import Comparator, CompareFunc

runners = [OnnxrtRunner(SessionFromOnnx("digits.onnx"), name=name) for name in ("first", "second")]
results = Comparator.run(runners)
assert Comparator.compare_accuracy(results, compare_func=CompareFunc.simple(atol=1e-5))
