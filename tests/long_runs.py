"""How much of long tests is tried: a part in every run, the whole with ``TRTOPS_TEST_LONG=1``."""

import os
from typing import Any

import pytest

LONG = os.environ.get("TRTOPS_TEST_LONG") == "1"


def amount(whole: int, *, in_every_run: int) -> int:
    """The number of seeds, kills or builds that a test tries."""
    return whole if LONG else in_every_run


def long_only(*values: Any) -> Any:
    """The values of a case of a parametrized test that only long runs try."""
    return pytest.param(*values, marks=pytest.mark.skipif(not LONG, reason="TRTOPS_TEST_LONG=1 runs it"))
