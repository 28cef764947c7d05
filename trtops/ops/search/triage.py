"""Triage: where in a model two back ends or precisions begin to differ.

Every tensor is compared, in order of execution, in windows that fit into memory. Making a tensor an output can change what
a back end fuses, and so the very error that is looked for. The model's own outputs are therefore compared twice, with and
without all that observing; where the error disappears when observed, tensors are observed one at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.walk import node_name
from trtops.comparator.report import OutputComparison, Tolerances
from trtops.metadata import TensorMetadata
from trtops.ops.judging.feeds import open_feeds
from trtops.ops.judging.judgement import default_tolerances
from trtops.ops.model.opening import open_model
from trtops.ops.search.triage_result import Probe, TensorError, TriageResult, draw, log_result
from trtops.ops.search.triage_sides import Built, Emulated, MakeRunner, Sides, Size, reference
from trtops.record import Record
from trtops.spec import BuildConfig, Precision
from trtops.tracking.base import NO_RUN, Run

__all__ = [
    "Emulated",
    "MakeRunner",
    "Probe",
    "TensorError",
    "TriageConfig",
    "TriageResult",
    "draw",
    "reference",
    "triage",
]

_CHAIN = 12


@dataclass(frozen=True, kw_only=True)
class TriageConfig(Record):
    """How to look.

    Attributes:
        tolerances: What each tensor must meet; by default what is expected of the precision under test, or of FP32.
        data: Where inputs come from (:func:`trtops.ops.judging.feeds.open_feeds`); random unless given.
        iterations: How many random feeds.
        seed: Seed of random data.
        window_bytes: How many bytes of tensors of one side are held at a time; smaller windows mean more passes over the
            model.
        observe: ``all`` makes all tensors of a window outputs at a time. ``one`` observes one tensor at a time, and finds
            the first that differs by bisection: slower, and fusions stay as they are. ``auto`` is ``all``, and then ``one``
            if the error disappears when observed.
        max_probes: Most tensors to observe one at a time.
    """

    tolerances: Tolerances | None = None
    data: str | None = None
    iterations: int = 1
    seed: int = 1
    window_bytes: int = 192 << 20
    observe: Literal["auto", "all", "one"] = "auto"
    max_probes: int = 64

    def __post_init__(self) -> None:
        for name in ("iterations", "window_bytes", "max_probes"):
            if getattr(self, name) < 1:
                raise errors.ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more.")


def triage(
    model: str | Path | Model | onnx.ModelProto,
    actual: BuildConfig | MakeRunner,
    config: TriageConfig | None = None,
    *,
    golden: MakeRunner = reference,
    feeds: Iterable[Feed] | None = None,
    run: Run = NO_RUN,
) -> TriageResult:
    """Compare every tensor of a model between two sides, and tell where they part.

    Args:
        model: The model, or its path; not changed.
        actual: The side under test: how to build an engine, or what makes a runner (:class:`Emulated`).
        config: How to look.
        golden: The side that is taken for right.
        feeds: Inputs, in place of the config's source.
        run: Gets the table, the picture and the numbers; it is not ended.

    Raises:
        ModelError: If the model cannot be used.
        InputError: If the data does not fit it.
        BackendError: If a side cannot be built or run.
    """
    started = time.perf_counter()
    config = TriageConfig() if config is None else config
    opened = open_model(model)
    inputs = TensorMetadata.of(opened.info.inputs)
    source = config.data if feeds is None else feeds
    given = [dict(feed) for feed in open_feeds(source, inputs, iterations=config.iterations, seed=config.seed)]
    side = Built(actual) if isinstance(actual, BuildConfig) else None
    tolerances = config.tolerances or default_tolerances(_precision(actual))
    sides = Sides(opened.proto(), side or actual, golden, given, tolerances)  # type: ignore[arg-type]
    result = _look(sides, config, side, started)
    log_result(run, {"model": opened.name, **config.to_dict()}, result)
    return result


def _precision(actual: BuildConfig | MakeRunner) -> Precision:
    """The precision under test, as far as a side tells it."""
    if isinstance(actual, BuildConfig):
        return actual.precision
    return actual.to if isinstance(actual, Emulated) else "fp32"


def _look(sides: Sides, config: TriageConfig, built: Built | None, started: float) -> TriageResult:
    outputs = sides.run_unobserved()  # first, since the layers of this build are those that matter
    tensors: list[TensorError] = []
    observed_differs = False
    if config.observe != "one":
        tensors, observed_differs = _observe(sides, config, built)
    unobserved = sides.judge_unobserved(outputs)
    differs = unobserved.verdict == "bad"
    probes: list[Probe] = []
    disappears = differs and not observed_differs and config.observe != "one"
    first = next((t.name for t in tensors if t.verdict == "bad"), None)
    if config.observe == "one" or (disappears and config.observe == "auto"):
        first = _probe(sides, config.max_probes, probes) if differs else None
    nonfinite = next((t.name for t in tensors if t.nonfinite), None)
    return TriageResult(
        verdict="bad" if differs or observed_differs else "good",
        first=first,
        origin=_origin(sides, tensors),
        first_nonfinite=nonfinite,
        reference_nan=next((t.name for t in tensors if t.reference_nans), None),
        chain=_chain(sides, tensors, nonfinite or first),
        disappears=disappears,
        probes=tuple(probes),
        outputs_unobserved=tuple((output.name, output.verdict) for output in unobserved.outputs),
        tensors=tuple(tensors),
        windows=sides.passes,
        seconds=time.perf_counter() - started,
    )


def _observe(sides: Sides, config: TriageConfig, built: Built | None) -> tuple[list[TensorError], bool]:
    """Every tensor's error, window by window, and whether the model's outputs differed while observed."""
    found: dict[str, TensorError] = {}
    differs = False
    for window in sides.windows(config.window_bytes):
        report, sizes = sides.compare(window)
        compared = {output.name: output for output in report.outputs}
        differs |= any(compared[name].verdict == "bad" for name in sides.own)
        for name in window:
            found[name] = _tensor_error(sides, compared[name], sizes[name], found, built)
    return list(found.values()), differs


def _tensor_error(
    sides: Sides, compared: OutputComparison, size: Size, known: Mapping[str, TensorError], built: Built | None
) -> TensorError:
    name = compared.name
    index = sides.makers[name]
    node = sides.model.graph.node[index]
    statistics = compared.statistics
    error, nonfinite, reference_nans = math.inf, 0, 0
    if statistics is not None:
        error = _relative(statistics.l2, size.norm)
        reference_nans = statistics.reference_nan_count
        nonfinite = max(statistics.nan_count - statistics.reference_nan_count, 0)
        nonfinite += max(statistics.inf_count - statistics.reference_inf_count, 0)
    before = _read_error(sides, index, known)
    return TensorError(
        name=name,
        node=node_name(node),
        op=node.op_type,
        verdict=compared.verdict,
        error=error,
        growth=error / before if 0 < before < math.inf else None,
        max_abs=math.nan if statistics is None else statistics.max_abs,
        max_rel=math.nan if statistics is None else statistics.max_rel,
        magnitude=size.magnitude,
        nonfinite=nonfinite,
        reference_nans=reference_nans,
        layer="" if built is None else built.layer_of(name, node_name(node)),
        reason="; ".join(compared.reasons[:2]),
    )


def _relative(difference: float, reference: float) -> float:
    """The norm of a difference over that of the reference; 1 where the reference is 0 and the other is not."""
    if difference == 0:
        return 0.0
    error = difference / reference if reference else 1.0
    return error if math.isfinite(difference) and math.isfinite(reference) else math.inf


def _read_error(sides: Sides, index: int, known: Mapping[str, TensorError]) -> float:
    """The largest error of what a node reads; 0 if none of that was compared."""
    return max((known[name].error for name in sides.cutter.reads(index) if name in known), default=0.0)


def _origin(sides: Sides, tensors: Sequence[TensorError]) -> str | None:
    """Where most of the error comes in: what differs, and exceeds what its node read by the largest step."""
    known = {entry.name: entry for entry in tensors}
    steps = {}
    for entry in tensors:
        before = _read_error(sides, sides.makers[entry.name], known)
        if entry.verdict == "bad" and entry.error and before < math.inf:
            steps[entry.name] = entry.error / max(before, 1e-9)
    return max(steps, key=lambda name: steps[name], default=None)


def _chain(sides: Sides, tensors: Sequence[TensorError], start: str | None) -> tuple[str, ...]:
    """From a tensor upwards, each time to what the node read with the largest error or else magnitude."""
    known = {entry.name: entry for entry in tensors}
    chain: list[str] = []
    while start is not None and len(chain) < _CHAIN and start not in chain:
        chain.append(start)
        index = sides.makers.get(start)
        reads = [known[name] for name in sides.cutter.reads(index) if name in known] if index is not None else []
        start = max(reads, key=lambda t: (t.error, t.magnitude)).name if reads else None
    return tuple(chain)


def _probe(sides: Sides, limit: int, probes: list[Probe]) -> str | None:
    """The first tensor that differs when it alone is observed, by bisection; None if none of those tried does.

    A probe under which the model's outputs are right says nothing of where the error is, and counts as not differing.
    """
    names = sides.tensors
    low, high = -1, len(names)
    while high - low > 1 and len(probes) < limit:
        middle = (low + high) // 2
        report, _ = sides.compare([names[middle]])
        compared = {output.name: output.verdict == "bad" for output in report.outputs}
        probe = Probe(
            name=names[middle], differs=compared[names[middle]], output_differs=any(compared[n] for n in sides.own)
        )
        probes.append(probe)
        if probe.differs:
            high = middle
        else:
            low = middle
    return names[high] if high < len(names) else None
