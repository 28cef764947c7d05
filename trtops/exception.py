"""Polygraphy's names for errors. New code catches the classes of :mod:`trtops.errors`."""

from __future__ import annotations

from trtops.errors import ConfigError, TrtopsError

__all__ = ["DataTypeConversionException", "PolygraphyException", "TrtopsError", "TrtopsException"]

TrtopsException = TrtopsError
PolygraphyException = TrtopsError
DataTypeConversionException = ConfigError
