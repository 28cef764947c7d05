"""What calibrators do before TensorRT and the device are needed."""

from __future__ import annotations

import numpy as np
import pytest

from trtops.backend.trt.building import calibrator
from trtops.backend.trt.library import memory
from trtops.calibration.data import FeedDigest

FEEDS = [{"b": np.full((2, 3), i, np.float32), "a": np.arange(i + 1)} for i in range(3)]


class HostMemory:
    """Stands in for device memory."""

    def __init__(self, shape, dtype):
        self.dtype = np.dtype(dtype)
        self.ptr = 1

    def copy_from(self, array):
        pass

    def free(self):
        pass


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.setattr(memory, "DeviceArray", HostMemory)


def handed_out(feeds):
    batches = calibrator.CalibrationBatches(feeds, None)
    while batches.next_batch(["a", "b"]) is not None:
        pass
    assert batches.error is None
    return batches


def test_calibrator_digest_equals_feed_digest():
    expected = FeedDigest()
    for feed in FEEDS:
        expected.add(feed)

    found = handed_out(FEEDS)

    assert found.num_batches == 3
    assert found.data_digest() == expected.hexdigest()


def test_data_on_the_device_has_no_digest():
    view = memory.DeviceView(64, (2, 3), np.float32)

    assert handed_out([*FEEDS, {"a": np.arange(1), "b": view}]).data_digest() is None
    assert handed_out([{"a": 128, "b": 256}]).data_digest() is None
