"""Times engines, and their layers with ONNX Runtime's profiler."""

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build
from trtops.backend.onnxrt.engine import open_plan, provider_settings
from trtops.backend.onnxrt.library import ort
from trtops.backend.onnxrt.ort_format import read_graph
from trtops.backend.onnxrt.session import ORT_ERRORS, why
from trtops.backend.onnxrt.tactics import Candidate
from trtops.backend.runner import Feed
from trtops.spec import OnnxRuntimeOptions
from trtops.system.processes import temporary_prefix

# Inferences of each engine after the first; fewer, but some, where they take longer.
_TURNS, _LEAST_TURNS, _SECONDS = 20, 3, 2.0


def timed(builds: Sequence[Build], feed: Feed) -> list[tuple[list[float], dict[str, float]]]:
    """Return the milliseconds of several inferences, and the minimum for each layer, of each engine.

    Engines take turns, so that other load affects all alike. Bodies of If, Loop and Scan are part of these layers.
    """
    inputs = dict(feed)
    seconds = _in_turns(list(map(_session, builds)), inputs)
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("profile")) as folder:
        profiled = [_session(build, str(Path(folder, str(number)))) for number, build in enumerate(builds)]
        _in_turns(profiled, inputs)
        layers = [_layer_ms(build, session.end_profiling()) for build, session in zip(builds, profiled)]
    return list(zip(seconds, layers))


def _session(build: Build, profile: str = "") -> ort.InferenceSession:
    options = build.spec.config.options
    assert isinstance(options, OnnxRuntimeOptions)
    settings = provider_settings(options, Candidate.from_settings(build.tactics.settings))
    return open_plan(build.engine.plan, options, settings, interleaved=True, profile=profile)


def _in_turns(sessions: Sequence[ort.InferenceSession], inputs: Feed) -> list[list[float]]:
    samples: list[list[float]] = [[] for _ in sessions]
    end = time.perf_counter() + _SECONDS
    for turn in range(_TURNS + 1):
        for session, times in zip(sessions, samples):
            start = time.perf_counter()
            try:
                session.run(None, inputs)
            except ORT_ERRORS as exc:
                raise errors.InferenceError(f"An engine failed while it was timed: {why(exc)}") from exc
            times.append(1e3 * (time.perf_counter() - start))
        if turn >= _LEAST_TURNS and time.perf_counter() > end:
            break
    return [times[1:] for times in samples]  # the first inference allocates memory


def _layer_ms(build: Build, profile: str) -> dict[str, float]:
    """The least milliseconds of each layer in a profile."""
    graph = read_graph(build.engine.plan)
    # A body may have tensors of the same names.
    bodies = tuple(filter(None, graph.scopes))
    names = {layer.outputs: layer.name for layer in build.layers if not layer.name.startswith(bodies)}
    nodes = {node.index: node for node in graph.nodes if not node.scope}
    with_bodies = {graph.nodes[scope.owner].index for scope in graph.scopes.values() if scope.outer is graph.scopes[""]}
    samples: dict[str, list[float]] = defaultdict(list)
    end = 0.0
    for event in sorted(json.loads(Path(profile).read_bytes()), key=lambda event: event["ts"]):
        node = nodes.get(int(event.get("args", {}).get("node_index", -1)))
        # Nodes of bodies, which run within their owner's time, have the same numbers. ONNX Runtime names nodes without
        # a name after their operator and number.
        if (
            node is None
            or event["ts"] < end
            or event["name"] != f"{node.name or f'{node.op}_{node.index}'}_kernel_time"
        ):
            continue
        samples[names[tuple(filter(None, node.outputs))]].append(event["dur"] / 1e3)
        if node.index in with_bodies:
            end = event["ts"] + event["dur"]
    return {name: min(times) for name, times in samples.items()}
