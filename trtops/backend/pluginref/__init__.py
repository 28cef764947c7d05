"""Reference implementations of ONNX operators in numpy: slow, simple, and independent of all other back ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.backend.pluginref.runner import PluginRefRunner

__getattr__, __dir__ = exports(__name__)
