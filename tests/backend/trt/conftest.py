"""A network for the tests that build and for those that run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import cuda_double
from trtops import func
from trtops.backend.trt import CreateNetwork, library


@pytest.fixture
def adding_network() -> Callable[[], Any]:
    """Loads a network made with the API of TensorRT, which adds 1 to its input."""

    @func.extend(CreateNetwork())
    def create(builder: Any, network: Any) -> None:
        trt = library.load()
        network_input = network.add_input(name="input", shape=(64, 64), dtype=trt.float32)
        ones = network.add_constant((64, 64), np.ones((64, 64), np.float32)).get_output(0)
        total = network.add_elementwise(network_input, ones, trt.ElementWiseOperation.SUM).get_output(0)
        total.name = "output"
        network.mark_output(total)

    return create


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> cuda_double.Runtime:
    """The double of CUDA's runtime in place of cuda-python."""
    double = cuda_double.Runtime()
    monkeypatch.setattr("trtops.backend.trt.library.memory.cudart", lambda: double)
    return double
