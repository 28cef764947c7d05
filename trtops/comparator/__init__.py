"""Run runners on the same inputs, compare their outputs, save both.

Names are Polygraphy's. :func:`compare_outputs` is the short way: two runs in, a report out. Names are imported on first
use. Thresholds, results and compare functions of single metrics come from :mod:`trtops.comparator.table`.
"""

from trtops.comparator.table import MORE_EXPORTS
from trtops.lazy import exports, known_as

__getattr__, __dir__ = exports(__name__, MORE_EXPORTS)
known_as(__name__, "struct")
