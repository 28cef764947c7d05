"""Build a model repeatedly until the tactic behind its bad builds is known, and prove it.

    result = debug_build("model.onnx", data="inputs.npz", until=20)

Each flow calls an op of ``trtops``, and has all options of its config as parameters:

    debug_build  ops/campaign/debug_build.py, each iteration as a task
    bisect       ops/campaign/bisect.py
    prove        ops/campaign/prove.py

Deployments in ``prefect.yaml``:

    deployment       schedule   defaults
    debug-build-cpu  on demand
    debug-build-gpu  on demand  backend: tensorrt
    bisect-cpu       on demand
    bisect-gpu       on demand
    prove-cpu        on demand
    prove-gpu        on demand
"""

from trtops.flows import bisect, debug_build, prove

__all__ = ["bisect", "debug_build", "prove"]
