"""Checks of the installed back ends on small models that it makes itself: ``trtops doctor --self-test``."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx

from trtops import __version__, errors
from trtops.backend.base import Build, BuildRequest, Caches, EngineBackend, Feed
from trtops.backend.engines import BACKENDS, engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.comparator.arrays import copied
from trtops.record import Record
from trtops.spec import BackendName, BuildConfig, OptimizationProfile, Precision, ShapeRange
from trtops.system.masking import masked
from trtops.system.processes import temporary_prefix

# Largest errors of an output relative to its largest value: rounding of products of 16 values, with a margin.
_LIMITS: dict[Precision, float] = {"fp32": 1e-4, "fp16": 2e-2, "int8": 0.2}
OUTCOMES = ("passed", "failed", "unsupported")


@dataclass(frozen=True, kw_only=True)
class Check(Record):
    """One check: whether it passed, and otherwise the error; ``unsupported`` if this release lacks the feature."""

    name: str
    outcome: str  # passed, failed or unsupported
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BackendReport(Record):
    """The checks of one back end, with the releases and the device; no names of hosts, and no paths."""

    backend: str
    release: str
    device: str
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    os: str = ""
    python: str = ""
    trtops: str = __version__
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return all(check.outcome != "failed" for check in self.checks)


@dataclass
class _Bench:
    """A back end, models in a folder, and what earlier checks built."""

    name: BackendName
    backend: EngineBackend
    folder: Path
    builds: dict[str, Build] = field(default_factory=dict)

    def model(self, name: str, text: str, **weights: Any) -> Model:
        """Write a model, given in ONNX's text format and its weights, and load it."""
        graph = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {name} {text}')
        graph.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())
        path = self.folder / f"{name}.onnx"
        onnx.save(graph, path)
        return Model.load(path)

    def net(self) -> Model:
        """Return a network of two products with a dynamic batch."""
        random = np.random.default_rng(0)
        a, b = (random.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(2))
        body = "(float[N, 16] x) => (float[N, 16] y) { h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }"
        return self.model("net", body, a=a, b=b)

    def config(self, precision: Precision = "fp32", **others: Any) -> BuildConfig:
        """Return the config of a build of :meth:`net` for batches of 1 to 8."""
        shapes = ShapeRange(name="x", min=(1, 16), opt=(4, 16), max=(8, 16))
        profiles = (OptimizationProfile(shapes=(shapes,)),)
        return BuildConfig(precision=precision, profiles=profiles, **others).on_backend(self.name)

    def build(self, precision: Precision = "fp32", caches: Caches | None = None) -> Build:
        """Build :meth:`net`, calibrated on :func:`_feeds` in INT8."""
        data = _feeds(4) if precision == "int8" and (caches is None or caches.calibration is None) else None
        request = BuildRequest(self.net(), self.config(precision), caches=caches or Caches(), calibration_data=data)
        return self.backend.build(request)

    def compare(self, model: Model, build: Build, feeds: list[Feed], limit: float) -> None:
        """Fail unless the engine's outputs are those of the model in ONNX Runtime, up to a relative limit."""
        expected = reference_outputs(model.proto(), feeds)
        with self.backend.runner(build.engine) as runner:
            for feed, golden in zip(feeds, expected):
                actual = runner.infer(feed)
                for name, array in golden.items():
                    _fail_unless(actual[name].shape == array.shape, f"{name} has shape {actual[name].shape}")
                    error = float(np.abs(np.subtract(actual[name], array, dtype=np.float64)).max(initial=0))
                    scale = float(np.abs(array).max(initial=0)) or 1.0
                    _fail_unless(error <= limit * scale, f"{name} differs by {error / scale:.3g} of its largest value")


def _feeds(batch: int) -> list[Feed]:
    random = np.random.default_rng(batch)
    return [{"x": random.normal(size=(batch, 16)).astype(np.float32)} for _ in range(4)]


def _fail_unless(condition: bool, reason: str) -> None:
    if not condition:
        raise errors.InferenceError(reason)


def _precision(precision: Precision) -> Callable[[_Bench], None]:
    def check(bench: _Bench) -> None:
        build = bench.builds[precision] = bench.build(precision)
        bench.compare(bench.net(), build, _feeds(4), _LIMITS[precision])

    return check


def _profiles(bench: _Bench) -> None:
    for batch in (1, 3, 8):
        bench.compare(bench.net(), bench.builds["fp32"], _feeds(batch), _LIMITS["fp32"])


