"""Reference implementations of ONNX operators in numpy: slow, simple, and independent of all other back ends."""

from trtops.lazy import exports

__getattr__, __dir__ = exports(__name__)
