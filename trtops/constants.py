"""Constants, under Polygraphy's module name."""

from trtops.comparator.data_loader import DEFAULT_SEED as DEFAULT_SEED
from trtops.config import AUTOINSTALL_DEPS as AUTOINSTALL_DEPS
from trtops.config import INTERNAL_CORRECTNESS_CHECKS as INTERNAL_CORRECTNESS_CHECKS
from trtops.json import MARKER as TYPE_MARKER  # noqa: F401
from trtops.json.objects import LEGACY_VALUE as LEGACY_TYPE_MARKER  # noqa: F401
from trtops.metadata import DEFAULT_SHAPE_VALUE as DEFAULT_SHAPE_VALUE
from trtops.patterns import MARK_ALL as MARK_ALL

TAB = " " * 4
