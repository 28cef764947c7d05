"""Times the layers of an engine with ONNX Runtime's profiler."""

import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build
from trtops.backend.onnxrt.engine import open_plan, provider_settings
from trtops.backend.onnxrt.ort_format import read_graph
from trtops.backend.onnxrt.session import ORT_ERRORS, why
from trtops.backend.onnxrt.tactics import Candidate
from trtops.backend.runner import Feed
from trtops.spec import OnnxRuntimeOptions
from trtops.system.processes import temporary_prefix

# Inferences after the first; fewer, but some, where they take longer.
_TURNS, _LEAST_TURNS, _SECONDS = 20, 3, 2.0


def layer_times(build: Build, feed: Feed) -> dict[str, float]:
    """Return the least milliseconds of each layer of an engine; bodies of If, Loop and Scan are part of their layer."""
    options = build.spec.config.options
    assert isinstance(options, OnnxRuntimeOptions)
    settings = provider_settings(options, Candidate.from_settings(build.tactics.settings))
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("profile")) as folder:
        prefix = str(Path(folder, "profile"))
        session = open_plan(build.engine.plan, options, settings, interleaved=True, profile=prefix)
        end = time.perf_counter() + _SECONDS
        for turn in range(_TURNS + 1):
            try:
                session.run(None, dict(feed))
            except ORT_ERRORS as exc:
                raise errors.InferenceError(f"The engine failed while it was timed: {why(exc)}") from exc
            if turn >= _LEAST_TURNS and time.perf_counter() > end:
                break
        events = json.loads(Path(session.end_profiling()).read_bytes())
    graph = read_graph(build.engine.plan)
    # A body may have tensors of the same names.
    bodies = tuple(filter(None, graph.scopes))
    names = {layer.outputs: layer.name for layer in build.layers if not layer.name.startswith(bodies)}
    nodes = {node.index: node for node in graph.nodes if not node.scope}
    with_bodies = {graph.nodes[scope.owner].index for scope in graph.scopes.values() if scope.outer is graph.scopes[""]}
    samples: dict[str, list[float]] = defaultdict(list)
    body_end = 0.0
    for event in sorted(events, key=lambda event: event["ts"]):
        node = nodes.get(int(event.get("args", {}).get("node_index", -1)))
        # Nodes of bodies, which run within their owner's time, have the same numbers. ONNX Runtime names nodes without
        # a name after their operator and number.
        if (
            node is None
            or event["ts"] < body_end
            or event["name"] != f"{node.name or f'{node.op}_{node.index}'}_kernel_time"
        ):
            continue
        samples[names[tuple(filter(None, node.outputs))]].append(event["dur"] / 1e3)
        if node.index in with_bodies:
            body_end = event["ts"] + event["dur"]
    return {name: min(times) for name, times in samples.items()}
