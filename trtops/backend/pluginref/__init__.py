"""Reference implementations of ONNX operators, in numpy on the CPU: slow, plain, and independent of every other back end."""

from trtops.backend.pluginref.runner import PluginRefRunner

__all__ = ["PluginRefRunner"]
