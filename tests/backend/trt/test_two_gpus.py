"""Which of two GPUs a runner uses, in processes that have not used CUDA before."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import models
from trtops.backend.trt import CreateConfig, NetworkFromOnnxBytes, engine_bytes_from_network

pytestmark = pytest.mark.multi_gpu

INFER = """
import ctypes, sys
import numpy as np
from trtops.backend.common import BytesFromPath
from trtops.backend.trt import EngineFromBytes, TrtRunner, current_gpu
from trtops.backend.trt.library.memory import call
if sys.argv[2] != "none":
    call("cudaSetDevice", int(sys.argv[2]))
with TrtRunner(EngineFromBytes(BytesFromPath(sys.argv[1]))) as runner:
    found = runner.infer({"x": np.ones((4,), np.float32)})
assert np.isfinite(found["y"]).all()
cuda, flags, active, used = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int(), []
for device in (0, 1):
    assert cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
    used.append(active.value)
print(current_gpu().index, *used)
"""


@pytest.mark.parametrize(("chosen", "expected"), [("none", "0 1 0"), ("0", "0 1 0"), ("1", "1 0 1")])
def test_runner_uses_only_the_chosen_gpu(tmp_path: Path, chosen: str, expected: str) -> None:
    proto = models.model("(float[4] x) => (float[4] y) { y = Relu(x) }")
    path = tmp_path / "engine.plan"
    path.write_bytes(bytes(engine_bytes_from_network(NetworkFromOnnxBytes(proto.SerializeToString()), CreateConfig())))

    command = [sys.executable, "-c", INFER, str(path), chosen]
    assert subprocess.check_output(command, text=True, timeout=120).split() == expected.split()
