"""Polygraphy's names for errors; new code uses :mod:`trtops.errors`."""

from trtops.errors import ConfigError, TrtopsError
from trtops.lazy import known_as

TrtopsException = PolygraphyException = TrtopsError
TrtopsInternalException = PolygraphyInternalException = TrtopsError
DataTypeConversionException = ConfigError

known_as(__name__, "exception")
