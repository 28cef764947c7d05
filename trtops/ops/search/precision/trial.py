"""The sets of nodes that a precision search tries: each is measured once."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx import walk
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import lower_precision, without_functions
from trtops.backend.onnx.walk import node_name
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.backend.worker import warm_worker
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.ops.evaluation.check import CheckConfig, Latency, measure_latency, tolerances_for
from trtops.ops.evaluation.submodel import onnxruntime_runner
from trtops.ops.search.precision.candidates import Candidate, MakeRunner, Names, emulated_runner
from trtops.ops.search.precision.config import PrecisionConfig
from trtops.ops.search.precision.replay import load_answers, save_answers
from trtops.ops.search.precision.result import PrecisionStep

log = logging.getLogger(__name__)


class OutOfChecksError(Exception):
    """``max_checks`` is reached: the search may not ask any more."""


@dataclass
class Trial:
    """A model with its golden outputs, and every set that was tried.

    Attributes:
        original: The model in FP32, functions written out; not to be changed.
        config: The search.
        tolerances: What candidates must meet.
        feeds: Their inputs; none where :attr:`evaluate` evaluates.
        golden: What the model itself gives for each feed.
        ops: The types of the nodes that can be lowered, by their names, in the model's order.
        make: Makes runners of candidates.
        evaluate: Evaluates candidates in place of running them.
        progress: Called after each check.
        answers: Answers of an earlier search: whether a set is good, and its error.
        steps: What was tried, in order.
        known: The same, by the nodes kept.
    """

    original: onnx.ModelProto
    config: PrecisionConfig
    tolerances: Tolerances
    feeds: list[Feed]
    golden: list[dict[str, Any]]
    ops: dict[str, str]
    make: MakeRunner
    evaluate: Callable[[Candidate], bool] | None
    progress: Callable[[PrecisionStep], None] | None
    answers: Mapping[Names, tuple[bool, float]]
    steps: list[PrecisionStep] = field(default_factory=list)
    known: dict[Names, PrecisionStep] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls,
        model: Model,
        config: PrecisionConfig,
        feeds: Iterable[Feed] | None,
        make: MakeRunner,
        evaluate: Callable[[Candidate], bool] | None,
        progress: Callable[[PrecisionStep], None] | None,
    ) -> Trial:
        """Find the nodes that can be lowered, read the data, and run the model in FP32."""
        original = without_functions(model.proto(lean=True))
        rewritten = lower_precision(original, config.to, exclude=config.exclude, keep_types=config.keep_types)
        lowered = set(rewritten.lowered)
        given: list[Feed] = []
        if evaluate is None:
            given = [dict(feed) for feed in config.open_for(model, feeds)]
        return cls(
            original=original,
            config=config,
            tolerances=tolerances_for(config.to, config.tolerances, model),
            feeds=given,
            golden=[dict(outputs) for outputs in reference_outputs(original, given)] if given else [],
            ops={node_name(node): node.op_type for node in walk.nodes(original) if node_name(node) in lowered},
            make=make,
            evaluate=evaluate,
            progress=progress,
            answers={} if config.load_replay is None else load_answers(Path(config.load_replay)),
        )

    @property
    def names(self) -> list[str]:
        """Names of the nodes that can be lowered, in the model's order."""
        return list(self.ops)

    def candidate(self, keep: Iterable[str]) -> Candidate:
        """The candidate that keeps these nodes."""
        return Candidate(original=self.original, keep=frozenset(keep), config=self.config)

    def try_set(self, keep: Iterable[str], group: str = "") -> PrecisionStep:
        """Measure a set of nodes to keep, once.

        Args:
            keep: Their names.
            group: What they have in common, if they are tried for that.

        Raises:
            OutOfChecksError: If no more may be tried.
        """
        names = frozenset(keep)
        if names in self.known:
            return self.known[names]
        if self.config.max_checks is not None and len(self.steps) >= self.config.max_checks:
            raise OutOfChecksError
        started = time.perf_counter()
        good, excess = self.answers[names] if names in self.answers else self._measure(names)
        step = PrecisionStep(
            kept=len(names), group=group, good=good, excess=excess, seconds=time.perf_counter() - started
        )
        log.debug("%d of %d nodes kept%s: %s", len(names), len(self.ops), f" ({group})" if group else "", step)
        self.known[names] = step
        self.steps.append(step)
        if self.config.save_replay is not None:
            save_answers(Path(self.config.save_replay), self.known)
        if self.progress is not None:
            self.progress(step)
        return step

    def _measure(self, keep: Names) -> tuple[bool, float]:
        """Whether a candidate is good, and its largest error as a multiple of the tolerances."""
        if self.evaluate is not None:
            good = self.evaluate(self.candidate(keep))
            return good, 0.0 if good else math.inf
        report = self._compare(keep)
        return bool(report), math.inf if report is None else _worst_excess(report, self.tolerances)

    def _compare(self, keep: Names) -> ComparisonReport | None:
        """Run a candidate; None if the back end does not take it."""
        candidate = self.candidate(keep)  # whose weights may be in files that go with it
        try:
            with self.make(candidate) as runner:
                outputs = [{k: np.array(v) for k, v in runner.infer(feed).items()} for feed in self.feeds]
        except (errors.BackendError, errors.ModelError) as exc:
            log.warning("%d nodes kept: %s", len(keep), exc)
            return None
        return compare_outputs(outputs, self.golden, self.tolerances)

    def require_control(self) -> None:
        """Ask what evaluates, having passed everything so far, about the model with outputs of 0.

        Raises:
            ConfigError: If it passes that as well.
        """
        if self.evaluate is None:
            return
        control = Candidate(
            original=_with_outputs_of_zero(self.original),
            keep=frozenset(self.names),
            config=self.config,
            is_control=True,
        )
        if self.evaluate(control):
            raise errors.ConfigError(
                "The check is broken: it passes the model in lower precision, and the model with all its outputs set to 0 as "
                "well. Let it compare what comes out, and end with another exit code than 0 if that is wrong."
            )

    def best(self) -> Names:
        """The smallest set that met the tolerances so far, or else all."""
        good = [names for names, step in self.known.items() if step.good]
        return min(good, key=len, default=frozenset(self.ops))

    def latency(self, keep: Names) -> float | None:
        """Median latency in ms: of the back end under test, or of the model itself where that only emulates."""
        if not self.config.latency_runs or self.evaluate is not None:
            return None
        candidate = self.candidate(keep)
        check = CheckConfig(warm_up=3, latency_runs=self.config.latency_runs)
        try:
            if self.make is emulated_runner:
                with warm_worker() as worker:  # ONNX Runtime dies of some models in 16 bit
                    measured = worker.run(_latency_of_model, candidate.rewritten.model, self.feeds, check)
            else:
                with self.make(candidate) as runner:
                    measured = measure_latency(runner, self.feeds, check)
        except errors.BackendError as exc:
            log.warning("Latency with %d nodes kept was not measured: %s", len(keep), exc)
            return None
        return None if measured is None else measured.p50_ms


