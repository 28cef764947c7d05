"""The tracker in memory keeps the contract."""

from __future__ import annotations

import pytest

from tests.contracts.tracker import InMemoryContract
from trtops.tracking.memory import MemoryTracker


class TestMemoryTracker(InMemoryContract):
    @pytest.fixture
    def memory(self):
        return MemoryTracker()

    @pytest.fixture
    def tracker(self, memory):
        return memory
