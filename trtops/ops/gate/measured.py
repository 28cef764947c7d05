"""What the gate measures of a candidate and of the accepted engine. Numbers only: verdicts follow from them and a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trtops.backend.base import Build
from trtops.comparator.report import ComparisonReport, Tolerances
from trtops.ops.evaluation.check import Accuracy
from trtops.ops.gate.child import Opened
from trtops.ops.gate.ratio import Starts
from trtops.ops.gate.widths import OutputWidth
from trtops.record import Record
from trtops.spec import Environment, Layer, Precision

_SPELLINGS = {
    "float": "fp32", "float32": "fp32", "fp32": "fp32", "float16": "fp16", "half": "fp16", "fp16": "fp16",
    "bfloat16": "bf16", "bf16": "bf16", "int8": "int8", "uint8": "int8", "float8": "fp8", "fp8": "fp8",
}  # fmt: skip
"""How back ends spell the precisions of layers. Others, such as int64, say nothing about how exact a layer is."""


@dataclass(frozen=True, kw_only=True)
class Facts(Record):
    """One engine, in numbers and names.

    Attributes:
        run_id: The run that holds it.
        environment: Where it was built.
        model_sha256: What it was built from.
        precision: What was asked for.
        engine_sha256: Its digest.
        engine_bytes: Its size.
        build_seconds: Wall time of its build.
        memory_bytes: Host memory to load and run it; None if not measured.
        device_bytes: Device memory likewise; None on the processor.
    """

    run_id: str
    environment: Environment
    model_sha256: str
    precision: Precision
    engine_sha256: str
    engine_bytes: int
    build_seconds: float
    memory_bytes: int | None = None
    device_bytes: int | None = None

    @classmethod
    def of(cls, run_id: str, build: Build, opened: Opened | None) -> Facts:
        """The facts of a build."""
        return cls(
            run_id=run_id,
            environment=build.engine.environment,
            model_sha256=build.spec.model_sha256,
            precision=build.spec.config.precision,
            engine_sha256=build.engine.sha256,
            engine_bytes=len(build.engine.plan),
            build_seconds=build.seconds,
            memory_bytes=None if opened is None else opened.memory_bytes,
            device_bytes=None if opened is None else opened.device_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class LayerChange(Record):
    """A layer that both engines have, and that is not the same in both.

    Attributes:
        layer: Its name.
        what: What changed.
        accepted: What it was.
        candidate: What it is.
    """

    layer: str
    what: Literal["precision", "tactic"]
    accepted: str
    candidate: str


@dataclass(frozen=True, kw_only=True)
class LayerComparison(Record):
    """The layers of two engines.

    Attributes:
        accepted: How many the accepted engine has.
        candidate: How many the candidate has.
        shared: How many have a name that both have.
        changes: What changed in those.
        accepted_precisions: Share of layers by precision, of those whose precision is known.
        candidate_precisions: The same of the candidate.
    """

    accepted: int
    candidate: int
    shared: int
    changes: tuple[LayerChange, ...]
    accepted_precisions: tuple[tuple[str, float], ...]
    candidate_precisions: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, accepted: Sequence[Layer], candidate: Sequence[Layer]) -> LayerComparison:
        """Compare layers by name."""
        before = {layer.name: layer for layer in accepted}
        changes = []
        for layer in candidate:
            if (old := before.get(layer.name)) is None:
                continue
            if _precision_of(old) != _precision_of(layer):
                changes.append(
                    LayerChange(layer=layer.name, what="precision", accepted=old.precision, candidate=layer.precision)
                )
            if old.tactic != layer.tactic:
                changes.append(
                    LayerChange(layer=layer.name, what="tactic", accepted=old.tactic, candidate=layer.tactic)
                )
        return cls(
            accepted=len(accepted),
            candidate=len(candidate),
            shared=sum(layer.name in before for layer in candidate),
            changes=tuple(changes),
            accepted_precisions=_precision_shares(accepted),
            candidate_precisions=_precision_shares(candidate),
        )

    def largest_shift(self) -> tuple[str, float, float]:
        """The precision whose share of layers changed most, and its shares in the accepted engine and in the candidate."""
        before, after = dict(self.accepted_precisions), dict(self.candidate_precisions)
        names = [*dict.fromkeys([*before, *after])] or ["fp32"]
        name = max(names, key=lambda n: abs(after.get(n, 0.0) - before.get(n, 0.0)))
        return name, before.get(name, 0.0), after.get(name, 0.0)


@dataclass(frozen=True, kw_only=True)
class Rounds(Record):
    """Latencies measured in turn.

    Attributes:
        starts: Logarithms of the ratio of the candidate's latency to the accepted engine's, by start and round.
        candidate_ms: Median of the candidate's inferences, in milliseconds.
        accepted_ms: Median of the accepted engine's.
        on_device: Whether that is time on the accelerator, without copies.
        seconds: Wall time that measuring took.
    """

    starts: Starts
    candidate_ms: float
    accepted_ms: float
    on_device: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Measured(Record):
    """All that was measured of one candidate.

    Attributes:
        candidate: Its facts.
        accepted: Those of the engine that it was compared with; None if none was accepted, or it cannot be run here.
        reference: The candidate's outputs against the reference.
        usual: The tolerances that hold against the reference where a policy has none.
        agreement: The candidate's outputs against the accepted ones; None without an accepted engine.
        widths: Noise and distance of each output; empty without an accepted engine.
        candidate_top1: The candidate's accuracy on labelled data, if there are labels.
        accepted_top1: The accepted engine's on the same data.
        rounds: Latencies; None without an accepted engine, or if none were measured.
        layers: What changed inside; None without an accepted engine.
    """

    candidate: Facts
    accepted: Facts | None = None
    reference: ComparisonReport
    usual: Tolerances
    agreement: ComparisonReport | None = None
    widths: tuple[OutputWidth, ...] = ()
    candidate_top1: Accuracy | None = None
    accepted_top1: Accuracy | None = None
    rounds: Rounds | None = None
    layers: LayerComparison | None = None


def _precision_of(layer: Layer) -> str | None:
    text = layer.precision.lower()
    return _SPELLINGS.get(text) or next((name for spelling, name in _SPELLINGS.items() if spelling in text), None)


def _precision_shares(layers: Sequence[Layer]) -> tuple[tuple[str, float], ...]:
    counts = Counter(name for layer in layers if (name := _precision_of(layer)) is not None)
    total = sum(counts.values())
    return tuple((name, count / total) for name, count in sorted(counts.items()))
