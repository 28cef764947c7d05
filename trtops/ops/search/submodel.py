"""Checks of sub-models, for searches.

A check is a callable that takes a :class:`~trtops.backend.onnx.submodel.SubModel` and returns True or ``"pass"``; False
or ``"fail"``; or ``"error"``, for another failure than the one that is searched for. A check that raises counts as an
error. The data of a sub-model can be read only during its check.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import BaseRunner, Build, BuildRequest, Caches, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.worker import built_safely
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.record import Record, digest
from trtops.spec import BuildConfig

CheckVerdict: TypeAlias = Literal["pass", "fail", "error"]
Failure: TypeAlias = Literal["accuracy", "build", "inference"]


@dataclass(frozen=True, kw_only=True)
class CheckOutcome(Record):
    """The outcome of a check: ``fail`` is the searched failure, ``error`` any other; and the reason."""

    verdict: CheckVerdict
    detail: str = ""
    excess: float | None = None  # the largest error as a multiple of the tolerances, if it was measured

    @classmethod
    def of(cls, answer: object) -> "CheckOutcome":
        """The outcome for a check's return value; raises ConfigError if it is not a valid one."""
        if isinstance(answer, CheckOutcome):
            return answer
        if isinstance(answer, (bool, np.bool_)):
            return cls(verdict="pass" if answer else "fail")
        if answer in ("pass", "fail", "error"):
            return cls(verdict=answer)
        raise errors.ConfigError(
            f"The check answered {answer!r:.80}; expected True or 'pass', False or 'fail', 'error', or a CheckOutcome."
        )


Check: TypeAlias = Callable[[SubModel], bool | CheckVerdict | CheckOutcome]


@dataclass(frozen=True, kw_only=True)
class ComparisonCheck:
    """Compares a back end with the golden values of the whole model."""

    runner: Callable[[onnx.ModelProto], BaseRunner]  # makes an inactive runner of a sub-model, which it must not change
    tolerances: Tolerances = field(default_factory=Tolerances)
    failures: tuple[Failure, ...] = ("accuracy",)  # those that are searched for
    name: str = ""  # the back end and its settings, which distinguish cached answers; by default the name of `runner`

    def __call__(self, part: SubModel) -> CheckOutcome:
        """Build, run and compare; an error of the back end is an outcome too."""
        # Read before the runner is built, because the data exists only during the check.
        feeds, golden = part.feeds, part.golden
        runner = self.runner(part.proto)
        try:
            runner.activate()
        except (errors.BackendError, errors.InvalidModelError) as exc:
            return self._failed("build", str(exc))
        try:
            outputs = []
            for feed in feeds:
                feed_outputs = runner.infer(feed)
                # Only the last outputs are not overwritten by another inference.
                outputs.append(
                    feed_outputs if feed is feeds[-1] else {name: array.copy() for name, array in feed_outputs.items()}
                )
            report = compare_outputs(outputs, golden, self.tolerances, only_limited=True)
        except errors.BackendError as exc:
            return self._failed("inference", str(exc))
        finally:
            runner.deactivate()
        return CheckOutcome(verdict="pass") if report else self._failed("accuracy", "; ".join(report.reasons[:3]))

    def _failed(self, stage: Failure, reason: str) -> CheckOutcome:
        return CheckOutcome(verdict="fail" if stage in self.failures else "error", detail=f"{stage}: {reason}")

    def describe(self) -> str:
        """The deciding parts of the outcome, as text."""
        runner = self.name or _qualified_name(self.runner)
        return f"comparison:{runner}:{self.tolerances.digest}:{','.join(sorted(self.failures))}"


def onnxruntime_runner(model: onnx.ModelProto) -> BaseRunner:
    """A runner of a model in ONNX Runtime with all optimizations, on the CPU."""
    from trtops.backend.onnxrt.runner import OnnxrtRunner, SessionFromMemory

    return OnnxrtRunner(SessionFromMemory(model), "onnxruntime")


@dataclass(frozen=True)
class EngineRunner:
    """Makes runners of models by building engines, from the same caches; for :attr:`ComparisonCheck.runner`."""

    config: BuildConfig
    caches: Caches = field(default_factory=Caches)
    timing_feed: "Feed | None" = None  # to time tactics on

    def build(self, model: onnx.ModelProto) -> Build:
        """Build an engine; a BackendError on failure."""
        model_request = BuildRequest(
            Model.from_proto(model), self.config, caches=self.caches, timing_feed=self.timing_feed
        )
        return built_safely(model_request)

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        """A runner for an engine built on activation."""
        return engine_backend(self.config.backend).runner(lambda: self.build(model).engine, self.config.backend)


def describe(check: Check) -> str:
    """Text that identifies a check in caches; two checks with the same text must have the same outcomes."""
    describe_check = getattr(check, "describe", None)
    if callable(describe_check):
        return str(describe_check())
    return f"record:{type(check).__name__}:{check.digest}" if isinstance(check, Record) else _qualified_name(check)


def _qualified_name(thing: object) -> str:
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    config_digest = digest(thing.config.deciding()) if isinstance(thing, EngineRunner) else ""
    return f"{kind.__module__}.{kind.__qualname__}{config_digest}"
