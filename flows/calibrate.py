"""Calibrate INT8 with real data, and find the layers to keep in higher precision.

    result = calibrate("model.onnx", data="inputs.npz")

Each flow calls an op of ``trtops``, and has all options of its config as parameters:

    calibrate    ops/engines/calibrate.py
    sensitivity  ops/engines/sensitivity.py
    precision    ops/search/precision.py

Deployments in ``prefect.yaml``:

    deployment       schedule   defaults
    calibrate-cpu    on demand
    calibrate-gpu    on demand  backend: tensorrt
    sensitivity-cpu  on demand
    precision-cpu    on demand
"""

from trtops.flows import calibrate, precision, sensitivity

__all__ = ["calibrate", "precision", "sensitivity"]
