"""What a model gives in 16 bit as a GPU rounds it, evaluated beside an engine that does not compute in 16 bit.

ONNX Runtime computes FP16 models in FP32 on most processors. An activation that overflows in FP16 does not there, and what
a GPU will give does not show. The model is run once more with each 16-bit result rounded
(:mod:`trtops.backend.onnx.emulate`), and the largest value of each is looked at before it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.emulate import LARGEST_FLOAT16, emulate_low_precision, watch_peaks
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnxrt.reference import SessionFromMemory
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.ops.evaluation.check import Evaluation
from trtops.ops.evaluation.realised import Emulated, Overflow
from trtops.processes import temporary_prefix
from trtops.spec import BuildConfig


@dataclass(frozen=True)
class In16Bit:
    """A model's outputs in 16 bit, feed by feed, and the tensors that overflow in it, in order of execution."""

    outputs: list[dict[str, np.ndarray]]
    overflows: tuple[Overflow, ...]


def evaluate_emulated(
    model: Model,
    precision: LowPrecision,
    feeds: Iterable[Feed],
    golden: RunResults,
    tolerances: Tolerances,
    keep: Sequence[str] = (),
) -> Emulated:
    """Run a model in 16 bit, rounded as a GPU rounds, and compare.

    Args:
        model: The model, in FP32.
        precision: What to round to.
        feeds: Inputs.
        golden: The golden outputs for them.
        tolerances: When outputs are good enough.
        keep: Nodes that stay in FP32.

    Raises:
        BackendError: If the rewritten model does not run.
    """
    found = run_in_16_bit(model, precision, feeds, keep)
    report = compare_outputs(found.outputs, golden, tolerances)
    return Emulated(precision=precision, report=report, overflows=found.overflows)


def with_emulated(
    evaluation: Evaluation,
    model: Model,
    build: BuildConfig,
    feeds: Iterable[Feed],
    golden: RunResults,
    tolerances: Tolerances,
) -> Evaluation:
    """An evaluation with the model emulated in 16 bit, where ONNX Runtime was asked for it and some kernels do not compute in it.

    Of TensorRT's engines their own outputs are evaluated.

    Args:
        evaluation: With what the engine's kernels compute in.
        model: The model, in FP32.
        build: How the engine was to be built.
        feeds: Inputs.
        golden: The golden outputs for them.
        tolerances: When outputs are good enough.
    """
    found = evaluation.computed
    if found is None or found.backend != "onnxruntime" or found.share is None or found.share == 1:
        return evaluation
    if build.precision not in ("fp16", "bf16"):
        return evaluation
    return replace(
        evaluation, emulated=evaluate_emulated(model, build.precision, feeds, golden, tolerances, build.keep)
    )


def run_in_16_bit(model: Model, precision: LowPrecision, feeds: Iterable[Feed], keep: Sequence[str] = ()) -> In16Bit:
    """Run a model in 16 bit, rounded as a GPU rounds; the arguments are those of :func:`evaluate_emulated`.

    Raises:
        BackendError: If the rewritten model does not run.
    """
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("emulated")) as folder:
        low = lower_precision(model.proto(lean=True), precision, exclude=keep, weights=Path(folder)).model
        emulate_low_precision(low)
        outputs = [value.name for value in low.graph.output]
        peaks = watch_peaks(low) if precision == "fp16" else {}
        feeds = list(feeds)
        try:
            found = run_unoptimized(low, feeds)
        except errors.BackendError:
            if not peaks:
                raise
            del low.graph.output[len(outputs) :]  # a tensor without elements has no largest
            found, peaks = run_unoptimized(low, feeds), {}
    largest = {tensor: max(float(arrays[peak]) for arrays in found) for tensor, peak in peaks.items()}
    return In16Bit(
        outputs=[{name: arrays[name] for name in outputs} for arrays in found],
        overflows=tuple(Overflow(tensor=t, peak=peak) for t, peak in largest.items() if peak >= LARGEST_FLOAT16 + 16),
    )


def run_unoptimized(model: onnx.ModelProto, feeds: Iterable[Feed]) -> list[dict[str, np.ndarray]]:
    """The outputs of a rewritten model, feed by feed, with every node run as it stands.

    Raises:
        BackendError: If ONNX Runtime cannot run it.
    """
    # Optimizers could take out the rounding, and die of some models in 16 bit.
    with OnnxrtRunner(SessionFromMemory(model, optimized=False), "emulated") as runner:
        return [{name: np.array(array) for name, array in runner.infer(feed).items()} for feed in feeds]
