"""Calibrate INT8 with real data, find the layers to keep in higher precision, and choose the fastest engine.

    result = calibrate("model.onnx", data="inputs.npz")

Each flow calls an op of ``trtops``, and has all options of its config as parameters:

    calibrate    ops/engines/calibrate.py
    sensitivity  ops/engines/sensitivity.py
    choose       ops/search/choose.py
    precision    ops/search/precision.py

Deployments in ``prefect.yaml``:

    deployment       schedule             defaults
    calibrate-cpu    on demand
    calibrate-gpu    on demand            backend: tensorrt
    sensitivity-cpu  on demand
    choose-cpu       cron 0 2 * * *, off  models: [models/*.onnx]; on: [cpu]
    choose-gpu       cron 0 2 * * *, off  models: [models/*.onnx]; on: [tensorrt; cuda]
    precision-cpu    on demand
"""

from trtops.flows import calibrate, choose, precision, sensitivity

__all__ = ["calibrate", "choose", "precision", "sensitivity"]