def _latency_of_model(model: onnx.ModelProto, feeds: list[Feed], check: CheckConfig) -> Latency | None:
    with onnxruntime_runner(model) as runner:
        return measure_latency(runner, feeds, check)


def _with_outputs_of_zero(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each floating-point output of FP32 multiplied by 0."""
    spoiled = onnx.ModelProto()
    spoiled.CopyFrom(model)
    graph = spoiled.graph
    outputs = {o.name for o in graph.output if o.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        node.name = node_name(node)  # which may be its output's
        for i, name in enumerate(node.output):
            if name in outputs:
                node.output[i] = f"{name}/right"
        for i, name in enumerate(node.input):
            if name in outputs:
                node.input[i] = f"{name}/right"
    made = {name.removesuffix("/right") for node in graph.node for name in node.output}
    graph.initializer.append(onnx.helper.make_tensor("control/zero", onnx.TensorProto.FLOAT, [], [0.0]))
    for name in sorted(outputs & made):
        graph.node.append(onnx.helper.make_node("Mul", [f"{name}/right", "control/zero"], [name], f"{name}/control"))
    return spoiled


def _worst_excess(report: ComparisonReport, tolerances: Tolerances) -> float:
    """How far the worst element of all outputs is beyond both tolerances, as a multiple; infinite for NaN."""
    worst = 0.0
    for output in report.outputs:
        if output.statistics is None or output.statistics.nan_errors:
            return math.inf
        own = tolerances.of(output.name)
        atol = own.largest_abs(output.statistics)
        if math.isinf(atol) or math.isinf(own.rtol):
            # Every element is within an infinite tolerance; what is left to rank candidates by is the direction.
            worst = max(worst, 1.0 - (output.statistics.cosine or 0.0))
            continue
        for d, r in output.statistics.frontier:
            worst = max(worst, min(d / atol if atol else math.inf, r / own.rtol if own.rtol else math.inf))
        if own.max_nrmse and output.statistics.nrmse is not None:
            worst = max(worst, output.statistics.nrmse / own.max_nrmse)
    return worst
