"""Precision: which nodes must stay in FP32 so that a 16-bit model is accurate enough.

The search is over sets of nodes to keep. Groups come first: all nodes of a type, all of a scope (``encoder/layer.3``),
and nodes of a type in a scope; if no single group is enough, the best ones are joined until they are. What was found is
then thinned until no single node of it can go. Each set is tried by writing its Casts into the ONNX
model and running that; by default on ONNX Runtime with every 16-bit result rounded as a GPU would round it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.save import save_model
from trtops.ops.model.opening import Source, Subject, open_model
from trtops.ops.result import finish_with, op_run
from trtops.ops.search import algorithms
from trtops.ops.search.precision.candidates import Candidate, MakeRunner, Names, emulated_runner
from trtops.ops.search.precision.config import PrecisionConfig
from trtops.ops.search.precision.groups import node_groups, shortest_patterns
from trtops.ops.search.precision.result import Outcome, PrecisionResult, PrecisionStep, TradeOff
from trtops.ops.search.precision.trial import OutOfChecksError, Trial
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker


def precision(
    model: Source,
    config: PrecisionConfig | None = None,
    *,
    feeds: Iterable[Feed] | None = None,
    runner: MakeRunner = emulated_runner,
    evaluate: Callable[[Candidate], bool] | None = None,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
    progress: Callable[[PrecisionStep], None] | None = None,
) -> PrecisionResult:
    """Find the nodes that must stay in FP32.

    Args:
        model: The model in FP32, or its path; not changed.
        config: How to search.
        feeds: Inputs, in place of the config's source.
        runner: Makes the runner that a candidate is evaluated by: :func:`emulated_runner`,
            :class:`trtops.ops.search.precision.engines.TensorRTEngines`, or one that builds ``candidate.rewritten.model``
            with any back end.
        evaluate: Says whether a candidate is good, in place of running and comparing it
            (:class:`trtops.ops.search.precision.check.CandidateCheck` asks a command). Then no errors are known: they
            are 0 for what is good and infinite for the rest; no data is made, and no latency measured.
        tracker: The memory, which gets a run with params, numbers and the picture; None keeps nothing.
        experiment: Experiment to log to; the model's name unless given.
        tags: Further tags of the run.
        parent: Id of a parent run.
        file: The file that a model in memory was made from; the run is named after it.
        progress: Called after each check.

    Raises:
        ModelError: If the model cannot be used.
        ConfigError: If an excluded name fits nothing, the output is the model's own file, or ``evaluate`` passes whatever it
            is given.
        InputError: If the data does not fit the model.
        BackendError: If the model does not run in FP32.
    """
    config = PrecisionConfig() if config is None else config
    subject = Subject.of(model, file)
    experiment = experiment or subject.name
    name = f"{subject.name} precision"
    with op_run(tracker, experiment, name, kind="precision", model=subject.file, tags=tags, parent=parent) as run:
        started = time.perf_counter()
        opened = open_model(model)
        if config.output is not None and Path(config.output).resolve() in {path.resolve() for path in opened.files()}:
            raise errors.ConfigError(f"output is {config.output!r}, which is the model itself. Give another path.")
        trial = Trial.prepare(opened, config, feeds, runner, evaluate, progress)
        found = replace(_search_result(trial, *_search_nodes(trial, config)), seconds=time.perf_counter() - started)
        result = replace(found, title=f"precision {subject}", subject=str(subject.file or "")).kept_in(run, experiment)
        _write_files(result, config)
        if run is not NO_RUN:
            run.log_params({"model": opened.name, **config.to_dict()})
            _log_result(run, result)
        finish_with(run, result, tracker)
        return result


def _search_result(trial: Trial, keep: Names, outcome: Outcome, minimal: bool) -> PrecisionResult:
    return PrecisionResult(
        outcome=outcome,
        to=trial.config.to,
        evaluated=trial.evaluate is not None,
        keep=tuple(name for name in trial.names if name in keep),
        exclude=shortest_patterns(keep, trial.ops),
        minimal=minimal,
        nodes=len(trial.names),
        checks=len(trial.steps),
        steps=tuple(trial.steps),
        points=_trade_offs(trial, keep),
        path=trial.config.output,
        _candidate=trial.candidate(keep),
    )


def _write_files(result: PrecisionResult, config: PrecisionConfig) -> None:
    """Write the files that the config names."""
    if config.output is not None:
        save_model(result.lean_model, config.output)
    if config.exclude_list is not None:
        Path(config.exclude_list).write_text("".join(f"{name}\n" for name in result.keep), encoding="utf-8")


def _search_nodes(trial: Trial, config: PrecisionConfig) -> tuple[Names, Outcome, bool]:
    """The nodes to keep, what that means, and whether it was checked that none of them can go."""
    everything = frozenset(trial.names)
    try:
        if trial.try_set((), "nothing").good:
            trial.require_control()
            return frozenset(), "good", True
        if not everything or not trial.try_set(everything, "everything").good:
            return everything, "bad", False
        if config.mode == "minimal":
            return _minimal_set(trial), "mixed", True
        return _one_end(trial, config), "mixed", False
    except OutOfChecksError:
        return trial.best(), "mixed", False


def _one_end(trial: Trial, config: PrecisionConfig) -> Names:
    """As few nodes from one end of the model as are enough."""
    ordered = trial.names if config.direction == "forward" else trial.names[::-1]

    def meets(numbers: Sequence[int]) -> Iterator[bool]:
        return (trial.try_set(ordered[:number], f"{config.direction} {number}").good for number in numbers)

    walk_along = algorithms.bisect if config.mode == "bisect" else algorithms.linear
    return frozenset(ordered[: walk_along(meets, 0, len(ordered))])


def _minimal_set(trial: Trial) -> Names:
    """A set of nodes that is enough, and of which none can be lowered."""
    groups = node_groups(trial.ops)
    tried = {label: trial.try_set(names, label) for label, names in groups.items()}
    enough = [label for label, step in tried.items() if step.good]
    if enough:
        start = groups[min(enough, key=lambda label: len(groups[label]))]
    else:
        start = _join_groups(trial, [groups[label] for label in sorted(tried, key=lambda label: tried[label].excess)])
    return _thin_out(trial, [name for name in trial.names if name in start])


def _thin_out(trial: Trial, kept: list[str]) -> Names:
    """A part of what is enough that is enough, and of which no single node can go.

    Chunks are left out as long as the rest is enough, ever smaller ones. Errors of 16 bit add up, and most answers hold
    many nodes: this asks twice per node, where delta debugging, which also tries what is left of little, asks by the square.
    """
    size = max(len(kept) // 2, 1)
    while True:
        before = len(kept)
        for start in range(len(kept) - size, -size, -size):
            rest = kept[: max(start, 0)] + kept[start + size :]
            if rest and trial.try_set(rest).good:
                kept = rest
        if size == 1 and len(kept) == before:
            return frozenset(kept)
        size = max(size // 2, 1)


def _join_groups(trial: Trial, groups: Sequence[Names]) -> Names:
    """As many of the groups, the best first, as are enough together."""
    unions: list[Names] = [frozenset()]
    for group in groups:
        if not group <= unions[-1]:
            unions.append(unions[-1] | group)
    unions.append(frozenset(trial.names))

    def meets(numbers: Sequence[int]) -> Iterator[bool]:
        return (trial.try_set(unions[number], "groups joined").good for number in numbers)

    return unions[algorithms.bisect(meets, 0, len(unions) - 1)]


def _trade_offs(trial: Trial, keep: Names) -> tuple[TradeOff, ...]:
    """The ends, the answer, and what was tried on the way that nothing else beats in both nodes kept and error."""
    labels = {frozenset(): f"all {trial.config.to.upper()}", frozenset(trial.names): "all FP32", keep: "found"}
    frontier: dict[Names, PrecisionStep] = {}
    best = math.inf
    for names, step in sorted(trial.known.items(), key=lambda item: (item[1].kept, item[1].excess)):
        if step.excess < best or names in labels:
            frontier[names] = step
            best = min(best, step.excess)
    chosen = [n for n in frontier if n in labels] + [n for n in frontier if n not in labels][:5]
    return tuple(
        TradeOff(
            label=labels.get(names) or trial.known[names].group or f"{len(names)} kept",
            kept=len(names),
            excess=trial.known[names].excess,
            good=trial.known[names].good,
            latency_ms=trial.latency(names),
        )
        for names in sorted(chosen, key=len)
    )


def _log_result(run: Run, result: PrecisionResult) -> None:
    run.log_metrics(
        {
            (schema.Metric.PRECISION, "nodes"): result.nodes,
            (schema.Metric.PRECISION, "kept"): len(result.keep),
            (schema.Metric.PRECISION, "checks"): result.checks,
            (schema.Metric.PRECISION, "seconds"): result.seconds,
            (schema.Metric.PRECISION, "excess"): next((p.excess for p in result.points if p.label == "found"), 0.0),
        }
    )
    run.log_json(result, schema.Artifact.PRECISION_RESULT)
    run.log_text("".join(f"{name}\n" for name in result.keep), schema.Artifact.PRECISION_KEPT)
    run.log_bytes(result.picture(), schema.Artifact.PRECISION_PICTURE)
