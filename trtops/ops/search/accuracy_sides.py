"""The two sides of an accuracy search: what runs a model with different tensors as outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import onnx

from trtops import errors
from trtops.backend.base import BaseRunner, Build, Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.emulate import emulate_low_precision
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnxrt.reference import SessionFromMemory
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.worker import built_safely
from trtops.ops.evaluation.submodel import onnxruntime_runner
from trtops.spec import BuildConfig, Precision
from trtops.tactics.record import TacticRecord

log = logging.getLogger(__name__)

MakeRunner: TypeAlias = Callable[[onnx.ModelProto], BaseRunner]
"""Makes a runner of a model with any tensors as outputs. The model is read at activation."""


@dataclass(frozen=True)
class Emulated:
    """A side that computes in 16 bit, rounded on the CPU as a GPU rounds; nodes in ``exclude`` stay in FP32."""

    to: LowPrecision
    exclude: Sequence[str] = ()

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        """A runner of the model in that precision."""
        low = lower_precision(model, self.to, exclude=self.exclude).model
        emulate_low_precision(low)
        return onnxruntime_runner(low)


def reference(model: onnx.ModelProto) -> BaseRunner:
    """A side that computes the model as it is: ONNX Runtime without optimizations."""
    return OnnxrtRunner(SessionFromMemory(model, optimized=False), "reference")


Side: TypeAlias = Literal["onnxruntime", "tensorrt", "emulated"]
"""What can be under test: an engine of a back end, or 16 bit emulated on the CPU."""


def make_side(side: Side, precision: Precision) -> BuildConfig | Emulated:
    """A side by its name, with default options; ``emulated`` is FP16 unless the precision is BF16."""
    if side == "emulated":
        return Emulated("bf16" if precision == "bf16" else "fp16")
    return BuildConfig(precision=precision).on_backend(side)


def side_name(side: BuildConfig | MakeRunner) -> str:
    """The name of a side in the names of runs."""
    if isinstance(side, BuildConfig):
        return f"{side.backend} {side.precision}"
    if isinstance(side, Emulated):
        return f"emulated {side.to}"
    return str(getattr(side, "__qualname__", type(side).__qualname__))


class Built:
    """A side that builds engines.

    On ONNX Runtime later engines get the settings of the first, which observes no tensors: they have to compute as it
    does, and nothing is timed again.

    Attributes:
        layers: Layers of the first engine, by node and by tensor.
    """

    def __init__(self, config: BuildConfig) -> None:
        self.config = config
        self.layers: dict[str, str] = {}
        self._settings: TacticRecord | None = None

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        """Build an engine, and make a runner of it."""
        build = self._build(Model.from_proto(model))
        for layer in () if self.layers else build.layers:
            text = f"{layer.name} [{layer.tactic}]" if layer.tactic else layer.name
            for name in (*layer.onnx_nodes, *layer.outputs):
                self.layers.setdefault(name, text)
        return engine_backend(self.config.backend).runner(build.engine, self.config.backend)

    def _build(self, model: Model) -> Build:
        if self._settings is not None:
            config = replace(self.config, options=replace(self.config.options, tactic_seed=None))
            try:
                return built_safely(model, config, Caches(replay=self._settings))
            except errors.BackendError as exc:  # the settings may not fit a model with more outputs
                log.info("Built with settings of its own: %s", exc)
        build = built_safely(model, self.config)
        if build.tactics.mechanism == "onnxruntime" and self._settings is None:
            self._settings = replace(build.tactics, choices=())
        return build
