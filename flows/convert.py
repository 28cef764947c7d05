"""Build engines from ONNX models and check them: one model, a list, or a folder.

    result = convert("model.onnx", precision="fp16", data="inputs.npz")

Each flow calls an op of ``trtops``, and has all options of its config as parameters:

    convert  ops/engines/convert.py
    evaluate ops/engines/evaluate.py
    compare  ops/comparing/compare.py
    nightly  ops/engines/build_list.py, each build as a task
    watch    the same, for new models of a folder

Deployments in ``prefect.yaml``:

    deployment   schedule              defaults
    convert-cpu  on demand
    convert-gpu  on demand             backend: tensorrt
    evaluate-cpu on demand
    evaluate-gpu on demand
    compare-cpu  on demand
    nightly-cpu  cron 30 1 * * *       models: models.yaml; backends: [onnxruntime]
    nightly-gpu  cron 30 1 * * *, off  models: models.yaml; backends: [tensorrt]
    watch-cpu    every 600 s           folder: models
"""

from trtops.flows import compare, convert, evaluate, nightly, watch

__all__ = ["compare", "convert", "evaluate", "nightly", "watch"]
