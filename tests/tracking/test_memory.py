"""The double keeps the contract."""

from __future__ import annotations

import pytest

from tests.contracts.tracker import TrackerContract
from trtops.tracking.memory import MemoryTracker


class TestMemoryTracker(TrackerContract):
    @pytest.fixture
    def tracker(self):
        return MemoryTracker()

    @pytest.fixture
    def tamper(self, tracker):
        def change(run_id: str, path: str, data: bytes | None) -> None:
            artifacts = tracker._data(run_id).artifacts
            if data is None:
                artifacts.pop(path, None)
            else:
                artifacts[path] = data

        return change

    @pytest.fixture
    def set_id(self, tracker):
        def change(run_id: str, new_id: str) -> None:
            tracker._runs[new_id] = tracker._runs.pop(run_id)

        return change
