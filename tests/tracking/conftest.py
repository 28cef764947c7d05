"""Stores for the tests of tracking: a database made once and copied."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stores import copy_store


@pytest.fixture
def new_store(template: Path) -> Callable[[Path], Path]:
    """A function that makes an empty store in a folder."""
    return lambda root: copy_store(template, root)
