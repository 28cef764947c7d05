"""Find out why an engine is bad, down to the smallest failing part of its model.

    result = reduce("model.onnx", precision="fp16")

Each flow calls an op of ``trtops``, and has all options of its config as parameters:

    reduce    ops/search/reduce.py
    accuracy  ops/search/accuracy.py
    triage    ops/triaging/op.py
    bundle    ops/bundling/op.py

Deployments in ``prefect.yaml``:

    deployment    schedule   defaults
    reduce-cpu    on demand
    accuracy-cpu  on demand
    accuracy-gpu  on demand  side: tensorrt
    triage-cpu    on demand
    triage-gpu    on demand  backend: tensorrt
    bundle-cpu    on demand
    bundle-gpu    on demand
"""

from trtops.flows import accuracy, bundle, reduce, triage

__all__ = ["accuracy", "bundle", "reduce", "triage"]
