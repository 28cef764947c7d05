"""Readers of what other tools write, each told by what is in the file and not by its name.

============================================= =============================================================================
format                                        where its fields come from
============================================= =============================================================================
trtexec ``--exportTimes``                     ``samples/common/sampleReporting.cpp`` of NVIDIA/TensorRT 8.5.1:
                                              a list of ``startEnqMs`` .. ``endD2hMs``, ``h2dMs``, ``computeMs``, ``d2hMs``,
                                              ``latencyMs``. Earlier releases name other fields beside ``latencyMs``
trtexec ``--exportProfile``                   the same file: a list of ``count`` and then ``name``, ``timeMs``, ``averageMs``,
                                              ``medianMs`` (not in earlier releases), ``percentage``
trtexec ``--exportLayerInfo``                 TensorRT's engine inspector: ``Layers`` and ``Bindings``; layers are names alone
                                              unless the engine was built with detailed verbosity. Seen from TensorRT 8.6.0
Polygraphy, saved results and replays         files made by Polygraphy 0.53.6
ONNX Runtime, profiles                        files made by ONNX Runtime 1.31.1
Model Navigator, ``status.yaml``              ``package/status.py`` and ``commands/performance/results.py`` of
                                              Model Navigator 0.8.0:
                                              ``models_status``, ``runners_status``, ``profiling_results``
ModelOpt, ``hf_quant_config.json``            ``torch/export/convert_hf_config.py`` of NVIDIA/TensorRT-Model-Optimizer, commit
                                              09914046: ``producer``, ``quantization``. ``modelopt_state.pth`` is a pickle,
                                              which is never read
============================================= =============================================================================

Of trtexec, Model Navigator and ModelOpt no files were at hand: these readers are built field by field from the sources named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped, unused-ignore]

from trtops import errors
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.ops.importing.found import Found, LayerTime
from trtops.ops.search.replays import load_replay
from trtops.tactics.replays import read_record

_LARGEST = 1 << 30
_PICKLES = (".pth", ".pt", ".pkl", ".pickle", ".bin")
_ALL_LACK = ("the engine", "the environment in which it was made", "the spec by which it was built")


def read_results(path: str | Path) -> list[Found]:
    """What a file of another tool says.

    Raises:
        FormatError: If it is none of the files that are known, is damaged, or holds pickled objects.
        ConfigError: If there is no such file.
    """
    file = Path(path)
    if not file.is_file():
        raise errors.ConfigError(f"{str(path)!r} is no file; expected a result of another tool.")
    if file.suffix in _PICKLES:
        raise errors.FormatError(
            f"{file}: pickled objects run code when they are read, so they never are. Of ModelOpt give hf_quant_config.json, or the "
            "quantized ONNX model itself."
        )
    if file.stat().st_size > _LARGEST:
        raise errors.FormatError(f"{file}: {file.stat().st_size} bytes; files of results have at most {_LARGEST}.")
    data = _parsed(file)
    for fits, read in _READERS:
        if fits(data):
            try:
                return list(read(file, data))
            except (KeyError, TypeError, ValueError, AttributeError) as exc:
                if isinstance(exc, errors.TrtopsError):
                    raise
                raise errors.FormatError(
                    f"{file}: a field is missing or of another kind ({type(exc).__name__}: {exc})."
                ) from None
    raise errors.FormatError(
        f"{file}: neither trtexec's times, profile or layers, nor Polygraphy's results or replay, a profile of ONNX Runtime, Model "
        "Navigator's status or ModelOpt's hf_quant_config.json."
    )


def _parsed(file: Path) -> Any:
    text = file.read_bytes().decode("utf-8", "replace")
    try:
        if file.suffix in (".yaml", ".yml"):
            return yaml.safe_load(text)
        return json.loads(text, strict=False)  # TensorRT's inspector leaves control characters in names
    except (ValueError, RecursionError, yaml.YAMLError) as exc:
        raise errors.FormatError(f"{file}: neither JSON nor YAML ({exc}).") from None


def _is_list_of(data: Any, *keys: str, at: int = 0) -> bool:
    return isinstance(data, list) and len(data) > at and isinstance(data[at], Mapping) and set(keys) <= data[at].keys()


def _times(file: Path, data: Sequence[Mapping[str, Any]]) -> Iterator[Found]:
    numbers: dict[str, float] = {}
    for field, name in (("latencyMs", "latency"), ("computeMs", "device"), ("h2dMs", "h2d"), ("d2hMs", "d2h")):
        values = [float(each[field]) for each in data if field in each]
        if not values:
            continue
        p50, p99 = np.percentile(values, [50, 99])
        if name == "latency":
            numbers |= {
                "latency/p50_ms": float(p50),
                "latency/p99_ms": float(p99),
                "latency/mean_ms": float(np.mean(values)),
            }
        else:
            numbers[f"latency/{name}_p50_ms"] = float(p50)
    notes = (("inferences", str(len(data))),)
    lacks = (*_ALL_LACK, "outputs, and so any accuracy", "warm-up, which trtexec leaves out")
    yield Found(name=file.stem, tool="trtexec", what="times", numbers=tuple(numbers.items()), notes=notes, lacks=lacks)


def _profile(file: Path, data: Sequence[Mapping[str, Any]]) -> Iterator[Found]:
    layers = tuple(
        LayerTime(name=str(each["name"]), ms=float(each["averageMs"]), share=float(each["percentage"]) / 100)
        for each in data[1:]
    )
    numbers = (("profile/total_ms", sum(layer.ms or 0.0 for layer in layers)), ("profile/layers", float(len(layers))))
    notes = (("iterations", str(data[0]["count"])),)
    lacks = (*_ALL_LACK, "outputs, and so any accuracy", "tactics: give --exportLayerInfo too")
    yield Found(
        name=file.stem, tool="trtexec", what="profile", numbers=numbers, notes=notes, layers=layers, lacks=lacks
    )


def _layer_info(file: Path, data: Mapping[str, Any]) -> Iterator[Found]:
    layers = tuple(_layer(each) for each in data["Layers"])
    bare = all(isinstance(each, str) for each in data["Layers"])
    lacks = [*_ALL_LACK, "times: give --exportProfile too"]
    if bare:
        lacks.append("tactics and precisions: the engine was not built with --profilingVerbosity=detailed")
    notes = (("bindings", ", ".join(map(str, data.get("Bindings", ())))),)
    numbers = (("build/layers", float(len(layers))),)
    yield Found(
        name=file.stem, tool="trtexec", what="layers", numbers=numbers, notes=notes, layers=layers, lacks=tuple(lacks)
    )


def _layer(layer: Any) -> LayerTime:
    if isinstance(layer, str):
        return LayerTime(name=layer)
    outputs = layer.get("Outputs") or [{}]
    precision = str(outputs[0].get("Format/Datatype", "")) if isinstance(outputs[0], Mapping) else ""
    tactic = str(layer.get("TacticName") or layer.get("TacticValue") or "")
    return LayerTime(name=str(layer["Name"]), op=str(layer.get("LayerType", "")), precision=precision, tactic=tactic)


def _ort_profile(file: Path, data: Sequence[Mapping[str, Any]]) -> Iterator[Found]:
    nodes = [each for each in data if each.get("cat") == "Node" and str(each["name"]).endswith("_kernel_time")]
    runs = [
        float(each["dur"]) / 1e3 for each in data if each.get("cat") == "Session" and each.get("name") == "model_run"
    ]
    total: dict[str, float] = {}
    ops: dict[str, tuple[str, str]] = {}
    for each in nodes:
        name = str(each["name"]).removesuffix("_kernel_time")
        total[name] = total.get(name, 0.0) + float(each["dur"]) / 1e3
        ops[name] = str(each["args"].get("op_name", "")), str(each["args"].get("provider", ""))
    count, everything = max(len(runs), 1), sum(total.values()) or 1.0
    layers = tuple(
        LayerTime(name=name, op=ops[name][0], ms=ms / count, share=ms / everything, tactic=ops[name][1])
        for name, ms in total.items()
    )
    numbers = [("profile/total_ms", everything / count), ("profile/layers", float(len(layers)))]
    if runs:
        p50, p99 = np.percentile(runs, [50, 99])
        numbers += [
            ("latency/p50_ms", float(p50)),
            ("latency/p99_ms", float(p99)),
            ("latency/mean_ms", float(np.mean(runs))),
        ]
    lacks = (*_ALL_LACK, "outputs, and so any accuracy", "latencies without profiling, which slows nodes down")
    notes = (("inferences", str(len(runs))),)
    yield Found(
        name=file.stem,
        tool="onnxruntime",
        what="profile",
        numbers=tuple(numbers),
        notes=notes,
        layers=layers,
        lacks=lacks,
    )


def _is_polygraphy_results(data: Any) -> bool:
    return isinstance(data, Mapping) and (
        "RunResults" in (data.get("polygraphy_class"), data.get("trtops_class")) or "lst" in data
    )


def _polygraphy_results(file: Path, data: Any) -> Iterator[Found]:
    results = RunResults.load(str(file))
    first = results[0][0]
    for name, iterations in results.items():
        seconds = [i.runtime for i in iterations if i.runtime]
        numbers: dict[str, float] = {}
        if seconds:
            p50, p99 = np.percentile(np.multiply(seconds, 1e3), [50, 99])
            numbers |= {"latency/p50_ms": float(p50), "latency/p99_ms": float(p99)}
        if name != first:
            # As the tool compares: with the first runner, by its own defaults.
            report = compare_outputs(list(iterations), list(results[0][1]), Tolerances())
            for output in report.outputs:
                if output.statistics is not None:
                    numbers[f"error/{output.name}/max_abs"] = output.statistics.max_abs
        outputs = ", ".join(f"{n} {np.asarray(a).dtype}{list(np.shape(a))}" for n, a in iterations[0].items())
        notes = (
            ("iterations", str(len(iterations))),
            ("outputs", outputs),
            ("compared with", first if name != first else "nothing"),
        )
        lacks = (*_ALL_LACK, "inputs, unless they were saved beside it", "the tolerances that were asked for")
        yield Found(
            name=name, tool="polygraphy", what="results", numbers=tuple(numbers.items()), notes=notes, lacks=lacks
        )


def _is_replay(data: Any) -> bool:
    return isinstance(data, Mapping) and bool(data) and all(
        isinstance(each, Mapping) and each.get("polygraphy_class", each.get("trtops_class")) == "IterationContext"
        for each in data.values()
    )  # fmt: skip


def _replay(file: Path, data: Any) -> Iterator[Found]:
    steps = load_replay(file)
    good = sum(step.success is True for step in steps.values())
    numbers = (("iterations/good", float(good)), ("iterations/bad", float(len(steps) - good)))
    notes = (
        ("steps", str(len(steps))),
        *((name, "good" if step.success else "bad") for name, step in list(steps.items())[:50]),
    )
    lacks = (*_ALL_LACK, "the model that was searched", "why iterations failed")
    yield Found(name=file.stem, tool="polygraphy", what="debug replay", numbers=numbers, notes=notes, lacks=lacks)


def _is_tactic_replay(data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("polygraphy_class") == "TacticReplayData"


def _tactic_replay(file: Path, data: Any) -> Iterator[Found]:
    record = read_record(file)
    layers = tuple(LayerTime(name=choice.layer, op=choice.op, tactic=choice.tactic) for choice in record.choices)
    lacks = (*_ALL_LACK, "times", "the device and release that the tactics are of")
    numbers = (("build/layers", float(len(layers))),)
    yield Found(name=file.stem, tool="polygraphy", what="tactic replay", numbers=numbers, layers=layers, lacks=lacks)


def _navigator(file: Path, data: Mapping[str, Any]) -> Iterator[Found]:
    version = str(data.get("model_navigator_version", ""))
    for model, status in data["models_status"].items():
        config = status["model_config"]
        for runner, result in status["runners_status"].items():
            profiled = (result.get("result") or {}).get("Performance", {}).get("profiling_results", [])
            numbers: dict[str, float] = {}
            for each in profiled:
                batch = each.get("batch_size")
                suffix = f"/batch {batch}" if len(profiled) > 1 else ""
                for theirs, ours in (("p50_latency", "p50_ms"), ("p99_latency", "p99_ms"), ("avg_latency", "mean_ms")):
                    if each.get(theirs) is not None:
                        numbers[f"latency/{ours}{suffix}"] = float(each[theirs])
                if each.get("throughput") is not None:
                    numbers[f"throughput/per_second{suffix}"] = float(each["throughput"])
            states = {name: str(state) for name, state in result["status"].items()}
            correct = states.get("Correctness", "")
            notes = (
                ("model", str(model)), ("format", str(config.get("format", ""))), ("precision", str(config.get("precision", ""))),
                ("model navigator", version), *states.items(),
            )  # fmt: skip
            lacks = (*_ALL_LACK[:1], "outputs: only whether they were close enough", "tactics and layers")
            verdict = {"OK": "good", "FAIL": "bad"}.get(correct, "")
            yield Found(
                name=f"{model} {runner}", tool="model navigator", what="status", numbers=tuple(numbers.items()), notes=notes,
                lacks=lacks, verdict=verdict,
            )  # fmt: skip


def _modelopt(file: Path, data: Mapping[str, Any]) -> Iterator[Found]:
    quantization = data["quantization"]
    producer = data.get("producer") or {}
    notes = [("modelopt", str(producer.get("version", "")))]
    notes += [
        (key, ", ".join(map(str, v)) if isinstance(v, list) else str(v))
        for key, v in quantization.items()
        if v is not None
    ]
    lacks = ("the model", "the ranges, which are in its weights' files", "outputs, and so any accuracy", "times")
    yield Found(name=file.stem, tool="modelopt", what="quantization", notes=tuple(notes), lacks=lacks)


_READERS: tuple[tuple[Callable[[Any], bool], Callable[[Path, Any], Iterator[Found]]], ...] = (
    (lambda data: _is_list_of(data, "latencyMs", "computeMs"), _times),
    (lambda data: _is_list_of(data, "count") and (len(data) == 1 or _is_list_of(data, "name", "averageMs", at=1)), _profile),
    (lambda data: isinstance(data, Mapping) and isinstance(data.get("Layers"), list), _layer_info),
    (lambda data: _is_list_of(data, "cat", "ph", "ts"), _ort_profile),
    (_is_polygraphy_results, _polygraphy_results),
    (_is_replay, _replay),
    (_is_tactic_replay, _tactic_replay),
    (lambda data: isinstance(data, Mapping) and "models_status" in data and "format_version" in data, _navigator),
    (lambda data: isinstance(data, Mapping) and isinstance(data.get("quantization"), Mapping) and "quant_algo" in data["quantization"], _modelopt),
)  # fmt: skip
