"""TensorRT-RTX's builder config, under Polygraphy's module name."""

from trtops.backend.trt import CreateConfigRTX, create_config_rtx
from trtops.lazy import known_as

__all__ = ["CreateConfigRTX", "create_config_rtx"]

known_as(__name__, "config")
