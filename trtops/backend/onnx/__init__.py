"""ONNX models: loading, checks, descriptions, changes and saving. Importing needs only ``onnx``.

The names below are imported on first use, since many tools need only one module of this package.
"""

from trtops.lazy import exports

__getattr__, __dir__ = exports(__name__)
