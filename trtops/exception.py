"""Polygraphy's names for errors; new code uses :mod:`trtops.errors`."""

from __future__ import annotations

from trtops.errors import ConfigError, TrtopsError
from trtops.lazy import known_as
from trtops.logger import InternalError

__all__ = [
    "DataTypeConversionException",
    "PolygraphyException",
    "PolygraphyInternalException",
    "TrtopsError",
    "TrtopsException",
    "TrtopsInternalException",
]

TrtopsException = TrtopsError
PolygraphyException = TrtopsError
TrtopsInternalException = InternalError
PolygraphyInternalException = InternalError
DataTypeConversionException = ConfigError

known_as(__name__, "exception")
