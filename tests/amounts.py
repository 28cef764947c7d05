"""How much of long tests is tried: a part in every run, the whole with ``TRTOPS_TEST_LONG=1``."""

from __future__ import annotations

import os


def amount(whole: int, *, in_every_run: int) -> int:
    """The number of seeds, kills or builds that a test tries."""
    return whole if os.environ.get("TRTOPS_TEST_LONG") == "1" else in_every_run
