"""The model of a tactic record: which choices a builder made, layer by layer, and whether they can be made again.

One format for every back end, which knows no back end's API: ``backend/onnxrt`` and ``backend/trt`` write it and replay
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtops.record import JSONValue, Record

Mechanism = Literal["onnxruntime", "algorithm_selector", "editable_timing_cache", "inspector"]


@dataclass(frozen=True, kw_only=True)
class TensorFormat(Record):
    """Memory layout of one tensor of a layer.

    Attributes:
        dtype: Element type, as the back end spells it.
        strides: Elements between neighbours in each dimension; empty if not reported.
        vectorized_dim: The dimension that is split into vectors, or None.
        components_per_element: Length of those vectors, or None.
    """

    dtype: str
    strides: tuple[int, ...] = ()
    vectorized_dim: int | None = None
    components_per_element: int | None = None


@dataclass(frozen=True, kw_only=True)
class TacticChoice(Record):
    """What one layer got.

    Attributes:
        layer: The layer's name; for ONNX Runtime the name of its first output tensor, since fused nodes lose theirs.
        op: The layer's type.
        tactic: The choice, spelled so that equal choices have equal texts on every build.
        implementation: TensorRT's implementation number, where there is one.
        tactic_id: TensorRT's tactic number (may be negative, 64 bit), where there is one.
        inputs: Formats of the inputs.
        outputs: Formats of the outputs.
        replayable: Whether the back end can be made to choose the same again.
        key: The timing cache's key for it, where the mechanism is ``editable_timing_cache``.
    """

    layer: str
    op: str
    tactic: str
    implementation: int | None = None
    tactic_id: int | None = None
    inputs: tuple[TensorFormat, ...] = ()
    outputs: tuple[TensorFormat, ...] = ()
    replayable: bool = True
    key: str | None = None

    @property
    def identity(self) -> tuple[JSONValue, ...]:
        """What choices of one layer must have in common to be the same; formats are in the tactic's text."""
        return (self.layer, self.tactic, self.implementation, self.tactic_id)


@dataclass(frozen=True, kw_only=True)
class TacticRecord(Record):
    """All choices of one build.

    Attributes:
        mechanism: How the choices were read, and so how they can be replayed.
        backend_version: Release of the back end that chose.
        device_sha256: Kind of device it chose for (:attr:`trtops.spec.Environment.device_sha256`).
        settings: Choices for the whole engine, as ``(name, value)`` sorted by name.
        choices: One entry per layer, in the engine's order.
    """

    mechanism: Mechanism
    backend_version: str
    device_sha256: str
    settings: tuple[tuple[str, str], ...] = ()
    choices: tuple[TacticChoice, ...] = ()

    @property
    def coverage(self) -> float:
        """Layers with a replayable choice, as a fraction of all layers; 1.0 for an engine without layers."""
        if not self.choices:
            return 1.0
        return sum(choice.replayable for choice in self.choices) / len(self.choices)

    def differing_layers(self, other: TacticRecord) -> tuple[str, ...]:
        """Names of the layers that are in one record only, or that chose differently; in this record's order."""
        mine = {choice.layer: choice for choice in self.choices}
        theirs = {choice.layer: choice for choice in other.choices}
        names = dict.fromkeys([*mine, *theirs])
        return tuple(n for n in names if n not in mine or n not in theirs or mine[n].identity != theirs[n].identity)

    def deciding(self) -> JSONValue:
        """The choices and settings; not how they were read."""
        return [[list(pair) for pair in sorted(self.settings)], [list(choice.identity) for choice in self.choices]]