def _data_dependent_shapes(bench: _Bench) -> None:
    model = bench.model("nonzero", "(float[8] x) => (int64[1, K] y) { y = NonZero(x) }")
    build = bench.backend.build(BuildRequest(model, BuildConfig().on_backend(bench.name)))
    bench.compare(model, build, [{"x": np.arange(8, dtype=np.float32) % step} for step in (2, 3, 4)], 0.0)


def _calibration_cache(bench: _Bench) -> None:
    cache = bench.builds["int8"].calibration_cache
    _fail_unless(cache is not None, "the INT8 build left no calibration cache")
    build = bench.build("int8", Caches(calibration=cache))  # no data is needed
    bench.compare(bench.net(), build, _feeds(4), _LIMITS["int8"])


def _record_and_replay(bench: _Bench) -> None:
    first = bench.builds["fp32"]
    again = bench.build("fp32", Caches.replaying(first.tactics, first.timing_cache))
    differing = first.tactics.differing_layers(again.tactics)
    _fail_unless(bool(first.tactics.choices) and not differing, "the replay chose other tactics than the record")


def _timing_cache(bench: _Bench) -> None:
    cache = bench.builds["fp32"].timing_cache
    _fail_unless(bool(cache), "the build left no timing cache")
    use = bench.build("fp32", Caches(timing=cache)).timing_cache_use
    _fail_unless(use.misses == 0, f"{use.misses} timings were missing in the cache of an equal build")


def _inspector(bench: _Bench) -> None:
    layers = bench.builds["fp32"].layers
    _fail_unless(bool(layers) and all(layer.name for layer in layers), "the engine names no layers")


def _two_contexts(bench: _Bench) -> None:
    engine, feeds = bench.builds["fp32"].engine, _feeds(4)
    with bench.backend.runner(engine) as first, bench.backend.runner(engine) as second:
        alone = [copied(first.infer(feed)) for feed in feeds]
        for i, feed in enumerate(feeds):
            second.infer(feeds[i - 1])
            same = all(np.array_equal(array, alone[i][name]) for name, array in first.infer(feed).items())
            _fail_unless(same, "an inference depends on another context")


CHECKS: dict[str, Callable[[_Bench], None]] = {
    "fp32": _precision("fp32"),
    "fp16": _precision("fp16"),
    "int8": _precision("int8"),
    "profiles": _profiles,
    "data-dependent shapes": _data_dependent_shapes,
    "calibration cache": _calibration_cache,
    "record and replay": _record_and_replay,
    "timing cache": _timing_cache,
    "inspector": _inspector,
    "two contexts": _two_contexts,
}
"""The checks in order; later ones use what earlier ones built."""


def self_test() -> Iterator[BackendReport]:
    """Yield the report of each installed back end. It takes seconds for ONNX Runtime, and minutes for TensorRT."""
    for name in cast("tuple[BackendName, ...]", BACKENDS):
        try:
            backend = engine_backend(name)
            here = backend.environment(BuildConfig().on_backend(name))
        except errors.BackendUnavailableError:
            continue
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("selftest")) as folder:
            bench = _Bench(name, backend, Path(folder))
            checks = tuple(_run(label, check, bench) for label, check in CHECKS.items())
        yield BackendReport(
            backend=name,
            release=here.backend_version,
            device=here.device,
            compute_capability=here.compute_capability,
            driver=here.driver,
            cuda=here.cuda,
            os=here.os,
            python=here.python,
            checks=checks,
        )


def _run(name: str, check: Callable[[_Bench], None], bench: _Bench) -> Check:
    start, outcome, detail = time.monotonic(), "passed", ""
    try:
        check(bench)
    except errors.UnsupportedFeatureError as exc:
        outcome, detail = "unsupported", str(exc)
    except KeyError as exc:
        outcome, detail = "failed", f"the build of {exc.args[0]} failed"
    except Exception as exc:  # whatever a library raises is the finding
        outcome, detail = "failed", f"{type(exc).__name__}: {exc}"
    # Files without their folders.
    detail = re.sub(r"(?:[A-Za-z]:)?(?:[/\\][\w.~-]+)+[/\\]", "", masked(detail))[:500]
    return Check(name=name, outcome=outcome, detail=detail, seconds=round(time.monotonic() - start, 2))
