"""Accuracy: where in a model two back ends or precisions begin to differ.

Every tensor is compared, in order of execution, in windows that fit into memory. Making a tensor an output can change what
a back end fuses, and so the very error that is looked for. The model's own outputs are therefore compared twice, with and
without all that observing; where the error disappears when observed, tensors are observed one at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trtops.backend.base import Feed
from trtops.backend.onnx.walk import node_name
from trtops.comparator.report import OutputComparison
from trtops.ops.evaluation.check import tolerances_for
from trtops.ops.model.opening import Source, Subject, open_model
from trtops.ops.result import finish_with, op_run
from trtops.ops.search.accuracy.config import AccuracyConfig
from trtops.ops.search.accuracy.result import AccuracyResult, Probe, TensorError
from trtops.ops.search.accuracy.sides import Built, Emulated, MakeRunner, Sides, Size, reference, side_name
from trtops.spec import BuildConfig, Precision
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker
from trtops.tracking.tables import log_table

_LONGEST_CHAIN = 12


def accuracy(
    model: Source,
    actual: BuildConfig | MakeRunner,
    config: AccuracyConfig | None = None,
    *,
    golden: MakeRunner = reference,
    feeds: Iterable[Feed] | None = None,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
) -> AccuracyResult:
    """Compare every tensor of a model between two sides, and find where they part.

    Args:
        model: The model, or its path; not changed.
        actual: The side under test: how to build an engine, or what makes a runner (:class:`Emulated`).
        config: How to look.
        golden: The side that is taken for right.
        feeds: Inputs, in place of the config's source.
        tracker: The memory, which gets a run with the table, the picture and the numbers; None keeps nothing.
        experiment: Experiment to log to; the model's name unless given.
        tags: Further tags of the run.
        parent: Id of a parent run.
        file: The file that a model in memory was made from; the run is named after it.

    Raises:
        ModelError: If the model cannot be used.
        InputError: If the data does not fit it.
        BackendError: If a side cannot be built or run.
    """
    started = time.perf_counter()
    config = AccuracyConfig() if config is None else config
    subject = Subject.of(model, file)
    experiment = experiment or subject.name
    name = f"{subject.name} accuracy {side_name(actual)}"
    with op_run(tracker, experiment, name, kind="accuracy", model=subject.file, tags=tags, parent=parent) as run:
        opened = open_model(model)
        given = [dict(feed) for feed in config.open_for(opened, feeds)]
        built = Built(actual) if isinstance(actual, BuildConfig) else None
        make: MakeRunner = built or actual  # type: ignore[assignment]
        tolerances = tolerances_for(_tested_precision(actual), config.tolerances, opened)
        if tolerances.clamped_equal is None:
            tolerances = replace(tolerances, clamped_equal=True)
        found = _compare_sides(Sides(opened.proto(lean=True), make, golden, given, tolerances), config, built, started)
        result = replace(found, title=f"accuracy {subject}", subject=str(subject.file or "")).kept_in(run, experiment)
        if run is not NO_RUN:
            run.log_params({"model": opened.name, **config.to_dict()})
            _log_result(run, result)
        finish_with(run, result, tracker)
        return result


def _tested_precision(actual: BuildConfig | MakeRunner) -> Precision:
    """The precision under test, as far as it is known of a side."""
    if isinstance(actual, BuildConfig):
        return actual.precision
    return actual.to if isinstance(actual, Emulated) else "fp32"


def _compare_sides(sides: Sides, config: AccuracyConfig, built: Built | None, started: float) -> AccuracyResult:
    outputs = sides.run_unobserved()  # first, since the layers of this build are those that matter
    tensors: list[TensorError] = []
    observed_differs = False
    if config.observe != "one":
        tensors, observed_differs = _observe_windows(sides, config, built)
    unobserved = sides.evaluate_unobserved(outputs)
    differs = unobserved.verdict == "bad"
    probes: list[Probe] = []
    disappears = differs and not observed_differs and config.observe != "one"
    first = next((t.name for t in tensors if t.verdict == "bad"), None)
    if config.observe == "one" or (disappears and config.observe == "auto"):
        first = _probe_one_by_one(sides, config.max_probes, probes) if differs else None
    nonfinite = next((t.name for t in tensors if t.nonfinite), None)
    return AccuracyResult(
        verdict="bad" if differs or observed_differs else "good",
        first=first,
        origin=_error_origin(sides, tensors),
        first_nonfinite=nonfinite,
        reference_nan=next((t.name for t in tensors if t.reference_nans), None),
        chain=_chain_above(sides, tensors, nonfinite or first),
        disappears=disappears,
        probes=tuple(probes),
        outputs_unobserved=tuple((output.name, output.verdict) for output in unobserved.outputs),
        tensors=tuple(tensors),
        windows=sides.passes,
        seconds=time.perf_counter() - started,
    )


def _observe_windows(sides: Sides, config: AccuracyConfig, built: Built | None) -> tuple[list[TensorError], bool]:
    """Every tensor's error, window by window, and whether the model's outputs differed while observed."""
    found: dict[str, TensorError] = {}
    differs = False
    for window in sides.windows(config.window_bytes):
        report, sizes = sides.compare(window)
        compared = {output.name: output for output in report.outputs}
        differs |= any(compared[name].verdict == "bad" for name in sides.outputs)
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
        error = _relative_error(statistics.l2, size.norm)
        if statistics.clamped and statistics.nrmse is not None:
            error = statistics.nrmse  # the norm of a mask filled with the smallest FP32 hides every other value
        reference_nans = statistics.reference_nan_count
        nonfinite = max(statistics.nan_count - statistics.reference_nan_count, 0)
        nonfinite += max(statistics.inf_count - statistics.reference_inf_count, 0)
    before = _error_of_inputs(sides, index, known)
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


def _relative_error(difference: float, reference: float) -> float:
    """The norm of a difference over that of the reference; 1 where the reference is 0 and the other is not."""
    if difference == 0:
        return 0.0
    error = difference / reference if reference else 1.0
    return error if math.isfinite(difference) and math.isfinite(reference) else math.inf


def _error_of_inputs(sides: Sides, index: int, known: Mapping[str, TensorError]) -> float:
    """The largest error of what a node reads; 0 if none of that was compared."""
    return max((known[name].error for name in sides.cutter.reads(index) if name in known), default=0.0)


def _error_origin(sides: Sides, tensors: Sequence[TensorError]) -> str | None:
    """Where most of the error comes in: what differs, and exceeds what its node read by the largest step."""
    known = {entry.name: entry for entry in tensors}
    steps = {}
    for entry in tensors:
        before = _error_of_inputs(sides, sides.makers[entry.name], known)
        if entry.verdict == "bad" and entry.error and before < math.inf:
            steps[entry.name] = entry.error / max(before, 1e-9)
    return max(steps, key=lambda name: steps[name], default=None)


def _chain_above(sides: Sides, tensors: Sequence[TensorError], start: str | None) -> tuple[str, ...]:
    """From a tensor upwards, each time to what the node read with the largest error or else magnitude."""
    known = {entry.name: entry for entry in tensors}
    chain: list[str] = []
    while start is not None and len(chain) < _LONGEST_CHAIN and start not in chain:
        chain.append(start)
        index = sides.makers.get(start)
        reads = [known[name] for name in sides.cutter.reads(index) if name in known] if index is not None else []
        start = max(reads, key=lambda t: (t.error, t.magnitude)).name if reads else None
    return tuple(chain)


def _probe_one_by_one(sides: Sides, limit: int, probes: list[Probe]) -> str | None:
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
            name=names[middle], differs=compared[names[middle]], output_differs=any(compared[n] for n in sides.outputs)
        )
        probes.append(probe)
        if probe.differs:
            high = middle
        else:
            low = middle
    return names[high] if high < len(names) else None


def _log_result(run: Run, result: AccuracyResult) -> None:
    """Log what was found: numbers, the table and the picture."""
    run.log_metrics(
        {
            (schema.Metric.ACCURACY, "tensors"): len(result.tensors),
            (schema.Metric.ACCURACY, "differing"): sum(t.verdict == "bad" for t in result.tensors),
            (schema.Metric.ACCURACY, "largest_error"): max((t.error for t in result.tensors), default=0.0),
            (schema.Metric.ACCURACY, "seconds"): result.seconds,
        }
    )
    columns = ("tensor", "node", "op", "verdict", "error", "growth", "max_abs", "max_rel", "nonfinite", "layer")
    rows = (
        (t.name, t.node, t.op, t.verdict, t.error, t.growth, t.max_abs, t.max_rel, t.nonfinite, t.layer)
        for t in result.tensors
    )
    log_table(run, schema.Artifact.ACCURACY_TENSORS, columns, rows)
    run.log_json(result, schema.Artifact.ACCURACY_RESULT)
    run.log_text(result.text(), schema.Artifact.ACCURACY_FINDINGS)
    run.log_bytes(result.picture(), schema.Artifact.ACCURACY_PICTURE)
