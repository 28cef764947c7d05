"""The script of a bundle: repeat a verdict with plain ONNX Runtime. ``trtops runs bundle`` copies this file as it is.

Needs numpy and onnxruntime in the releases of constraints.txt. Exit code 0 if the verdict is the reported one, else 1.
"""

from __future__ import annotations

# Nothing of trtops may be imported here: a bundle is for people who do not have it.
import sys
from pathlib import Path
from typing import Any


def main(folder: Path) -> int:
    """Run the case in a folder, print the verdict, and return the exit code."""
    import onnxruntime as ort
    from evaluate import repeat  # type: ignore[import-not-found]  # another file of the bundle

    def run(case: dict[str, Any], inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = case["threads"]
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, case["optimization_level"])
        for key, value in case["session_config"].items():
            options.add_session_config_entry(key, value)
        providers = [provider if isinstance(provider, str) else tuple(provider) for provider in case["providers"]]
        if providers != ["CPUExecutionProvider"]:
            ort.preload_dlls()  # CUDA's libraries from Python packages
        left_out = case["disabled_optimizers"]
        session = ort.InferenceSession(
            folder / "model.onnx", options, providers=providers, disabled_optimizers=left_out, enable_fallback=0
        )
        if session.get_providers()[0] not in str(providers[0]):
            raise RuntimeError(f"{providers[0]} does not start here")
        run_options = ort.RunOptions()
        run_options.add_run_config_entry("gpu_graph_id", "-1")  # while it captures a CUDA graph, `run` has no outputs
        names = [*case["outputs"], *case["peaks"]]
        return [dict(zip(names, session.run(names, feed, run_options))) for feed in inputs]

    return int(repeat(folder, f"ONNX Runtime {ort.__version__}", run))


if __name__ == "__main__":
    from evaluate import survived  # another file of the bundle

    sys.exit(survived(__file__) if "--inside" not in sys.argv else main(Path(__file__).resolve().parent))
